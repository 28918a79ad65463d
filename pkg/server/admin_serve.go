package server

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	adminpage "github.com/weirproxy/weir/internal/admin/page"
	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/internal/wire/connections"
	"github.com/weirproxy/weir/internal/wire/split"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// Admin chooses the clients of ServeAdmin. The zero value admits everybody who reaches the
// listener.
type Admin struct {
	Token        func() string // the token that clients must show; "" admits nobody; nil: no token. Safe for concurrent use
	TokenSetting string        // the setting of the token, in errors
	TLS          *tls.Config   // of ServeAdmin; nil: no TLS
	Hosts        []string      // names that a Host header may have, without port, in any case; localhost and IP addresses always may
	HostsSetting string        // the setting of Hosts, in errors
}

// newAdmin makes both servers of ServeAdmin, which share the methods of the admin service.
func (s *Server) newAdmin() error {
	service := &admin{options: s.options, statuses: &s.service.statuses, hub: s.hub, denials: &s.denials}
	a := &s.options.Admin
	tokens := &tokens{logger: s.options.Logger}
	if a.Token != nil {
		tokens.of = adminpage.NewTokens(a.Token)
	}
	options := s.grpcOptions(insecure.NewCredentials(), keepalive.ServerParameters{})
	options = append(options, grpc.ChainStreamInterceptor(tokens.stream))
	g := guarded{grpc.NewServer(options...), s.service, tokens.admit}
	adminv1.RegisterAdminServiceServer(g, service)
	s.addHealth(g, nil, adminv1.AdminService_ServiceDesc.ServiceName)
	s.admin = g.Server

	host, _ := os.Hostname()
	version := s.options.Version
	if version == "unknown" { // as package version calls a build without one
		version = ""
	}
	p, err := adminpage.New(adminpage.Options{
		Service: service, Source: s.pageSource(), Logger: s.options.Logger, Version: version, Host: host, Admitted: noteAdmitted,
		Tokens: tokens.of, TokenSetting: a.TokenSetting, Hosts: a.Hosts, HostsSetting: a.HostsSetting,
	})
	if err != nil {
		return err
	}
	s.people = p
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	s.page = &http.Server{
		Handler:           s.recoverHTTP(marked(limitTimes(http.MaxBytesHandler(p, int64(s.options.MaxRequestBytes))))),
		ConnContext:       withConn,
		ConnState:         s.heads.Note,
		Protocols:         protocols,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second, // with the body
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelWarn),
	}
	return nil
}

// ServeAdmin serves the admin service, health, reflection and the admin page on l, and closes l in
// the end. Clients of gRPC and browsers share the listener: the first bytes of a connection tell
// them apart. Without a token and client certificates in Options.Admin, the listener must be one
// that only operators reach. The result is nil after GracefulStop and Close, also when these came
// before.
func (s *Server) ServeAdmin(l net.Listener) error {
	o := split.Options{Timeout: handshakeTimeout}
	if s.options.Admin.TLS != nil {
		secure := newSecured(split.ALPN(s.options.Admin.TLS), s.options.Logger)
		o.Handshake = func(raw net.Conn) (net.Conn, error) {
			conn, _, err := secure.ServerHandshake(raw)
			return conn, err
		}
	}
	both := split.New(l, o)
	s.people.Begin()
	failed := make(chan error, 3)
	go func() { failed <- both.Serve() }()
	go func() { failed <- serve(s.admin, both.HTTP2()) }()
	go func() { failed <- s.page.Serve(both.HTTP1()) }()
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

// tokens admits calls of gRPC by their token.
type tokens struct {
	of     *adminpage.Tokens // nil: everybody
	logger *slog.Logger
	logged loglimit.Limiter
}

// free reports whether a method needs no token. Health tells nothing, and probes of Kubernetes
// cannot send a token.
func free(method string) bool {
	return strings.HasPrefix(method, "/"+healthgrpc.Health_ServiceDesc.ServiceName+"/")
}

// admit returns an error for a call without the token.
func (t *tokens) admit(ctx context.Context, method string) error {
	_, err := t.find(ctx, method)
	return err
}

// find returns the right token that a call shows, "" where it needs none, or an error.
func (t *tokens) find(ctx context.Context, method string) (token string, err error) {
	if t.of == nil {
		return "", nil
	}
	conn := connection(ctx)
	conn.Stranger(true)
	if free(method) {
		return "", nil
	}
	var client string
	if p, ok := peer.FromContext(ctx); ok {
		client = p.Addr.String()
	}
	var wait time.Duration
	for _, header := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		shown := adminpage.Bearer(header)
		right, after := t.of.Check(client, shown)
		if right {
			conn.Stranger(false)
			return shown, nil
		}
		wait = max(wait, after)
	}
	if missed, due := t.logged.Due(time.Second); due {
		t.logger.LogAttrs(ctx, slog.LevelWarn, "an admin call without the right token was refused",
			slog.String("method", method), slog.Uint64("not_logged", missed), slog.String("client", client))
	}
	if wait > 0 {
		return "", status.Error(codes.ResourceExhausted, adminpage.TooMany(wait))
	}
	return "", status.Error(codes.Unauthenticated, "the token is missing or wrong: send it as authorization: Bearer TOKEN (--token-file of the commands)")
}

// stream admits streams.
func (t *tokens) stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	token, err := t.find(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	if token != "" {
		stream = &admittedStream{stream, t.of, token}
	}
	return handle(service, stream)
}

// admittedStream is a stream that ends when another token is the right one.
type admittedStream struct {
	grpc.ServerStream
	of    *adminpage.Tokens
	token string // that the client has shown
}

// SendMsg implements [grpc.ServerStream].
func (a *admittedStream) SendMsg(m any) error {
	if a.of.Right(a.token) {
		return a.ServerStream.SendMsg(m)
	}
	return status.Error(codes.Unauthenticated, "the token is no longer the right one")
}

// connKey is the key of a connection in the context of its requests.
type connKey struct{}

// withConn adds a connection to the context of its requests.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// marked tells the Marker of a connection about requests, and adds the state of TLS to them. The
// package net/http finds that state only in a connection that is TLS itself.
func marked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(connKey{}).(net.Conn)
		if below, ok := conn.(*split.Conn); ok {
			if secure, ok := below.NetConn().(*tls.Conn); ok {
				state := secure.ConnectionState()
				r.TLS = &state
			}
		}
		if mark, _ := connections.Below(conn); mark != nil {
			mark.Begin()
			defer mark.Done()
			m := &marking{ResponseWriter: w, mark: mark}
			defer m.end()
			w, r = m, r.WithContext(context.WithValue(r.Context(), markingKey{}, m))
		}
		next.ServeHTTP(w, r)
	})
}

// marking tells the Marker about each part of a long answer: an open page must not seem silent.
type marking struct {
	http.ResponseWriter

	mark     connections.Marker
	admitted bool // the request has credentials, or needs none
}

// markingKey is the key of a marking in the context of its request.
type markingKey struct{}

// noteAdmitted notes that a request has credentials, or needs none.
func noteAdmitted(r *http.Request) {
	if m, ok := r.Context().Value(markingKey{}).(*marking); ok {
		m.admitted = true
	}
}

// end notes the answer. An answer to a stranger does not protect the connection from new ones, else
// strangers would keep operators out. The token must not be compared here: a connection that lives
// would tell that a guess is right.
func (m *marking) end() {
	if m.admitted {
		m.mark.Answered()
	}
}

// FlushError is for [http.ResponseController].
func (m *marking) FlushError() error {
	err := http.NewResponseController(m.ResponseWriter).Flush()
	if err == nil {
		m.mark.Answered()
	}
	return err
}

// Unwrap is for [http.ResponseController].
func (m *marking) Unwrap() http.ResponseWriter { return m.ResponseWriter }
