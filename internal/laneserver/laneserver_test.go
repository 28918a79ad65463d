package laneserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/internal/certificates/certtest"
	"github.com/weirproxy/weir/internal/deptest"
	"github.com/weirproxy/weir/internal/lane"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/connections", "internal/lane", "internal/loglimit"},
		Never: []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/spf13", "flag"},
	})
}

// method is the method of the lane in these tests. A response repeats the request.
const method = "/test.Echo/Echo"

// echo is a Handler that answers with the request. Requests that begin with "later" wait for release.
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
			e.conn.Finish(stream, []byte(text), lane.Reply{}, len(text))
		}()
		return dst, lane.Reply{Later: true}
	case "wrong":
		return dst, lane.Reply{Code: uint32(codes.InvalidArgument), Message: "it is wrong"}
	}
	return append(dst, message...), lane.Reply{}
}

func (e *echo) Cancel(uint32) { e.gone.Add(1) }

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

// serve serves on a listener until the test ends.
func serve(t *testing.T, l net.Listener, change func(*Options, *lane.Options)) *fixture {
	t.Helper()
	f := &fixture{address: l.Addr().String(), network: l.Addr().Network(), release: make(chan struct{}), secure: insecure.NewCredentials()}
	machine := lane.Options{Path: method, MaxMessage: 64 << 10, HandOver: true, ConnWindow: 1 << 20}
	o := Options{
		Logger:  slog.New(slog.DiscardHandler),
		Handler: func(c *Conn) lane.Handler { return &echo{conn: c, release: f.release, gone: &f.gone} },
	}
	if change != nil {
		change(&o, &machine)
	}
	var err error
	if o.Lane, err = lane.New(machine); err != nil {
		t.Fatal(err)
	}
	f.Server = New(o)
	f.others = grpc.NewServer(grpc.MaxHeaderListSize(16<<10), grpc.MaxConcurrentStreams(1024),
		grpc.InitialWindowSize(64<<10), grpc.InitialConnWindowSize(1<<20), grpc.Creds(handedCredentials{insecure.NewCredentials()}))
	h := health.NewServer()
	f.health = h
	h.SetServingStatus("echo", healthgrpc.HealthCheckResponse_SERVING)
	healthgrpc.RegisterHealthServer(f.others, h)
	f.others.RegisterService(&grpc.ServiceDesc{ // both servers know the method
		ServiceName: "test.Echo", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: same()}, {MethodName: "Other", Handler: same()}},
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

// handedCredentials gives gRPC the information of a handshake before.
type handedCredentials struct {
	credentials.TransportCredentials
}

func (c handedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	handed, ok := raw.(*Handed)
	if !ok {
		return nil, nil, errors.New("not handed over")
	}
	if info, ok := handed.Info.(credentials.AuthInfo); ok {
		return raw, info, nil
	}
	return c.TransportCredentials.ServerHandshake(raw)
}

func (f *fixture) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	target := "passthrough:///" + f.address
	if f.network == "unix" {
		target = "unix://" + f.address
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(f.secure))
	if err != nil {
		t.Fatal(err)
	}
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		test(t, serve(t, l, nil))
	})
	t.Run("net.Conn", func(t *testing.T) { test(t, serve(t, plain{listenTCP(t)}, nil)) })
	t.Run("TLS", func(t *testing.T) {
		server, client := certificates(t)
		f := serve(t, listenTCP(t), func(o *Options, _ *lane.Options) {
			secure := credentials.NewTLS(server)
			o.Handshake = func(raw net.Conn) (net.Conn, any, error) { return secure.ServerHandshake(raw) }
		})
		f.secure = credentials.NewTLS(client)
		test(t, f)
	})
}

func TestCallsAreAnsweredAtOnceAndLater(t *testing.T) {
	eachSocket(t, func(t *testing.T, f *fixture) {
		close(f.release)
		conn := f.dial(t)
		var asking sync.WaitGroup
		for range 20 {
			for _, text := range []string{"at once", "later", "later", string(make([]byte, 20_000)), ""} {
				asking.Go(func() {
					if got, err := ask(t.Context(), conn, text); err != nil || got != text {
						t.Errorf("got %.20q, %v; want %.20q", got, err, text)
					}
				})
			}
			asking.Go(func() {
				if _, err := ask(t.Context(), conn, "wrong"); status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != "it is wrong" {
					t.Errorf("got %v, want INVALID_ARGUMENT", err)
				}
			})
		}
		asking.Wait()
	})
}

// A buffer that a connection keeps while another one has it would mix their answers.
func TestConnectionsDoNotShareABuffer(t *testing.T) {
	f := serve(t, listenTCP(t), nil)
	close(f.release)
	var asking sync.WaitGroup
	for n := range 20 {
		conn := f.dial(t)
		for _, stem := range []string{"later", "at once"} {
			asking.Go(func() {
				text := fmt.Sprintf("%s of connection %d", stem, n)
				for range 200 {
					if got, err := ask(t.Context(), conn, text); err != nil || got != text {
						t.Errorf("got %q, %v; want %q", got, err, text)
						return
					}
				}
			})
		}
	}
	asking.Wait()
}

func TestAConnectionThatBeginsWithAnotherMethodIsHandedOver(t *testing.T) {
	eachSocket(t, func(t *testing.T, f *fixture) {
		conn := f.dial(t)
		h := healthgrpc.NewHealthClient(conn)
		for range 3 {
			got, err := h.Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: "echo"})
			if err != nil || got.GetStatus() != healthgrpc.HealthCheckResponse_SERVING {
				t.Fatalf("got %v, %v; want SERVING", got, err)
			}
		}
		for len(f.all()) > 0 { // the goroutine that handed it over ends
			time.Sleep(time.Millisecond)
		}
	})
}

func TestMethodsMixOnOneConnection(t *testing.T) {
	eachSocket(t, func(t *testing.T, f *fixture) {
		close(f.release)
		conn := f.dial(t)
		if _, err := ask(t.Context(), conn, "at once"); err != nil {
			t.Fatal(err)
		}
		var asking sync.WaitGroup
		for range 20 {
			for _, text := range []string{"at once", "later"} {
				asking.Go(func() {
					if got, err := ask(t.Context(), conn, text); err != nil || got != text {
						t.Errorf("got %q, %v", got, err)
					}
				})
			}
			asking.Go(func() {
				if _, err := healthgrpc.NewHealthClient(conn).Check(t.Context(), &healthgrpc.HealthCheckRequest{}); err != nil {
					t.Error(err)
				}
			})
			asking.Go(func() {
				got := new(wrapperspb.StringValue)
				text := strings.Repeat("x", 50_000)
				if err := conn.Invoke(t.Context(), "/test.Echo/Other", wrapperspb.String(text), got); err != nil || got.GetValue() != text {
					t.Errorf("got %d bytes, %v", len(got.GetValue()), err)
				}
			})
		}
		asking.Wait()
		if got := f.all(); len(got) != 1 || got[0].Answered() < 41 {
			t.Errorf("connections: got %d, want 1 with all answers", len(got))
		}
		watching, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch, err := healthgrpc.NewHealthClient(conn).Watch(watching, &healthgrpc.HealthCheckRequest{Service: "echo"})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []healthgrpc.HealthCheckResponse_ServingStatus{healthgrpc.HealthCheckResponse_SERVING, healthgrpc.HealthCheckResponse_NOT_SERVING} {
			if got, err := watch.Recv(); err != nil || got.GetStatus() != want {
				t.Fatalf("got %v, %v; want %v", got, err, want)
			}
			f.health.SetServingStatus("echo", healthgrpc.HealthCheckResponse_NOT_SERVING)
		}
	})
}

// Answered returns the calls that were answered with OK.
func (c *Conn) Answered() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.Answered()
}

func TestADrainLosesNoCall(t *testing.T) {
	eachSocket(t, func(t *testing.T, f *fixture) {
		conn := f.dial(t)
		if _, err := ask(t.Context(), conn, "at once"); err != nil {
			t.Fatal(err)
		}
		answers := make(chan error, 100)
		for range cap(answers) {
			go func() { _, err := ask(t.Context(), conn, "later"); answers <- err }()
		}
		for open := 0; open < cap(answers); {
			open = 0
			for _, c := range f.all() {
				c.mu.Lock()
				open += c.machine.Streams()
				c.mu.Unlock()
			}
			time.Sleep(time.Millisecond)
		}
		stopped := make(chan struct{})
		go func() { f.GracefulStop(); close(stopped) }()
		<-f.stopped
		close(f.release)
		for range cap(answers) {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		<-stopped
		if c, err := net.Dial(f.network, f.address); err == nil {
			_ = c.Close()
			t.Error("the address still listens")
		}
	})
}

func TestStopEndsCallsUnderWay(t *testing.T) {
	eachSocket(t, func(t *testing.T, f *fixture) {
		conn := f.dial(t)
		failed := make(chan error)
		go func() { _, err := ask(t.Context(), conn, "later"); failed <- err }()
		for len(f.all()) == 0 || !f.all()[0].asked() {
			time.Sleep(time.Millisecond)
		}
		f.Stop()
		if err := <-failed; status.Code(err) != codes.Unavailable {
			t.Errorf("got %v, want UNAVAILABLE", err)
		}
		f.GracefulStop()
		if got := f.gone.Load(); got != 1 {
			t.Errorf("canceled calls: got %d, want 1", got)
		}
		close(f.release) // an answer after the end does nothing
	})
}

// asked reports whether the Handler has a call.
func (c *Conn) asked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept > 0
}

func TestAClientThatSpeaksNoHTTP2LosesItsConnection(t *testing.T) {
	f := serve(t, listenTCP(t), nil)
	c, err := net.Dial("tcp", f.address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Errorf("got %v, want the end of the connection", err)
	}
}

// certificates returns settings of a server and of its clients.
func certificates(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	authority := certtest.New(t, "ca")
	return &tls.Config{Certificates: []tls.Certificate{authority.Issue(t, "localhost").TLS(t)}},
		&tls.Config{RootCAs: authority.Pool, ServerName: "localhost"}
}
