package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	reflectiongrpc "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/testing/metricstest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/internal/wire"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func TestACompressedRequestIsRefused(t *testing.T) {
	onceForStores(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		packed := grpc.UseCompressor(gzip.Name) // registers gzip, as the exporter of traces does
		for name, call := range map[string]func() error{
			"ShouldRateLimit": func() error {
				_, err := f.client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: asks(descriptor("minute", "a"))}, packed)
				return err
			},
			"Check": func() error {
				_, err := healthgrpc.NewHealthClient(f.conn).Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: "x"}, packed)
				return err
			},
			"reflection": func() error {
				stream, err := reflectiongrpc.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context(), packed)
				if err == nil {
					_ = stream.Send(new(reflectiongrpc.ServerReflectionRequest)) // EOF when the server has answered already
					_, err = stream.Recv()
				}
				return err
			},
		} {
			if err := call(); status.Code(err) != codes.Unimplemented || !strings.Contains(status.Convert(err).Message(), `grpc-encoding "gzip"`) {
				t.Errorf("%s with gzip: got %v; want UNIMPLEMENTED that names gzip", name, err)
			}
		}
		f.ask(t, descriptor("minute", "a"))
	})
}

func TestHeadersOfARequestAreBounded(t *testing.T) {
	onceForStores(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		c := dialFrames(t, f.server.Serve, 1<<20)
		if err := c.call(1, false, slices.Repeat([]hpack.HeaderField{{Name: "a", Value: "b"}}, 60_000)...); err != nil {
			t.Log(err) // the server may hang up before the end
		}
		for {
			frame, err := c.ReadFrame()
			if err != nil {
				break // the connection has ended
			}
			if _, ok := frame.(*http2.RSTStreamFrame); ok {
				break
			}
		}
		if got := f.server.service.bytes.Stats().Streams; got > 1 {
			t.Errorf("streams: got %d", got)
		}
		c = dialFrames(t, f.server.Serve, 1<<20)
		must.Do(t, c.call(1, false, slices.Repeat([]hpack.HeaderField{{Name: "a", Value: strings.Repeat("b", 100)}}, 17<<10/100)...))
		if id, code := c.reset(t); id != 1 || code != http2.ErrCodeFrameSize {
			t.Errorf("17 KiB of headers: got stream %d, %v; want 1, FRAME_SIZE_ERROR", id, code)
		}
		f.ask(t, descriptor("minute", "a"))
	})
}

func TestStreamsOfAConnectionAreBounded(t *testing.T) {
	onceForStores(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, func(o *Options) { o.MaxConcurrentStreams = 10 })
		c := dialFrames(t, f.server.Serve, 1<<20)
		for id := uint32(1); id <= 21; id += 2 {
			must.Do(t, c.call(id, false))
		}
		if id, code := c.reset(t); id != 21 || code != http2.ErrCodeRefusedStream {
			t.Errorf("11 streams: got stream %d, %v; want 21, REFUSED_STREAM", id, code)
		}
		go c.drain()
		for id := uint32(23); id < 100; id += 2 { // the server has answered each, as the client does not know
			_ = c.call(id, false)
			synctest.Wait()
		}
		if got := f.server.service.bytes.Stats().Streams; got != 10 && f.server.lane != nil {
			t.Errorf("streams: got %d, want 10", got)
		}
		f.ask(t, descriptor("minute", "a"))
	})
}

// Each attack would make a server without the bound hold many times as much. An honest client
// beside is answered throughout.
func TestBytesInFlightStayBelowTheirBound(t *testing.T) {
	const (
		most        = 2 << 20
		connections = 20
		calls       = 60
	)
	body, request := message(make([]byte, 60<<10)), message(asking(200))
	for name, test := range map[string]struct {
		settings []http2.Setting
		silent   bool // does not read
		attack   func(c *frames, id uint32) error
	}{
		"messages_held_open": {nil, false, func(c *frames, id uint32) error {
			err := c.call(id, false)
			for at := 0; at < len(body)-1 && err == nil; at += 16 << 10 {
				err = c.WriteData(id, false, body[at:min(at+16<<10, len(body)-1)])
			}
			return err
		}},
		"streams_without_a_message": {nil, false, func(c *frames, id uint32) error { return c.call(id, false) }},
		"indexed_headers": {nil, false, func(c *frames, id uint32) error {
			return c.call(id, false, slices.Repeat([]hpack.HeaderField{{Name: "a", Value: "b"}}, 400)...)
		}},
		"answers_never_read": {nil, true, func(c *frames, id uint32) error {
			if err := c.call(id, false); err != nil {
				return err
			}
			return c.WriteData(id, true, request)
		}},
		"answers_without_a_window": {[]http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}}, false, func(c *frames, id uint32) error {
			if err := c.call(id, false); err != nil {
				return err
			}
			return c.WriteData(id, true, request)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, everything, func(o *Options) { o.MaxBytesInFlight = most })
				if f.server.lane == nil {
					t.Skip("gRPC's library has no bound over all connections")
				}
				f.ask(t, descriptor("nothing", "a")) // connects
				var clients []*frames
				for range connections {
					c := dialFrames(t, f.server.Serve, 64<<10, test.settings...)
					if !test.silent {
						go c.drain()
					}
					clients = append(clients, c)
				}
				for id := uint32(1); id < 2*calls; id += 2 {
					for _, c := range clients {
						must.Do(t, c.SetWriteDeadline(time.Now().Add(time.Millisecond)))
						_ = test.attack(c, id) // fails once the server has ended the connection, or does not read it
					}
					synctest.Wait()
					if got := f.server.service.bytes.Stats().Bytes; got > most {
						t.Fatalf("round %d: got %d bytes in flight, want at most %d", id, got, most)
					}
					f.ask(t, descriptor("nothing", "a"))
				}
				if got := metricstest.Gather(t, f.registry, "weir_in_flight")["weir_in_flight_max_bytes"]; got != most {
					t.Errorf("weir_in_flight_max_bytes: got %v", got)
				}
				for _, c := range clients {
					_ = c.Close()
				}
				synctest.Wait()
				if got := f.server.service.bytes.Stats(); got.Bytes != 0 || got.Streams != 0 {
					t.Errorf("when all clients have gone: got %+v, want nothing", got)
				}
			})
		})
	}
}

func TestAClientThatSendsNoMessageLosesItsConnection(t *testing.T) {
	onceForStores(t)
	for name, test := range map[string]struct {
		send func(c net.Conn) error
		want time.Duration
	}{
		"nothing":        {func(net.Conn) error { return nil }, wire.HandshakeTimeout},
		"half_a_preface": {func(c net.Conn) error { _, err := io.WriteString(c, http2.ClientPreface[:10]); return err }, wire.HandshakeTimeout},
		"HTTP/1": {func(c net.Conn) error {
			_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: weir\r\n\r\n")
			return err
		}, 0},
		"TLS": {func(c net.Conn) error {
			_, err := c.Write(append([]byte{0x16, 3, 1, 2, 0}, make([]byte, 200)...))
			return err
		}, 0},
		"headers_alone": {func(c net.Conn) error {
			client := &frames{Conn: c, Framer: http2.NewFramer(c, c)}
			client.code = hpack.NewEncoder(&client.text)
			_, err := io.WriteString(c, http2.ClientPreface)
			return errors.Join(err, client.WriteSettings(), client.call(1, false))
		}, lane.MessageTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, everything, nil)
				if f.server.lane == nil && test.want == lane.MessageTimeout {
					t.Skip("gRPC's library has no bound of that time")
				}
				l := bufconn.Listen(1 << 20)
				go func() { _ = f.server.Serve(l) }()
				conn := must.Get(l.DialContext(t.Context()))(t)
				defer conn.Close()
				began := time.Now()
				must.Do(t, test.send(conn))
				must.Do(t, conn.SetReadDeadline(began.Add(time.Hour)))
				_, err := io.Copy(io.Discard, conn)
				if took := time.Since(began); took < test.want || took > test.want+3*time.Second {
					t.Errorf("the connection ended after %v (%v), want %v", took, err, test.want)
				}
			})
		})
	}
}

func TestConnectionsThatTheLaneEndsAreCounted(t *testing.T) {
	onceForStores(t)
	for reason, test := range map[string]struct {
		attack func(c *frames) error
		after  time.Duration
	}{
		"protocol_error": {func(c *frames) error { return c.WriteRawFrame(http2.FramePing, 0, 1, make([]byte, 8)) }, 0},
		"bad_frames": {func(c *frames) (err error) {
			for range 4 {
				err = errors.Join(err, c.WritePing(false, [8]byte{}))
			}
			return err
		}, 0},
		"resets": {func(c *frames) (err error) { // an attack, or deadlines that end before the message is written
			for id := uint32(1); id < 1400 && err == nil; id += 2 {
				err = errors.Join(c.call(id, false), c.WriteRSTStream(id, http2.ErrCodeCancel))
			}
			return err
		}, 0},
		"slow_message": {func(c *frames) error { return c.call(1, false) }, lane.MessageTimeout + 2*time.Second},
		"silent":       {func(c *frames) error { return c.call(1, true) }, lane.KeepaliveTime + lane.KeepaliveTimeout + 2*time.Second},
		"unread_answers": {func(c *frames) (err error) {
			err = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			for id := uint32(1); id < 100 && err == nil; id += 2 {
				err = errors.Join(c.call(id, false), c.WriteData(id, true, message(asking(1000))))
			}
			return err
		}, time.Second},
	} {
		t.Run(reason, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, everything, func(o *Options) { o.MaxBytesInFlight = 1 << 30 })
				if f.server.lane == nil {
					t.Skip("gRPC's library counts no ends")
				}
				name := fmt.Sprintf("weir_in_flight_connections_ended_total{reason=%q}", reason)
				c := dialFrames(t, f.server.Serve, 1<<20)
				go c.drain()
				if err := test.attack(c); err != nil {
					t.Log(err) // the connection may have ended
				}
				time.Sleep(test.after)
				synctest.Wait()
				for series, n := range metricstest.Gather(t, f.registry, "weir_in_flight_connections_ended") {
					if want := map[bool]float64{true: 1}[series == name]; n != want {
						t.Errorf("%s: got %v, want %v", series, n, want)
					}
				}
				if log := f.logs.String(); !strings.Contains(log, "a connection was ended") || !strings.Contains(log, "reason="+reason) {
					t.Errorf("the log has no end of the connection: %s", log)
				}
			})
		})
	}
}

// waiting is a store that answers when it is told to.
type waiting struct {
	release chan struct{}
}

func (w *waiting) Take(ctx context.Context, _ []store.Charge, _ []algorithms.Decision) (bool, error) {
	select {
	case <-w.release:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// While the store is slow, decoded requests wait in memory. More of them wait for that memory, and
// are refused after [wire.BudgetWait].
func TestLargeRequestsThatWaitAreBounded(t *testing.T) {
	for _, test := range []struct {
		name     string
		slow     time.Duration
		answered bool // all requests are
	}{{"store_answers_in_time", time.Second / 2, true}, {"store_is_slower", 2 * wire.BudgetWait, false}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &waiting{release: make(chan struct{})}
				f := startOn(t, storetest.Of(w), everything, func(o *Options) { o.MaxBytesInFlight = 8 << 20 })
				answers := make(chan error)
				const all = 8
				for range all {
					go func() { answers <- f.send(t, asking(1000)) }()
				}
				synctest.Wait()
				bound := f.server.service.bytes
				if got := bound.Stats(); got.Bytes > 8<<20 || got.Bytes < 1<<20 {
					t.Errorf("got %d bytes in flight, want at least one request of a thousand descriptors", got.Bytes)
				}
				small := make(chan error)
				go func() { small <- f.send(t, asking(1)) }()
				time.AfterFunc(test.slow, func() { close(w.release) })
				if err := <-small; err != nil {
					t.Errorf("a small request beside them: got %v", err)
				}
				refused := 0
				for range all {
					switch err := <-answers; status.Code(err) {
					case codes.OK:
					case codes.ResourceExhausted:
						refused++
						if got := status.Convert(err).Message(); got != wire.TextCrowded {
							t.Errorf("got %q, want %q", got, wire.TextCrowded)
						}
					default:
						t.Errorf("got %v", err)
					}
				}
				synctest.Wait() // the server leaves a call after it has answered
				if now := bound.Stats(); (refused == 0) != test.answered || refused == all || now.Refused != uint64(refused) || now.Bytes != 0 {
					t.Errorf("refused: got %d of %d, %+v; want all answered %t, and nothing in flight", refused, all, now, test.answered)
				}
				if f.send(t, asking(1000)) != nil {
					t.Error("a large request alone was refused")
				}
			})
		})
	}
}

// A few descriptors of a rule with many limits take as much memory as many descriptors.
func TestRequestsWithManyChargesThatWaitAreBounded(t *testing.T) {
	onceForStores(t)
	var rules strings.Builder
	rules.WriteString("domain: edge\ndescriptors:\n- key: minute\n  rate_limits:\n")
	for i := range 40 {
		fmt.Fprintf(&rules, "  - {unit: hour, requests_per_unit: %d}\n", i+1)
	}
	synctest.Test(t, func(t *testing.T) {
		w := &waiting{release: make(chan struct{})}
		f := startOn(t, storetest.Of(w), rules.String(), func(o *Options) { o.MaxBytesInFlight = 8 << 20 })
		answers := make(chan error)
		const all = 8
		for range all {
			go func() { answers <- f.send(t, asking(100)) }()
		}
		synctest.Wait()
		if got := f.server.service.bytes.Stats(); got.Bytes < 1<<20 || got.Bytes > 8<<20 {
			t.Errorf("got %d bytes in flight, want at least 4000 charges, and not 32000", got.Bytes)
		}
		close(w.release)
		for range all {
			if err := <-answers; err != nil {
				t.Errorf("got %v", err)
			}
		}
		if err := f.send(t, asking(200)); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "more than 4096 charges") {
			t.Errorf("8000 charges: got %v, want INVALID_ARGUMENT", err)
		}
	})
}

func TestAConnectionWithMoreThanItsShareIsRefusedAndOthersAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, func(o *Options) { o.MaxBytesInFlight = 2 << 20 })
		if f.server.lane == nil {
			t.Skip("gRPC's library has no bound over all connections")
		}
		f.ask(t, descriptor("nothing", "a"))
		c := dialFrames(t, f.server.Serve, 1<<20)
		id := uint32(1)
		part := message(make([]byte, 60<<10))[:16<<10]
		for ; !f.server.service.bytes.Crowded(); id += 2 {
			must.Do(t, errors.Join(c.call(id, false), c.WriteData(id, false, part)))
			synctest.Wait()
		}
		must.Do(t, errors.Join(c.call(id, false), c.WriteData(id, true, message(asking(1)))))
		for refused := false; !refused; {
			frame := must.Get(c.ReadFrame())(t)
			h, ok := frame.(*http2.MetaHeadersFrame)
			refused = ok && slices.Contains(h.Fields, hpack.HeaderField{Name: "grpc-status", Value: "8"})
		}
		f.ask(t, descriptor("nothing", "a"))
		if got := f.server.service.bytes.Stats(); got.Refused == 0 || got.Ended["held_most"] != 0 {
			t.Errorf("got %+v, want a refused request and no connection ended", got)
		}
	})
}

// The answers of reflection are much larger than its requests.
func TestAnswersOfReflectionCountUntilTheirStreamsEnd(t *testing.T) {
	onceForStores(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		if f.server.lane == nil {
			t.Skip("gRPC's library has no bound over all connections")
		}
		const several = 32
		var streams []reflectiongrpc.ServerReflection_ServerReflectionInfoClient
		for range several {
			stream := must.Get(reflectiongrpc.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context()))(t)
			streams = append(streams, stream)
			if err := stream.Send(&reflectiongrpc.ServerReflectionRequest{MessageRequest: &reflectiongrpc.ServerReflectionRequest_FileContainingSymbol{
				FileContainingSymbol: ratelimitv3.RateLimitService_ServiceDesc.ServiceName,
			}}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		bound := f.server.service.bytes
		if got, want := bound.Stats().Bytes, int64(several*largeAnswer); got < want {
			t.Errorf("with %d streams: got %d bytes in flight, want at least %d", several, got, want)
		}
		for _, stream := range streams {
			answer := must.Get(stream.Recv())(t)
			if got := proto.Size(answer); got < 32<<10 || got > largeAnswer/2 {
				t.Errorf("the answer has %d bytes; a stream counts %d", got, largeAnswer)
			}
			must.Do(t, stream.CloseSend())
		}
		synctest.Wait()
		if got := bound.Stats(); got.Bytes != 0 || got.Ended["held_most"] != 0 {
			t.Errorf("afterwards: got %+v, want nothing in flight and no connection ended", got)
		}
	})
}
