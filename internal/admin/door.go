package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/weirproxy/weir/internal/admin/page"
	"github.com/weirproxy/weir/internal/wire"
	"github.com/weirproxy/weir/internal/wire/web"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Access chooses the clients of Serve. The zero value admits everybody who reaches the listener.
type Access struct {
	Token func() string // the token that clients must show; "" admits nobody; nil: no token. Safe for concurrent use
	TLS   *tls.Config   // of Serve; nil: no TLS
	Hosts []string      // names that a Host header may have, without port, in any case; localhost and IP addresses always may
}

// Bounds of the admin address. No setting changes them: operators and their tools need few calls.
const (
	maxMessage     = 64 << 10        // bytes of a message by gRPC, and of a body
	maxStreams     = 8               // calls under way of one connection. Each may hold a message
	maxHeaderBytes = 16 << 10        // headers of a request to the page
	windowBytes    = 64 << 10        // bytes of a message that a client may send ahead, the least that gRPC takes
	greetTimeout   = 2 * time.Second // from the first bytes of HTTP/2 to its first frame. A drain waits half of it
)

// newDoor makes both servers of Serve, which share the methods of the admin service and the guard.
func (s *Server) newDoor() error {
	access := &s.options.Access
	s.guard = newGuard(&s.options)
	service := &service{Server: s}
	s.newGRPC(service)

	host, _ := os.Hostname()
	version := s.options.Version
	if version == "unknown" { // as package version calls a build without one
		version = ""
	}
	var err error
	if s.people, err = page.New(page.Options{
		Service: service, Rules: s.pageRules, Logger: s.options.Logger, Version: version, Host: host, Admitted: noteAdmitted,
		Tokens: s.guard.tokens, Hosts: access.Hosts,
	}); err != nil {
		return err
	}
	s.http = wire.NewHTTP(marked(web.Guarded(s.panicked, http.MaxBytesHandler(s.people, maxMessage))), maxHeaderBytes, s.options.Logger)
	return nil
}

func (s *Server) newGRPC(service *service) {
	g := wire.NewGRPC(wire.GRPCOptions{
		Codec: wire.NewCodec(), MaxMessage: maxMessage, MaxStreams: maxStreams, Window: windowBytes, Handshake: greetTimeout,
		Recovered: s.guard.recovered, Admit: s.guard.admit, Stream: s.guard.stream,
	})
	s.grpc = g
	adminv1.RegisterAdminServiceServer(g, service)
	s.health = health.NewServer()
	s.health.SetServingStatus(adminv1.AdminService_ServiceDesc.ServiceName, healthgrpc.HealthCheckResponse_SERVING)
	healthgrpc.RegisterHealthServer(g, s.health)
	if s.options.Reflection {
		reflection.Register(g) // v1 and v1alpha
	}
}

// Serve serves the admin service, health, reflection and the admin page on l, and closes l in the
// end. Clients of gRPC and browsers share the listener: the first bytes of a connection tell them
// apart. Without a token and client certificates in Options.Access, the listener must be one that
// only operators reach. The result is nil after GracefulStop and Close, also when these came
// before.
func (s *Server) Serve(l net.Listener) error {
	var secure *wire.Secure
	if s.options.Access.TLS != nil {
		secure = wire.NewSecure(wire.ALPN(s.options.Access.TLS), s.options.Logger)
	}
	if at, ok := l.Addr().(*net.TCPAddr); ok {
		s.at.Store(at)
	}
	both := wire.NewSplit(l, secure, wire.HandshakeTimeout)
	s.people.Begin()
	failed := make(chan error, 3)
	go func() { failed <- both.Serve() }()
	go func() { failed <- s.grpc.Serve(both.HTTP2()) }()
	go func() { failed <- s.http.Serve(both.HTTP1()) }()
	var errs []error
	for range cap(failed) {
		err := <-failed
		_ = both.Close() // one that stops, stops all
		if !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// marked notes requests on the Marker of their connection, and adds the state of TLS to them. The
// package net/http finds that state only in a connection that is TLS itself.
func marked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := wire.ConnOf(r)
		r.TLS = wire.StateOf(conn)
		if mark := wire.MarkerOf(conn); mark != nil {
			mark.Begin()
			defer mark.Done()
			m := &longAnswer{ResponseWriter: w, mark: mark}
			defer m.end()
			w, r = m, r.WithContext(context.WithValue(r.Context(), longAnswerKey{}, m))
		}
		next.ServeHTTP(w, r)
	})
}

// longAnswer notes each part of an answer on its connection: an open page must not seem silent.
type longAnswer struct {
	http.ResponseWriter

	mark     wire.Marker
	admitted bool // the request has credentials, or needs none
}

type longAnswerKey struct{}

// noteAdmitted notes that a request has credentials, or needs none.
func noteAdmitted(r *http.Request) {
	if m, ok := r.Context().Value(longAnswerKey{}).(*longAnswer); ok {
		m.admitted = true
	}
}

// end notes the answer. An answer to a stranger does not protect the connection from new ones, else
// strangers would keep operators out. The token must not be compared here: a connection that stays
// open would show that a guess is right.
func (m *longAnswer) end() {
	if m.admitted {
		m.mark.Answered()
	}
}

// FlushError is for [http.ResponseController].
func (m *longAnswer) FlushError() error {
	err := http.NewResponseController(m.ResponseWriter).Flush()
	if err == nil {
		m.mark.Answered()
	}
	return err
}

// Unwrap is for [http.ResponseController].
func (m *longAnswer) Unwrap() http.ResponseWriter { return m.ResponseWriter }
