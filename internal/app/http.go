package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/internal/wire"
)

// maxHeaderBytes bounds the headers of a request, which take ten times as much in memory.
const maxHeaderBytes = 12 << 10

// pageServer is a server of pages. A drain waits at most a second for clients with half a head.
type pageServer struct {
	*http.Server
	heads wire.Heads
}

// Shutdown answers the requests whose head has come, and ends the server. The errors are the errors
// of [http.Server.Shutdown].
func (s *pageServer) Shutdown(ctx context.Context) error { return s.heads.Shutdown(ctx, s.Server) }

// newHTTP returns a server of pages, for HTTP/1.1 alone: without TLS no browser asks for HTTP/2.
func (p *process) newHTTP(pages http.Handler) *pageServer {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	s := &pageServer{}
	s.Server = &http.Server{
		Handler:           reported(pages),
		ConnContext:       withConn,
		ConnState:         s.heads.Note,
		Protocols:         protocols,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second, // with the body
		WriteTimeout:      2 * time.Minute,  // a profile takes 30 seconds unless asked for longer
		IdleTimeout:       2 * time.Minute,  // longer than between two scrapes
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(loglimit.Handler(p.Logger.Handler()), slog.LevelWarn),
	}
	return s
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// reported reports requests to the bound of connections. A request begins when its body has
// arrived: a client that sends slowly must not keep a place.
func reported(pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, bounded := r.Context().Value(connKey{}).(*wire.Conn)
		if !bounded {
			pages.ServeHTTP(w, r)
			return
		}
		if r.ContentLength == 0 {
			c.Begin()
		} else {
			r.Body = &arriving{r.Body, c}
		}
		defer c.Done()
		defer c.Answered()
		pages.ServeHTTP(w, r)
	})
}

type arriving struct {
	io.ReadCloser
	on *wire.Conn
}

// Read implements [io.Reader].
func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		a.on.Begin()
	}
	return n, err
}
