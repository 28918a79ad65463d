package wire

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/lane"
)

// HandshakeTimeout is the time that a client has for TLS and for its first frame.
const HandshakeTimeout = 10 * time.Second

// GRPCOptions is the options of NewGRPC. Codec, MaxMessage, MaxStreams and Recovered must be set.
type GRPCOptions struct {
	Secure      *Secure // TLS; nil: none
	Codec       encoding.CodecV2
	MaxMessage  int           // bytes of the largest message
	MaxStreams  int           // open streams of one connection
	Window      int           // bytes of all messages of a connection that a client may send ahead; 0: lane.ConnWindow
	MaxAge      time.Duration // at which a client must connect again, plus or minus a tenth; 0: no bound
	MaxAgeGrace time.Duration // from that age to the end of the connection; 0: no bound
	Workers     int           // goroutines that wait for calls; 0: each call has a new one
	Handshake   time.Duration // that a client has for its first frame; 0: HandshakeTimeout

	// Recovered turns a panic of a handler into an error, as a deferred function.
	Recovered func(err *error)
	// Admit returns an error for a call that the client may not make. stranger says that the client
	// has shown no credentials: an answer to a stranger does not protect its connection from new ones.
	// Nil: every client may make every call, and nobody is a stranger.
	Admit func(ctx context.Context, method string) (stranger bool, err error)
	// Stream wraps admitted calls with streams. Nil: nothing does.
	Stream grpc.StreamServerInterceptor
}

// GRPC is a server of grpc-go. The bounds are for each connection. The memory of all connections
// together has no bound. All methods are safe for concurrent use.
type GRPC struct {
	*grpc.Server
	options   GRPCOptions
	greetings greetings
	lists     *lists
	ending    chan struct{} // closed when streams must end
	end       func()        // closes ending, once
}

// NewGRPC returns a server without services. RegisterService guards the methods.
func NewGRPC(o GRPCOptions) *GRPC {
	g := &GRPC{options: o, lists: newLists(), ending: make(chan struct{})}
	g.end = sync.OnceFunc(func() { close(g.ending) })
	secure := insecure.NewCredentials()
	if o.Secure != nil {
		secure = o.Secure
	}
	streams := []grpc.StreamServerInterceptor{g.endStream, g.guardStream}
	if o.Stream != nil {
		streams = append(streams, o.Stream)
	}
	// A stats handler is not among the options: even an empty one costs 17 % of a call.
	g.Server = grpc.NewServer(
		grpc.Creds(&callers{secure}),
		grpc.ForceServerCodecV2(o.Codec),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: o.MaxAge, MaxConnectionAgeGrace: o.MaxAgeGrace, Time: lane.KeepaliveTime, Timeout: lane.KeepaliveTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: lane.PingInterval, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(o.MaxMessage),
		grpc.MaxHeaderListSize(lane.MaxHeaderList),
		grpc.MaxConcurrentStreams(uint32(o.MaxStreams)),
		grpc.ConnectionTimeout(cmp.Or(o.Handshake, HandshakeTimeout)),
		// Windows of a fixed size. By default they grow with the bandwidth, which takes pings too.
		grpc.InitialWindowSize(lane.StreamWindow),
		grpc.InitialConnWindowSize(int32(cmp.Or(o.Window, lane.ConnWindow))),
		grpc.NumStreamWorkers(uint32(o.Workers)),
		grpc.ChainStreamInterceptor(streams...),
	)
	return g
}

// Serve serves l until a stop, which makes the result nil, and closes l.
func (g *GRPC) Serve(l net.Listener) error {
	if err := g.Server.Serve(&greetedListener{l, &g.greetings}); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// EndStreams ends calls with streams now with UNAVAILABLE, also later ones: they would keep
// GracefulStop waiting.
func (g *GRPC) EndStreams() { g.end() }

// GracefulStop ends streams, and returns when the other calls are answered. Stop ends the wait.
func (g *GRPC) GracefulStop() {
	g.end()
	g.greetings.drain(greetTime)
	g.Server.GracefulStop()
}

// Stop closes all connections at once.
func (g *GRPC) Stop() {
	g.greetings.drain(0)
	g.Server.Stop()
}

// endStream ends a stream when EndStreams is called, even if the handler waits: gRPC then cancels
// the context of the stream, and the handler returns.
func (g *GRPC) endStream(
	service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler,
) error {
	handled := make(chan error, 1)
	go func() { handled <- g.handleStream(service, stream, handle) }()
	select {
	case err := <-handled:
		return err
	case <-g.ending:
		return status.Error(codes.Unavailable, "shutting down")
	}
}

func (g *GRPC) handleStream(service any, stream grpc.ServerStream, handle grpc.StreamHandler) (err error) {
	defer g.options.Recovered(&err)
	return handle(service, stream)
}

func (g *GRPC) admit(ctx context.Context, method string) (stranger bool, err error) {
	if g.options.Admit != nil {
		stranger, err = g.options.Admit(ctx, method)
	}
	if err == nil {
		err = refuseCompression(ctx)
	}
	return stranger, err
}

func (g *GRPC) guardStream(
	service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler,
) error {
	stranger := true
	c := CallerOf(stream.Context()).begin()
	defer func() { c.end(stranger) }()
	var err error
	if stranger, err = g.admit(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handle(service, stream)
}

// RegisterService implements [grpc.ServiceRegistrar], with a guard around each unary method. An
// interceptor would come too late: gRPC calls interceptors after it has read and decompressed the
// message.
func (g *GRPC) RegisterService(d *grpc.ServiceDesc, service any) {
	all := *d
	all.Methods = nil
	for _, m := range d.Methods {
		handle, path := m.Handler, "/"+d.ServiceName+"/"+m.MethodName
		m.Handler = func(
			service any, ctx context.Context, decode func(any) error, i grpc.UnaryServerInterceptor,
		) (response any, err error) {
			defer g.options.Recovered(&err)
			stranger := true
			c := CallerOf(ctx).begin()
			defer func() { c.end(stranger) }()
			if stranger, err = g.admit(ctx, path); err != nil {
				return nil, err
			}
			if !isList(m.MethodName) {
				return handle(service, ctx, decode, i)
			}
			return g.lists.handle(ctx, decode, func(decode func(any) error) (any, error) { return handle(service, ctx, decode, i) })
		}
		all.Methods = append(all.Methods, m)
	}
	g.Server.RegisterService(&all, service)
}

// refuseCompression returns an error for a call whose messages are compressed. gRPC accepts any
// compression that is registered in the process: the exporter of traces registers gzip. A message
// of 4 KB may hold 4 MB.
func refuseCompression(ctx context.Context) error {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
	if !ok {
		return nil
	}
	if name := stream.RecvCompress(); name != "" && name != "identity" {
		return status.Errorf(codes.Unimplemented, "grpc-encoding %q: compressed requests are refused, send them without compression", name)
	}
	return nil
}

type callers struct {
	credentials.TransportCredentials
}

type callerInfo struct {
	credentials.AuthInfo

	caller *Caller
}

func (c *callers) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return conn, callerInfo{info, &Caller{mark: MarkerOf(raw)}}, nil
}

func (c *callers) Clone() credentials.TransportCredentials {
	return &callers{c.TransportCredentials.Clone()}
}

// Caller is the client of a connection of a GRPC. A Caller reports calls to the bound of
// connections. A nil Caller does nothing. All methods are safe for concurrent use.
type Caller struct {
	mark Marker // nil: nothing bounds the connections

	mu   sync.Mutex // guards open
	open int        // calls
}

// CallerOf returns the client of a call, nil outside of a call.
func CallerOf(ctx context.Context) *Caller {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	info, _ := p.AuthInfo.(callerInfo)
	if info.caller == nil || info.caller.mark == nil {
		return nil
	}
	return info.caller
}

// Continues notes that an answer goes on: a client that watches is not silent, also before the
// answer ends.
func (c *Caller) Continues() {
	if c != nil {
		c.mark.Answered()
	}
}

func (c *Caller) begin() *Caller {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.open++; c.open == 1 {
			c.mark.Begin()
		}
	}
	return c
}

func (c *Caller) end(stranger bool) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !stranger {
		c.mark.Answered()
	}
	if c.open--; c.open == 0 {
		c.mark.Done()
	}
}
