package wire

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/weirproxy/weir/internal/testing/must"
)

// marks is a listener whose connections write down the reports of their server.
type marks struct {
	net.Listener
	mu    sync.Mutex // guards calls
	calls string
}

type markedConn struct {
	net.Conn
	of *marks
}

func (m *marks) Accept() (net.Conn, error) {
	c, err := m.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &markedConn{c, m}, nil
}

func (m *marks) note(letter string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls += letter
}

func (m *marks) take() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	calls := m.calls
	m.calls = ""
	return calls
}

func (c *markedConn) Begin()    { c.of.note("b") }
func (c *markedConn) Answered() { c.of.note("a") }
func (c *markedConn) Done()     { c.of.note("d") }

// grpcFixture is a GRPC with a unary method and a method with streams, and its client.
type grpcFixture struct {
	*GRPC
	marks  *marks
	pipe   *bufconn.Listener
	client *grpc.ClientConn
	handle func(ctx context.Context) error // of both methods
	list   func() proto.Message            // of a method that lists
	admit  func() (stranger bool, err error)
}

// boom panics.
func boom(none []error) error { return none[0] }

func startGRPC(t *testing.T) *grpcFixture {
	t.Helper()
	f := &grpcFixture{pipe: bufconn.Listen(1 << 16), handle: func(context.Context) error { return nil }, admit: func() (bool, error) { return false, nil }}
	f.marks = &marks{Listener: f.pipe}
	f.GRPC = NewGRPC(GRPCOptions{
		Codec: NewCodec(), MaxMessage: 1 << 10, MaxStreams: 10,
		Admit: func(_ context.Context, method string) (bool, error) {
			if !strings.HasPrefix(method, "/test.Service/") {
				t.Errorf("a call of %q", method)
			}
			return f.admit()
		},
		Recovered: func(err *error) {
			if v := recover(); v != nil {
				*err = status.Error(codes.Internal, fmt.Sprint(v))
			}
		},
	})
	f.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Service", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Do", Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			if err := dec(new(emptypb.Empty)); err != nil {
				return nil, err
			}
			return new(emptypb.Empty), f.handle(ctx)
		}}, {MethodName: "ListAll", Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			if err := dec(new(emptypb.Empty)); err != nil {
				return nil, err
			}
			return f.list(), nil
		}}},
		Streams: []grpc.StreamDesc{{StreamName: "Stay", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			return f.handle(s.Context())
		}}},
	}, nil)
	served := make(chan error, 1)
	go func() { served <- f.Serve(f.marks) }()
	var err error
	f.client, err = grpc.NewClient("passthrough:///weir", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return f.pipe.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = f.client.Close()
		f.Stop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return f
}

// do makes a unary call.
func (f *grpcFixture) do(t *testing.T, options ...grpc.CallOption) error {
	t.Helper()
	return f.client.Invoke(t.Context(), "/test.Service/Do", new(emptypb.Empty), new(emptypb.Empty), options...)
}

// stay begins a stream, and returns its end.
func (f *grpcFixture) stay(t *testing.T, options ...grpc.CallOption) func() error {
	t.Helper()
	s, err := f.client.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Service/Stay", options...)
	if err != nil {
		t.Fatal(err)
	}
	return func() error { return s.RecvMsg(new(emptypb.Empty)) }
}

func TestAPanicOfAHandlerIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startGRPC(t)
		f.handle = func(context.Context) error { return boom(nil) }
		if err := f.do(t); status.Code(err) != codes.Internal {
			t.Errorf("a unary call: got %v, want INTERNAL", err)
		}
		if err := f.stay(t)(); status.Code(err) != codes.Internal {
			t.Errorf("a stream: got %v, want INTERNAL", err)
		}
	})
}

func TestCompressedMessagesAreRefusedBeforeTheyAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startGRPC(t)
		f.handle = func(context.Context) error { t.Error("the handler was called"); return nil }
		packed := grpc.UseCompressor(gzip.Name) // registers gzip, as the exporter of traces does
		for name, err := range map[string]error{"unary": f.do(t, packed), "stream": f.stay(t, packed)()} {
			if status.Code(err) != codes.Unimplemented {
				t.Errorf("%s: got %v, want UNIMPLEMENTED", name, err)
			}
		}
	})
}

// The bound of connections has no other way to see which of them are busy.
func TestCallsAreReportedToTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startGRPC(t)
		release := make(chan struct{})
		f.handle = func(ctx context.Context) error {
			CallerOf(ctx).Continues()
			<-release
			return nil
		}
		first, second := f.stay(t), f.stay(t)
		synctest.Wait()
		if got := f.marks.take(); got != "baa" {
			t.Errorf("two streams: got %q, want one begin and two answers that go on", got)
		}
		close(release)
		_, _ = first(), second()
		synctest.Wait()
		if got := f.marks.take(); got != "aad" {
			t.Errorf("their ends: got %q, want two answers and one end", got)
		}
		f.handle = func(context.Context) error { return nil }
		f.admit = func() (bool, error) { return true, nil }
		must.Do(t, f.do(t))
		synctest.Wait()
		if got := f.marks.take(); got != "bd" {
			t.Errorf("a call of a stranger: got %q, want no answer", got)
		}
		f.admit = func() (bool, error) { return true, status.Error(codes.Unauthenticated, "who?") }
		for name, err := range map[string]error{"unary": f.do(t), "stream": f.stay(t)()} {
			if status.Code(err) != codes.Unauthenticated {
				t.Errorf("a %s call that is refused: got %v", name, err)
			}
		}
		synctest.Wait()
		if got := f.marks.take(); got != "bdbd" {
			t.Errorf("refused calls: got %q, want no answers", got)
		}
		f.admit = func() (bool, error) { return false, nil }
		must.Do(t, f.do(t))
		synctest.Wait()
		if got := f.marks.take(); got != "bad" {
			t.Errorf("a call with credentials: got %q", got)
		}
	})
	CallerOf(t.Context()).Continues() // not a call
}

func TestAStopEndsStreamsAndAnswersCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startGRPC(t)
		release := make(chan struct{})
		f.handle = func(context.Context) error { <-release; return nil }
		end, answer := f.stay(t), make(chan error)
		go func() { answer <- f.do(t) }()
		synctest.Wait()
		stopped := make(chan struct{})
		go func() { f.GracefulStop(); close(stopped) }()
		if err := end(); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream: got %v, want UNAVAILABLE", err)
		}
		close(release)
		if err := <-answer; err != nil {
			t.Errorf("the call: %v", err)
		}
		<-stopped
	})
}

// The server takes the deadline back when it has the first frame with its payload. A part of the
// frame must not count.
func TestADrainWaitsASecondForTheWholeFirstFrame(t *testing.T) {
	const settings = "\x00\x00\x06\x04\x00\x00\x00\x00\x00" // with 6 bytes behind
	for name, test := range map[string]struct {
		sent string
		ends bool
	}{
		"nothing":        {"", true},
		"a preface":      {http2.ClientPreface, true},
		"half a head":    {http2.ClientPreface + settings[:5], true},
		"a head":         {http2.ClientPreface + settings, true},
		"half a payload": {http2.ClientPreface + settings + "\x00\x03", true},
		"a frame":        {http2.ClientPreface + settings + "\x00\x03\x00\x00\x00\x01", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startGRPC(t)
				conn := must.Get(f.pipe.DialContext(t.Context()))(t)
				defer conn.Close()
				ended := make(chan struct{})
				go func() { _, _ = io.Copy(io.Discard, conn); close(ended) }()
				must.Get(io.WriteString(conn, test.sent))(t)
				synctest.Wait()
				f.greetings.drain(greetTime)
				time.Sleep(greetTime - 1)
				select {
				case <-ended:
					t.Error("the connection ended early")
				default:
				}
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				select {
				case <-ended:
					if !test.ends {
						t.Error("the connection ended")
					}
				default:
					if test.ends {
						t.Errorf("after %v: the connection goes on", greetTime)
					}
				}
			})
		})
	}
}

// A server may accept a connection just before it closes its listener.
func TestAConnectionThatComesDuringADrainHasASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startGRPC(t)
		f.greetings.drain(greetTime)
		conn := must.Get(f.pipe.DialContext(t.Context()))(t)
		defer conn.Close()
		begun := time.Now()
		if _, err := io.Copy(io.Discard, conn); err != nil || time.Since(begun) != greetTime {
			t.Errorf("the connection ended with %v after %v, want %v", err, time.Since(begun), greetTime)
		}
	})
}

func BenchmarkRequest(b *testing.B) {
	bound := NewConnections(ConnectionOptions{Max: 10, Logger: slog.New(slog.DiscardHandler)})
	client, server := net.Pipe()
	defer client.Close()
	c := bound.admit(server)
	defer c.Close()
	for b.Loop() {
		c.Begin()
		c.Answered()
		c.Done()
	}
}
