package server

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	reflectiongrpc "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/internal/wire"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

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
			if err := errors.Join(c.call(id, false), c.WriteData(id, false, part)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if err := errors.Join(c.call(id, false), c.WriteData(id, true, message(asking(1)))); err != nil {
			t.Fatal(err)
		}
		for refused := false; !refused; {
			frame, err := c.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
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
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		if f.server.lane == nil {
			t.Skip("gRPC's library has no bound over all connections")
		}
		const several = 32
		var streams []reflectiongrpc.ServerReflection_ServerReflectionInfoClient
		for range several {
			stream, err := reflectiongrpc.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context())
			if err != nil {
				t.Fatal(err)
			}
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
			answer, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got := proto.Size(answer); got < 32<<10 || got > largeAnswer/2 {
				t.Errorf("the answer has %d bytes; a stream counts %d", got, largeAnswer)
			}
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if got := bound.Stats(); got.Bytes != 0 || got.Ended["held_most"] != 0 {
			t.Errorf("afterwards: got %+v, want nothing in flight and no connection ended", got)
		}
	})
}
