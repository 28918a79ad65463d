package lane

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

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
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
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

// The memory of a stream counts until both ends have ended it. A stream that the client resets
// counts until the server has seen the reset.
func TestTheMemoryOfStreamsBehindCounts(t *testing.T) {
	l := newLane(t)
	b := NewBack(func(path string) int { return len(path) << 10 })
	c := l.Open(start, nil, b, 0)
	b.Attach(c)
	held := func() int { // without the output
		b.Output()
		return b.Held()
	}
	if got := held(); got != 0 {
		t.Errorf("without streams: %d bytes", got)
	}
	begin := func(id uint32) { b.Begin(id, pairs(":path", "/a"), false) }
	const one = 2<<10 + backFieldBytes + backTextFactor*7
	begin(1)
	begin(3)
	b.Data(3, make([]byte, 10), false)
	if got, want := held(), 2*one+10*backDataFactor; got != want {
		t.Errorf("two streams: got %d bytes, want %d", got, want)
	}
	b.Reset(3, Cancel)
	if got, want := held(), 2*one+10*backDataFactor; got != want || b.ResetBytes() != one+10*backDataFactor {
		t.Errorf("after a reset: got %d bytes, %d of them reset; want %d", got, b.ResetBytes(), want)
	}
	b.Forget(b.ResetBytes())
	if got := held(); got != one {
		t.Errorf("when the server has seen it: got %d bytes, want %d", got, one)
	}
	for id := uint32(5); id < 5+2*2*backFree; id += 2 {
		begin(id)
		b.Reset(id, Cancel)
	}
	b.Forget(b.ResetBytes())
	if got := held(); got != one {
		t.Errorf("after many streams, one at a time: got %d bytes, want %d", got, one)
	}
	for id := uint32(1001); id < 1001+2*2*backFree; id += 2 {
		begin(id)
	}
	for id := uint32(1001); id < 1001+2*2*backFree; id += 2 {
		b.Reset(id, Cancel)
	}
	b.Forget(b.ResetBytes())
	if got, want := held(), one+(backFree+1)*backKept; got != want {
		t.Errorf("after many streams at once: got %d bytes, want the room that they leave: %d", got, want)
	}
	b.Lost()
	if got := held(); got != 0 {
		t.Errorf("after the end of the connection: %d bytes", got)
	}
}
