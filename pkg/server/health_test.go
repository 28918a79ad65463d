package server

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
)

// switched is a readiness that a test switches.
type switched struct{ away atomic.Bool }

func (s *switched) ready() error {
	if s.away.Load() {
		return errors.New("the store is away")
	}
	return nil
}

func TestServicesServeWhileReadyAndTheServerAlways(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s switched
		f := start(t, everything, func(o *Options) { o.Ready = s.ready })
		client := healthgrpc.NewHealthClient(f.conn)
		const serving, not = healthgrpc.HealthCheckResponse_SERVING, healthgrpc.HealthCheckResponse_NOT_SERVING
		type answers map[string]healthgrpc.HealthCheckResponse_ServingStatus
		check := func(when string, want answers) {
			t.Helper()
			got := make(answers)
			for _, name := range []string{"", "ratelimit", fullName} {
				answer, err := client.Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: name})
				if err != nil {
					t.Fatal(err)
				}
				got[name] = answer.GetStatus()
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: Check (-want +got):\n%s", when, diff)
			}
			list, err := client.List(t.Context(), new(healthgrpc.HealthListRequest))
			if err != nil {
				t.Fatal(err)
			}
			clear(got)
			for name, answer := range list.GetStatuses() {
				got[name] = answer.GetStatus()
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: List (-want +got):\n%s", when, diff)
			}
		}
		check("ready", answers{"": serving, "ratelimit": serving, fullName: serving})
		s.away.Store(true)
		check("not ready", answers{"": serving, "ratelimit": not, fullName: not})
		f.ask(t, descriptor("minute", "a")) // is answered as before
		s.away.Store(false)
		check("ready again", answers{"": serving, "ratelimit": serving, fullName: serving})
		f.server.Drain()
		check("drained", answers{"": not, "ratelimit": not, fullName: not})
	})
}

func TestWhoWatchesIsToldWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s switched
		f := start(t, everything, func(o *Options) { o.Ready = s.ready })
		watch, err := healthgrpc.NewHealthClient(f.conn).Watch(t.Context(), &healthgrpc.HealthCheckRequest{Service: "ratelimit"})
		if err != nil {
			t.Fatal(err)
		}
		await := func(want healthgrpc.HealthCheckResponse_ServingStatus) {
			t.Helper()
			began := time.Now()
			got, err := watch.Recv()
			if waited := time.Since(began); err != nil || got.GetStatus() != want || waited > time.Second {
				t.Errorf("got %v, %v after %v; want %v within a second", got.GetStatus(), err, waited, want)
			}
		}
		await(healthgrpc.HealthCheckResponse_SERVING)
		s.away.Store(true)
		await(healthgrpc.HealthCheckResponse_NOT_SERVING)
		s.away.Store(false)
		await(healthgrpc.HealthCheckResponse_SERVING)
		f.server.GracefulStop() // ends the streams, which the bubble waits for
	})
}
