package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/test/parts"
)

// ownRedis returns a Redis that a test may stop.
func ownRedis(t *testing.T) *parts.Redis {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := parts.StartRedis(ctx, redisBinary(t), t.TempDir(), parts.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	return r
}

// paused stops Redis while something is done.
func paused(t *testing.T, r *parts.Redis, do func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := r.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	do()
	if err := r.Continue(); err != nil {
		t.Fatal(err)
	}
}

// settled waits until a store is answered again.
func settled(t *testing.T, s store.Store, c store.Charge) {
	t.Helper()
	c.Hits = 0
	eventually(t, "Redis answers", func() bool {
		return s.Peek(t.Context(), []store.Charge{c}, make([]algorithms.Decision, 1)) == nil
	})
}

func TestRequestThatArrivesTooLateIsNotCharged(t *testing.T) {
	r := ownRedis(t)
	const timeout = 30 * time.Millisecond
	patient := open(t, urlOf("redis", r.Address()), Options{}) // for requests that a busy machine must answer
	s := open(t, urlOf("redis", r.Address()), Options{Timeout: timeout, Prefix: patient.main.prefix})
	for _, a := range storetest.EveryRate() {
		c := hit("k", perAge(a, 100))
		settled(t, s, c)
		wants(t, true, patient, c)
		paused(t, r, func() {
			fastest := time.Hour
			for range 5 {
				begun := time.Now()
				_, err := store.Take(t.Context(), s, []store.Charge{c}, make([]algorithms.Decision, 1))
				if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnavailable) {
					t.Errorf("%v: %v; want a missed deadline", a, err)
				}
				fastest = min(fastest, time.Since(begun))
			}
			if fastest > 20*timeout { // one answer may be late on a busy machine
				t.Errorf("%v: the fastest of five answers came after %v", a, fastest)
			}
			time.Sleep(2*timeout + clockSlack) // until nobody waits by the server's clock either
		})
		settled(t, s, c)
		if got := remains(t, patient, c); got != 99 {
			t.Errorf("%v: %d of 100 remain after one hit and 5 that came too late", a, got)
		}
	}
}

func TestServerWhoseClockJumpsAheadIsAskedOnceMore(t *testing.T) {
	server := shared(t)
	s := open(t, urlOf("redis", server.Address()), Options{})
	c := hit("k", perAge(algorithms.FixedWindow, 100))
	wants(t, true, s, c)
	for n := range uint32(5) {
		s.main.clock.leads[0].ahead.Add(-time.Minute.Microseconds()) // as if the server's had jumped ahead by that
		before := scripts(t, server)
		wants(t, true, s, c)
		if n := scripts(t, server) - before; n != 2 {
			t.Errorf("%d calls of the script; want 2", n)
		}
		before = scripts(t, server)
		wants(t, true, s, c)
		if n := scripts(t, server) - before; n != 1 {
			t.Errorf("then %d calls of the script; want 1", n)
		}
		if got, want := remains(t, s, c), 99-2*(n+1); got != want {
			t.Errorf("%d remain; want %d", got, want)
		}
	}
	s.main.clock.leads[0].ahead.Add(time.Hour.Microseconds()) // and back
	wants(t, true, s, c)
}
