package admin

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of messages
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/admin/page"
	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/internal/wire"
)

// guard admits calls of gRPC. The page asks the same Tokens. Safe for concurrent use.
type guard struct {
	tokens *page.Tokens // nil: everybody
	logger *slog.Logger
	logged loglimit.Limiter
	panics func(value any) error

	ending  chan struct{} // closed when streams must end
	finish  func()        // closes ending, once
	closing context.Context
	close   context.CancelFunc // ends all connections of gRPC
}

func newGuard(o *Options) *guard {
	g := &guard{logger: o.Logger, panics: o.Service.Panicked, ending: make(chan struct{})}
	g.closing, g.close = context.WithCancel(context.Background())
	g.finish = sync.OnceFunc(func() { close(g.ending) })
	if o.Access.Token != nil {
		g.tokens = page.NewTokens(o.Access.Token)
	}
	return g
}

// guarded is a gRPC server whose services all stand behind a guard. An interceptor would come too
// late for unary methods: gRPC calls interceptors after it has read and decompressed the message.
type guarded struct {
	*grpc.Server
	guard *guard
}

// RegisterService implements [grpc.ServiceRegistrar].
func (g guarded) RegisterService(d *grpc.ServiceDesc, service any) {
	all := *d
	all.Methods, all.Streams = nil, nil
	for _, m := range d.Methods {
		handle, name := m.Handler, "/"+d.ServiceName+"/"+m.MethodName
		m.Handler = func(service any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (answer any, err error) {
			err = g.guard.call(ctx, name, func(string) error {
				answer, err = handle(service, ctx, dec, nil)
				return err
			})
			return answer, err
		}
		all.Methods = append(all.Methods, m)
	}
	for _, m := range d.Streams {
		handle, name := m.Handler, "/"+d.ServiceName+"/"+m.StreamName
		m.Handler = func(service any, stream grpc.ServerStream) error {
			return g.guard.call(stream.Context(), name, func(token string) error {
				return g.guard.untilEnd(func() error { return handle(service, &admitted{stream, g.guard, token}) })
			})
		}
		all.Streams = append(all.Streams, m)
	}
	g.Server.RegisterService(&all, service)
}

// call serves a call of a client that shows the right token, and notes the call on its connection.
// An answer to a stranger does not protect the connection from new ones. A panic becomes an error.
func (g *guard) call(ctx context.Context, method string, serve func(token string) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = g.panics(v)
		}
	}()
	conn := callerOf(ctx)
	conn.begin()
	defer conn.done()
	token, stranger, err := g.find(ctx, method)
	if err != nil {
		return err
	}
	if !stranger {
		defer conn.answered()
	}
	// gRPC accepts any compression that is registered in the process: the exporter of traces registers
	// gzip. A message of 4 KB may hold 4 MB.
	if stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string }); ok {
		if name := stream.RecvCompress(); name != "" && name != "identity" {
			return status.Errorf(codes.Unimplemented, "grpc-encoding %q: compressed requests are refused, send them without compression", name)
		}
	}
	return serve(token)
}

// untilEnd serves a stream until GracefulStop, even if the handler waits: gRPC then cancels the
// context of the stream, and the handler returns.
func (g *guard) untilEnd(serve func() error) error {
	served := make(chan error, 1)
	go func() {
		var err error
		defer func() {
			if v := recover(); v != nil {
				err = g.panics(v)
			}
			served <- err
		}()
		err = serve()
	}()
	select {
	case err := <-served:
		return err
	case <-g.ending:
		return status.Error(codes.Unavailable, "shutting down")
	}
}

// free reports whether a method needs no token. Health shows no secret, and probes of Kubernetes
// cannot send a token.
func free(method string) bool {
	return strings.HasPrefix(method, "/"+healthgrpc.Health_ServiceDesc.ServiceName+"/")
}

// find returns the right token that a call shows, or an error. A stranger shows none and needs none.
func (g *guard) find(ctx context.Context, method string) (token string, stranger bool, err error) {
	if g.tokens == nil {
		return "", false, nil
	}
	if free(method) {
		return "", true, nil
	}
	var client string
	if p, ok := peer.FromContext(ctx); ok {
		client = p.Addr.String()
	}
	var wait time.Duration
	for _, header := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		shown := page.Bearer(header)
		right, after := g.tokens.Check(client, shown)
		if right {
			return shown, false, nil
		}
		wait = max(wait, after)
	}
	if missed, due := g.logged.Due(time.Second); due {
		g.logger.LogAttrs(ctx, slog.LevelWarn, "an admin call without the right token was refused",
			slog.String("method", method), slog.Uint64("not_logged", missed), slog.String("client", client))
	}
	if wait > 0 {
		return "", true, status.Error(codes.ResourceExhausted, page.TooMany(wait))
	}
	return "", true, status.Error(codes.Unauthenticated, "the token is missing or wrong: send it as authorization: Bearer TOKEN (--token-file of the commands)")
}

// admitted is the stream of an admitted call. The stream ends when another token is the right one.
type admitted struct {
	grpc.ServerStream
	guard *guard
	token string // that the client has shown; "" where it needs none
}

// SendHeader implements [grpc.ServerStream].
func (a *admitted) SendHeader(m metadata.MD) error {
	a.goesOn()
	return a.ServerStream.SendHeader(m)
}

// SendMsg implements [grpc.ServerStream].
func (a *admitted) SendMsg(m any) error {
	if a.token != "" && !a.guard.tokens.Right(a.token) {
		return status.Error(codes.Unauthenticated, "the token is no longer the right one")
	}
	err := a.ServerStream.SendMsg(m)
	a.goesOn()
	return err
}

// goesOn notes that an answer goes on: else new connections would take the place of a client that
// watches.
func (a *admitted) goesOn() {
	if a.token != "" || a.guard.tokens == nil {
		callerOf(a.Context()).answered()
	}
}

// marking is the credentials of connections that TLS has secured already: each call finds the Marker
// of its connection.
type marking struct {
	credentials.TransportCredentials
	closing context.Context //nolint:containedctx // Close cancels it, which closes all connections
}

// Clone implements [credentials.TransportCredentials].
func (m marking) Clone() credentials.TransportCredentials { return m }

// caller is a connection of gRPC. All methods are safe for concurrent use, and do nothing for nil.
type caller struct {
	credentials.AuthInfo
	mark wire.Marker // nil: no listener bounds the connection

	mu   sync.Mutex // guards open
	open int        // calls
}

// ServerHandshake implements [credentials.TransportCredentials].
func (m marking) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := m.TransportCredentials.ServerHandshake(raw)
	mark := wire.MarkerOf(raw)
	stop := context.AfterFunc(m.closing, func() { _ = raw.Close() })
	return closedConn{conn, stop}, &caller{AuthInfo: info, mark: mark}, err
}

// closedConn is a connection that Close ends at once. gRPC itself waits for the preface of HTTP/2.
type closedConn struct {
	net.Conn
	stop func() bool
}

// Close implements [net.Conn].
func (c closedConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// callerOf returns the connection of a call; nil without one.
func callerOf(ctx context.Context) *caller {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	c, _ := p.AuthInfo.(*caller)
	return c
}

func (c *caller) begin() { c.change(1) }
func (c *caller) done()  { c.change(-1) }

// change counts the calls, and notes the first one and the end of the last one.
func (c *caller) change(n int) {
	if c == nil || c.mark == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open += n
	switch {
	case n > 0 && c.open == 1:
		c.mark.Begin()
	case c.open == 0:
		c.mark.Done()
	}
}

// answered notes an answer, or a part of one.
func (c *caller) answered() {
	if c != nil && c.mark != nil {
		c.mark.Answered()
	}
}

// codec is gRPC's codec for protobuf, and for messages that are encoded already.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// maxPooled is the largest message, in bytes, for which gRPC's pool has a buffer of a like size.
// The next size is 1 MiB.
const maxPooled = 32 << 10

// Marshal implements [encoding.CodecV2].
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case []byte:
		return mem.BufferSlice{mem.SliceBuffer(v)}, nil
	case proto.Message:
		if proto.Size(v) > maxPooled {
			data, err := proto.Marshal(v)
			return mem.BufferSlice{mem.SliceBuffer(data)}, err
		}
	}
	return c.CodecV2.Marshal(v)
}
