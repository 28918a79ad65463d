package laneserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/internal/lane"
)

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

// peer is a client that sends single frames.
type peer struct {
	net.Conn
	*http2.Framer
}

// dialPeer connects with the preface and SETTINGS.
func dialPeer(t *testing.T, address string) *peer {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	p := &peer{c, http2.NewFramer(c, c)}
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	p.must(t, p.WriteSettings())
	return p
}

func (p *peer) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check asks for the health on stream 1.
func (p *peer) check(t *testing.T) {
	t.Helper()
	var block bytes.Buffer
	code := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", "/grpc.health.v1.Health/Check"},
		{":authority", "weir"},
		{"content-type", "application/grpc"},
	} {
		p.must(t, code.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
	}
	p.must(t, p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}))
	p.must(t, p.WriteData(1, true, make([]byte, 5)))
}

// await reads up to a frame that the function wants.
func (p *peer) await(t *testing.T, want func(http2.Frame) bool) {
	t.Helper()
	for {
		f, err := p.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
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
			for range 20 {
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
			f := serve(t, listenTCP(t), func(_ *Options, o *lane.Options) { o.PingInterval = 1 })
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

func TestAConnectionOnItsWayToAnotherServerIsLeftAlone(t *testing.T) {
	l, err := lane.New(lane.Options{Path: method, MaxMessage: 1, HandOver: true})
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Lane: l, Logger: slog.New(slog.DiscardHandler), Handler: func(*Conn) Handler { return new(echo) }})
	listener := listenTCP(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	p := dialPeer(t, listener.Addr().String())
	p.check(t)
	onItsWay := func() bool { // nobody accepts it
		for _, c := range s.all() {
			c.mu.Lock()
			handed := c.handed
			c.mu.Unlock()
			if handed {
				return true
			}
		}
		return false
	}
	for !onItsWay() {
		time.Sleep(time.Millisecond)
	}
	c := s.all()[0]
	c.tick()
	c.shutdown()
	p.must(t, s.Others().Close())
	settings := 0 // frames with the flag: the other server would send the acknowledgement
	p.await(t, func(f http2.Frame) bool {
		if f.Header().Flags.Has(http2.FlagSettingsAck) && f.Header().Type == http2.FrameSettings {
			settings++
		}
		g, ok := f.(*http2.GoAwayFrame)
		if ok && g.LastStreamID != 0 {
			t.Errorf("got GOAWAY with stream %d, want 0: nobody has the request", g.LastStreamID)
		}
		return ok
	})
	if settings > 1 { // one when the request came alone
		t.Errorf("got %d acknowledgements of one SETTINGS", settings)
	}
	if _, err := p.ReadFrame(); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) { // bytes of ours came after the close
		t.Errorf("got %v, want the end of the connection", err)
	}
	s.GracefulStop()
	p.must(t, <-served)
}
