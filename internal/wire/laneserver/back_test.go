package laneserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/wire"
)

func TestAConnectionMayBeginWithAnotherMethod(t *testing.T) {
	eachSocket(t, func(t *testing.T, f *fixture) {
		h := healthgrpc.NewHealthClient(f.dial(t))
		for range 3 {
			got, err := h.Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: "echo"})
			if err != nil || got.GetStatus() != healthgrpc.HealthCheckResponse_SERVING {
				t.Fatalf("got %v, %v; want SERVING", got, err)
			}
		}
	})
}

func TestMethodsMixOnOneConnection(t *testing.T) {
	eachSocket(t, func(t *testing.T, f *fixture) {
		close(f.release)
		conn := f.dial(t)
		must.Get(ask(t.Context(), conn, "at once"))(t)
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
		watch := must.Get(healthgrpc.NewHealthClient(conn).Watch(watching, &healthgrpc.HealthCheckRequest{Service: "echo"}))(t)
		for _, want := range []healthgrpc.HealthCheckResponse_ServingStatus{healthgrpc.HealthCheckResponse_SERVING, healthgrpc.HealthCheckResponse_NOT_SERVING} {
			if got, err := watch.Recv(); err != nil || got.GetStatus() != want {
				t.Fatalf("got %v, %v; want %v", got, err, want)
			}
			f.health.SetServingStatus("echo", healthgrpc.HealthCheckResponse_NOT_SERVING)
		}
	})
}

// Streams in both directions, with messages above all windows and large metadata, run beside calls
// of the lane.
func TestStreamsOfAllSizesRunBesideTheLane(t *testing.T) {
	f := serve(t, listenTCP(t), nil)
	conn := f.dial(t)
	large := strings.Repeat("v", 9000)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-echo", large, "x-echo-bin", "\x00\x01")
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/test.Echo/Stream")
			if err != nil {
				t.Error(err)
				return
			}
			got := new(wrapperspb.StringValue)
			for i := range 20 {
				sent := strings.Repeat(string(rune('a'+n)), i*i*700)
				if err := stream.SendMsg(wrapperspb.String(sent)); err != nil {
					t.Error(err)
					return
				}
				if err := stream.RecvMsg(got); err != nil || got.GetValue() != sent {
					t.Errorf("message %d: got %d bytes, %v, want %d", i, len(got.GetValue()), err, len(sent))
					return
				}
			}
			_ = stream.CloseSend()
			if err := stream.RecvMsg(got); !errors.Is(err, io.EOF) {
				t.Errorf("got %v, want the end", err)
			}
			header, err := stream.Header()
			want := [][]string{{large}, {"\x00\x01"}, {"of stream"}}
			if found := [][]string{header["x-echo"], header["x-echo-bin"], stream.Trailer()["x-end"]}; err != nil || !reflect.DeepEqual(found, want) {
				t.Errorf("got the metadata %.100q, %v", found, err)
			}
		})
		all.Go(func() {
			for i := range 100 {
				text := strings.Repeat("m", (n*i)%300)
				if got, err := ask(t.Context(), conn, text); err != nil || got != text {
					t.Errorf("got %d bytes, %v, want %d", len(got), err, len(text))
				}
			}
		})
	}
	all.Wait()
}

// peer is a client that sends single frames.
type peer struct {
	net.Conn
	*http2.Framer
}

// dialPeer connects with the preface and SETTINGS.
func dialPeer(t *testing.T, address string) *peer {
	t.Helper()
	c := must.Get(net.Dial("tcp", address))(t)
	t.Cleanup(func() { _ = c.Close() })
	p := &peer{c, http2.NewFramer(c, c)}
	must.Get(io.WriteString(c, http2.ClientPreface))(t)
	p.must(t, p.WriteSettings())
	return p
}

func (p *peer) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// block returns the headers of a call.
func (p *peer) block(t *testing.T, path string) []byte {
	t.Helper()
	var block bytes.Buffer
	code := hpack.NewEncoder(&block)
	code.SetMaxDynamicTableSize(0)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", path},
		{":authority", "weir"},
		{"content-type", "application/grpc"},
	} {
		p.must(t, code.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
	}
	return block.Bytes()
}

// check asks for the health on stream 1.
func (p *peer) check(t *testing.T) {
	t.Helper()
	block := p.block(t, "/grpc.health.v1.Health/Check")
	p.must(t, p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true}))
	p.must(t, p.WriteData(1, true, make([]byte, 5)))
}

// await reads up to a frame that the function wants.
func (p *peer) await(t *testing.T, want func(http2.Frame) bool) {
	t.Helper()
	for {
		f := must.Get(p.ReadFrame())(t)
		if g, ok := f.(*http2.GoAwayFrame); ok && g.ErrCode != http2.ErrCodeNo {
			t.Fatalf("got GOAWAY %v %s", g.ErrCode, g.DebugData())
		}
		if want(f) {
			return
		}
	}
}

// A client may have an idle connection for hours before its first request.
func TestAFirstRequestForAnotherMethodIsAnsweredBehindManyFrames(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, f *fixture, p *peer){
		"PINGs": func(t *testing.T, _ *fixture, p *peer) {
			for range 3 {
				p.must(t, p.WritePing(false, [8]byte{}))
				p.await(t, func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
			}
		},
		"many bytes": func(t *testing.T, _ *fixture, p *peer) {
			for range 20 {
				p.must(t, p.WriteRawFrame(0xfa, 0, 0, make([]byte, 1000)))
			}
			p.must(t, p.WriteSettings())
			p.await(t, func(f http2.Frame) bool { return f.Header().Flags.Has(http2.FlagSettingsAck) })
		},
		"a GOAWAY of the server": func(t *testing.T, f *fixture, p *peer) {
			p.await(t, func(f http2.Frame) bool { return f.Header().Flags.Has(http2.FlagSettingsAck) })
			f.all()[0].shutdown()
			p.await(t, func(f http2.Frame) bool { return f.Header().Type == http2.FrameGoAway })
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, listenTCP(t), nil)
			p := dialPeer(t, f.address)
			before(t, f, p)
			p.check(t)
			p.await(t, func(f http2.Frame) bool {
				h, ok := f.(*http2.HeadersFrame)
				return ok && h.StreamEnded()
			})
		})
	}
}

// counted returns a server with a bound of bytes. A stream of another method counts so many.
func counted(t *testing.T, bytes int) (*fixture, *wire.Bytes) {
	t.Helper()
	b := wire.NewBytes(1<<20, slog.New(slog.DiscardHandler))
	return serve(t, listenTCP(t), func(o *Options) {
		o.Bytes, o.Weigh = b, func(string) int { return bytes }
	}), b
}

func TestStreamsOfOtherMethodsCountUntilTheirEnd(t *testing.T) {
	const each = 100 << 10
	f, b := counted(t, each)
	ctx, cancel := context.WithCancel(t.Context())
	h := healthgrpc.NewHealthClient(f.dial(t))
	for range 3 {
		w := must.Get(h.Watch(ctx, &healthgrpc.HealthCheckRequest{Service: "echo"}))(t)
		must.Get(w.Recv())(t)
	}
	if got := b.Stats(); got.Bytes < 3*each || got.Bytes > 3*each+each/2 || got.Streams != 3 {
		t.Errorf("with 3 streams: got %+v", got)
	}
	cancel()
	for b.Stats().Bytes > 0 { // when the gRPC server has read the resets
		time.Sleep(time.Millisecond)
	}
	if _, err := h.Check(t.Context(), new(healthgrpc.HealthCheckRequest)); err != nil {
		t.Error(err)
	}
	for b.Stats().Bytes > 0 {
		time.Sleep(time.Millisecond)
	}
}

func TestStreamsOfOtherMethodsAreRefusedWhenCrowded(t *testing.T) {
	f, b := counted(t, 100<<10)
	h := healthgrpc.NewHealthClient(f.dial(t))
	for range 8 {
		w := must.Get(h.Watch(t.Context(), &healthgrpc.HealthCheckRequest{Service: "echo"}))(t)
		must.Get(w.Recv())(t)
	}
	_, err := h.Check(t.Context(), new(healthgrpc.HealthCheckRequest))
	if status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != wire.TextCrowded {
		t.Errorf("got %v, want %s", err, wire.TextCrowded)
	}
	if got := b.Stats(); got.Refused != 1 || got.Ended["held_most"] != 0 {
		t.Errorf("got %+v, want one refusal and no connection ended", got)
	}
	if _, err := healthgrpc.NewHealthClient(f.dial(t)).Check(t.Context(), new(healthgrpc.HealthCheckRequest)); err != nil {
		t.Errorf("another client: %v", err)
	}
}

// A client opens and resets many streams at once. The bytes count until the gRPC server has seen
// the frames.
func TestResetStreamsOfOtherMethodsEndNothingElse(t *testing.T) {
	f, b := counted(t, 1<<10)
	p := dialPeer(t, f.address)
	block := bytes.Clone(p.block(t, "/grpc.health.v1.Health/Watch"))
	for id := uint32(1); id < 400; id += 2 {
		p.must(t, p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true}))
		p.must(t, p.WriteRSTStream(id, http2.ErrCodeCancel))
	}
	p.must(t, p.WritePing(false, [8]byte{}))
	p.await(t, func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
	for b.Stats().Bytes > 0 {
		time.Sleep(time.Millisecond)
	}
	if got := b.Stats().Ended; got["held_most"]+got["bad_frames"] != 0 {
		t.Errorf("ended: got %v", got)
	}
}

// A pipe to the gRPC server ends when it has no stream for some time. The next stream begins
// another one.
func TestAPipeWithoutStreamsEnds(t *testing.T) {
	f := serve(t, listenTCP(t), nil)
	h := healthgrpc.NewHealthClient(f.dial(t))
	for range 2 {
		must.Get(h.Check(t.Context(), new(healthgrpc.HealthCheckRequest)))(t)
		c := f.all()[0]
		c.mu.Lock()
		if c.back.pipe == nil {
			t.Error("there is no pipe")
		}
		c.back.used -= int64(2 * backIdle)
		c.mu.Unlock()
		c.tick()
		c.mu.Lock()
		if c.back.pipe != nil {
			t.Error("the pipe goes on")
		}
		c.mu.Unlock()
	}
}

func TestWithoutAServerOtherMethodsAreRefused(t *testing.T) {
	f := serve(t, listenTCP(t), nil)
	if _, err := healthgrpc.NewHealthClient(f.dial(t)).Check(t.Context(), new(healthgrpc.HealthCheckRequest)); err != nil { // the server serves
		t.Fatal(err)
	}
	f.others.Stop()
	p := dialPeer(t, f.address)
	p.check(t)
	p.await(t, func(f http2.Frame) bool {
		r, ok := f.(*http2.RSTStreamFrame)
		return ok && r.ErrCode == http2.ErrCodeRefusedStream
	})
}
