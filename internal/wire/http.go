package wire

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/weirproxy/weir/internal/loglimit"
)

// HTTP is a server of pages. A drain waits at most a second for clients with half a head.
type HTTP struct {
	*http.Server
	heads heads
}

// NewHTTP returns a server for HTTP/1.1 alone: without TLS no browser asks for HTTP/2.
func NewHTTP(pages http.Handler, maxHeaderBytes int, logger *slog.Logger) *HTTP {
	s := &HTTP{Server: &http.Server{
		Protocols:         new(http.Protocols),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second, // with the body
		IdleTimeout:       2 * time.Minute,  // longer than between two scrapes
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(loglimit.Handler(logger.Handler()), slog.LevelWarn),
	}}
	s.Protocols.SetHTTP1(true)
	s.Handler, s.ConnState = s.heads.noted(pages), s.heads.note
	return s
}

// Shutdown answers the requests whose head has come, and ends the server. Clients have a second for
// the rest of a first head. The errors are the errors of [http.Server.Shutdown].
func (s *HTTP) Shutdown(ctx context.Context) error {
	s.heads.drain(ctx)
	return s.Server.Shutdown(ctx)
}

type connKey struct{}

// ConnOf returns the connection of a request of an HTTP, nil for any other request.
func ConnOf(r *http.Request) net.Conn {
	c, _ := r.Context().Value(connKey{}).(net.Conn)
	return c
}
