package laneserver

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/testing/certtest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/wire"
)

// method is the method of the lane in these tests. A response repeats the request.
const method = "/test.Echo/Echo"

// echo is a Handler that answers with the request. Requests that begin with "later" wait for
// release.
type echo struct {
	conn    *Conn
	release <-chan struct{} // nil: later is at once, in another goroutine
	gone    *atomic.Int64
}

func (e *echo) Answer(call *lane.Call, message, dst []byte) ([]byte, lane.Reply) {
	text := string(message)
	switch stem := text[min(len(text), 2):min(len(text), 7)]; stem { // behind the field
	case "later":
		stream := call.Stream
		e.conn.Keep(len(text))
		go func() {
			if e.release != nil {
				<-e.release
			}
			e.conn.Finish(Finished{Stream: stream, Response: []byte(text), Kept: len(text)})
		}()
		return dst, lane.Reply{Later: true}
	case "wrong":
		return dst, lane.Reply{Code: uint32(codes.InvalidArgument), Message: "it is wrong"}
	}
	return append(dst, message...), lane.Reply{}
}

func (e *echo) Cancel(uint32) { e.gone.Add(1) }

func (e *echo) Received() {}

// fixture is a Server beside a gRPC server with a health service.
type fixture struct {
	*Server
	address string
	network string
	secure  credentials.TransportCredentials // of clients
	release chan struct{}
	gone    atomic.Int64
	others  *grpc.Server
	health  *health.Server
}

// same answers with the request.
func same() grpc.MethodHandler {
	return func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		m := new(wrapperspb.StringValue)
		return m, dec(m)
	}
}

// echoStream sends each message back, and the metadata x-echo.
func echoStream(_ any, stream grpc.ServerStream) error {
	in, _ := metadata.FromIncomingContext(stream.Context())
	stream.SetTrailer(metadata.Pairs("x-end", "of stream"))
	err := stream.SendHeader(metadata.MD{"x-echo": in["x-echo"], "x-echo-bin": in["x-echo-bin"]})
	m := new(wrapperspb.StringValue)
	for err == nil {
		if err = stream.RecvMsg(m); err == nil {
			err = stream.SendMsg(m)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// serve serves on a listener until the test ends.
func serve(t *testing.T, l net.Listener, change func(*Options)) *fixture {
	t.Helper()
	f := &fixture{address: l.Addr().String(), network: l.Addr().Network(), release: make(chan struct{}), secure: insecure.NewCredentials()}
	o := Options{
		Logger:  slog.New(slog.DiscardHandler),
		Handler: func(c *Conn) Handler { return &echo{conn: c, release: f.release, gone: &f.gone} },
	}
	if change != nil {
		change(&o)
	}
	var err error
	if o.Lane, err = lane.New(lane.Options{Path: method, MaxMessage: 64 << 10}); err != nil {
		t.Fatal(err)
	}
	f.Server = New(o)
	f.others = grpc.NewServer(grpc.MaxHeaderListSize(16<<10), grpc.MaxConcurrentStreams(1024),
		grpc.InitialWindowSize(64<<10), grpc.InitialConnWindowSize(1<<20))
	h := health.NewServer()
	f.health = h
	h.SetServingStatus("echo", healthgrpc.HealthCheckResponse_SERVING)
	healthgrpc.RegisterHealthServer(f.others, h)
	f.others.RegisterService(&grpc.ServiceDesc{ // both servers know the method
		ServiceName: "test.Echo", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: same()}, {MethodName: "Other", Handler: same()}},
		Streams: []grpc.StreamDesc{{StreamName: "Stream", Handler: echoStream, ClientStreams: true, ServerStreams: true}},
	}, nil)
	served := make(chan error, 2)
	go func() { served <- f.Serve(l) }()
	go func() { served <- f.others.Serve(f.Others()) }()
	t.Cleanup(func() {
		f.Stop()
		f.others.Stop()
		f.GracefulStop()
		for range 2 {
			if err := <-served; err != nil {
				t.Errorf("serve: got %v, want nil", err)
			}
		}
	})
	return f
}

func (f *fixture) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	target := "passthrough:///" + f.address
	if f.network == "unix" {
		target = "unix://" + f.address
	}
	conn := must.Get(grpc.NewClient(target, grpc.WithTransportCredentials(f.secure)))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask sends a text and returns the answer.
func ask(ctx context.Context, conn *grpc.ClientConn, text string) (string, error) {
	out := new(wrapperspb.StringValue)
	err := conn.Invoke(ctx, method, wrapperspb.String(text), out)
	return out.GetValue(), err
}

func listenTCP(t *testing.T) net.Listener {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	return l
}

// plain hides the socket below a connection, as on a system without raw sockets.
type plain struct{ net.Listener }

type plainConn struct{ net.Conn }

func (p plain) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return plainConn{c}, nil
}

// eachSocket runs a test over every kind of socket.
func eachSocket(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Run("TCP", func(t *testing.T) { test(t, serve(t, listenTCP(t), nil)) })
	t.Run("Unix", func(t *testing.T) {
		l := must.Get(net.Listen("unix", filepath.Join(t.TempDir(), "s")))(t)
		test(t, serve(t, l, nil))
	})
	t.Run("net.Conn", func(t *testing.T) { test(t, serve(t, plain{listenTCP(t)}, nil)) })
	t.Run("TLS", func(t *testing.T) {
		server, client := certificates(t)
		f := serve(t, listenTCP(t), func(o *Options) {
			o.Secure = wire.NewSecure(server, o.Logger)
		})
		f.secure = credentials.NewTLS(client)
		test(t, f)
	})
}

// certificates returns settings of a server and of its clients.
func certificates(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	authority := certtest.New(t, "ca")
	return &tls.Config{Certificates: []tls.Certificate{authority.Issue(t, "localhost").TLS(t)}},
		&tls.Config{RootCAs: authority.Pool, ServerName: "localhost"}
}
