package lane

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// loop moves the bytes of one connection between a client, the machine, and a gRPC server behind it.
type loop struct {
	mu    sync.Mutex // guards the rest
	front net.Conn
	conn  *Conn
	back  *Back
	to    net.Conn // the gRPC server; nil: not connected
	dial  func() net.Conn
	done  sync.WaitGroup
}

// run serves one connection until it ends.
func (l *loop) run() {
	l.mu.Lock()
	l.writeLocked()
	l.mu.Unlock()
	buffer := make([]byte, 32<<10)
	for {
		n, err := l.front.Read(buffer)
		l.mu.Lock()
		if err == nil {
			err = l.conn.Receive(buffer[:n], time.Now().UnixNano())
		}
		l.writeLocked()
		if err != nil || l.conn.Finished() {
			break
		}
		l.mu.Unlock()
	}
	l.conn.Close()
	l.writeLocked()
	_ = l.front.Close()
	if l.to != nil {
		_ = l.to.Close()
	}
	l.mu.Unlock()
	l.done.Wait()
}

func (l *loop) writeLocked() {
	for {
		front, back := l.conn.Output(), l.back.Output()
		if front == nil && back == nil {
			return
		}
		_, _ = l.front.Write(front)
		if back == nil {
			continue
		}
		if l.to == nil {
			l.to = l.dial()
			to := l.to
			l.done.Go(func() { l.read(to) })
		}
		_, _ = l.to.Write(back)
	}
}

// read takes the bytes of the gRPC server.
func (l *loop) read(from net.Conn) {
	buffer := make([]byte, 4<<10)
	for {
		n, err := from.Read(buffer)
		l.mu.Lock()
		if err == nil {
			err = l.back.Receive(buffer[:n], time.Now().UnixNano())
		}
		if err != nil {
			_ = from.Close()
			if l.to == from {
				l.to = nil
				l.back.Lost()
			}
		}
		l.writeLocked()
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// served is a lane with a gRPC server behind it, and a client in front of it.
type served struct {
	server *grpc.Server
	client *grpc.ClientConn
	mu     sync.Mutex
	loops  []*loop
}

// serve starts everything. The gRPC server has health checks, and a method that echoes a stream.
func serve(t *testing.T) *served {
	t.Helper()
	o := Options{MaxMessage: 1 << 20}
	s := &served{server: newServer(t, o)}
	l := newLane(t)
	inner := bufconn.Listen(1 << 16)
	outer := bufconn.Listen(1 << 16)
	var done sync.WaitGroup
	done.Go(func() { _ = s.server.Serve(inner) })
	done.Go(func() {
		for {
			front, err := outer.Accept()
			if err != nil {
				return
			}
			b := NewBack()
			one := &loop{front: front, back: b, conn: l.Open(time.Now().UnixNano(), echo{}, b, 0), dial: func() net.Conn {
				c, err := inner.Dial()
				if err != nil {
					t.Error(err)
				}
				return c
			}}
			b.Attach(one.conn)
			s.mu.Lock()
			s.loops = append(s.loops, one)
			s.mu.Unlock()
			done.Go(one.run)
		}
	})
	client, err := grpc.NewClient("passthrough:lane", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return outer.Dial() }))
	if err != nil {
		t.Fatal(err)
	}
	s.client = client
	t.Cleanup(func() {
		_ = client.Close()
		_ = outer.Close()
		s.server.Stop()
		done.Wait()
	})
	return s
}

// check calls the method of the lane.
func (s *served) check(ctx context.Context, message []byte, o ...grpc.CallOption) ([]byte, error) {
	var response []byte
	err := s.client.Invoke(ctx, testPath, &message, &response, append(o, grpc.ForceCodecV2(newRaw()))...)
	return response, err
}

func TestOtherMethodsGoToTheServerBehind(t *testing.T) {
	s := serve(t)
	ctx := t.Context()
	if got, err := s.check(ctx, []byte("first")); err != nil || string(got) != "first" {
		t.Fatalf("got %q, %v", got, err)
	}
	_, err := healthgrpc.NewHealthClient(s.client).Check(ctx, &healthgrpc.HealthCheckRequest{Service: "nobody"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("a health check of an unknown service: got %v, want NotFound", err)
	}
	var response []byte
	err = s.client.Invoke(ctx, "/test.Nothing/None", &response, &response, grpc.ForceCodecV2(newRaw()))
	if want := "unknown service test.Nothing"; status.Convert(err).Message() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if got, err := s.check(ctx, []byte("last")); err != nil || string(got) != "last" {
		t.Errorf("got %q, %v", got, err)
	}
	if len(s.loops) != 1 {
		t.Errorf("the client needed %d connections, want 1", len(s.loops))
	}
}

// Streams in both directions, with messages above all windows, run beside calls of the lane.
func TestStreamsOfAllSizesRunBesideTheLane(t *testing.T) {
	s := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			stream, err := s.client.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/test.Limits/Echo", grpc.ForceCodecV2(newRaw()))
			if err != nil {
				t.Error(err)
				return
			}
			for i := range 20 {
				sent := bytes.Repeat([]byte{byte(n)}, i*i*700)
				if err := stream.SendMsg(&sent); err != nil {
					t.Error(err)
					return
				}
				var got []byte
				if err := stream.RecvMsg(&got); err != nil || !bytes.Equal(got, sent) {
					t.Errorf("message %d: got %d bytes, %v, want %d", i, len(got), err, len(sent))
					return
				}
			}
			_ = stream.CloseSend()
			var got []byte
			if err := stream.RecvMsg(&got); !errors.Is(err, io.EOF) {
				t.Errorf("got %v, want the end", err)
			}
			if got := stream.Trailer().Get("x-end"); len(got) != 1 || got[0] != "of stream" {
				t.Errorf("got trailer %q", got)
			}
		})
	}
	for n := range 4 {
		all.Go(func() {
			for i := range 100 {
				message := strings.Repeat("m", (n*i)%300)
				if got, err := s.check(ctx, []byte(message)); err != nil || string(got) != message {
					t.Errorf("got %d bytes, %v, want %d", len(got), err, len(message))
				}
			}
		})
	}
	all.Wait()
	s.quiet(t)
}

// quiet waits until no stream is open on any connection, and compares the counts that are left.
func (s *served) quiet(t *testing.T) {
	t.Helper()
	for _, l := range s.loops {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			l.mu.Lock()
			open, behind := l.conn.Streams(), len(l.back.streams)
			if open == 0 && behind == 0 {
				checkCounts(t, l.conn)
				if o := l.conn.lane.options; l.conn.window+l.conn.consumed != o.ConnWindow {
					t.Errorf("%d bytes of the window are lost", o.ConnWindow-l.conn.window-l.conn.consumed)
				}
				l.mu.Unlock()
				break
			}
			l.mu.Unlock()
			if time.Now().After(end) {
				t.Errorf("%d streams are open, %d behind", open, behind)
				return
			}
		}
	}
}

func TestAForeignStreamEndsWhenItsClientLeaves(t *testing.T) {
	s := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := healthgrpc.NewHealthClient(s.client).Watch(ctx, &healthgrpc.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	s.quiet(t)
}

func TestForeignStreamsEndWithTheirServer(t *testing.T) {
	s := serve(t)
	stream, err := healthgrpc.NewHealthClient(s.client).Watch(t.Context(), &healthgrpc.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	l := s.loops[0]
	l.mu.Lock()
	_ = l.to.Close() // the connection breaks
	l.mu.Unlock()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want Unavailable", err)
	}
	if got, err := s.check(t.Context(), []byte("the lane goes on")); err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := healthgrpc.NewHealthClient(s.client).Check(t.Context(), &healthgrpc.HealthCheckRequest{}); err != nil {
		t.Errorf("the next foreign call: %v", err)
	}
	if len(s.loops) != 1 {
		t.Errorf("the client needed %d connections, want 1", len(s.loops))
	}
}

func TestADrainOfTheServerBehindDrainsTheClient(t *testing.T) {
	s := serve(t)
	if _, err := healthgrpc.NewHealthClient(s.client).Check(t.Context(), &healthgrpc.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	s.server.GracefulStop()
	l := s.loops[0]
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		begun, ended := l.conn.drain.begun != 0, l.conn.err != nil
		l.mu.Unlock()
		if begun && ended { // the client left, because no stream was open
			break
		}
		if time.Now().After(end) {
			t.Fatal("the client's connection is not drained")
		}
	}
}

func TestLargeMetadataPassesInBothDirections(t *testing.T) {
	s := serve(t)
	large := strings.Repeat("v", 9000)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-echo", large, "x-echo-bin", "\x00\x01")
	stream, err := s.client.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/test.Limits/Echo", grpc.ForceCodecV2(newRaw()))
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.CloseSend()
	header, err := stream.Header()
	if err != nil {
		t.Fatal(err)
	}
	if got := header.Get("x-echo"); len(got) != 1 || got[0] != large {
		t.Errorf("got %d values", len(got))
	}
	if got := header.Get("x-echo-bin"); len(got) != 1 || got[0] != "\x00\x01" {
		t.Errorf("got %q", got)
	}
}
