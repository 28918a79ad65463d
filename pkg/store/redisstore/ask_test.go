package redisstore

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/denycache"
	"github.com/weirproxy/weir/test/parts"
)

// hit returns a charge of one hit to a key of its own for each limit.
func hit(key string, l algorithms.Limit) store.Charge {
	return store.Charge{Key: []byte(key), Limit: l, Hits: 1}
}

// perAge returns a limit of requests in ten years, of which no window ends while a test runs.
func perAge(a algorithms.Algorithm, requests uint32) algorithms.Limit {
	return algorithms.Limit{Algorithm: a, Requests: requests, Period: algorithms.MaxPeriod}
}

// ask takes charges as one request and fails the test on an error.
func ask(tb testing.TB, s store.Store, charges ...store.Charge) (bool, []algorithms.Decision) {
	tb.Helper()
	decisions := make([]algorithms.Decision, len(charges))
	admitted, err := store.Take(tb.Context(), s, charges, decisions)
	if err != nil {
		tb.Fatalf("Take: %v", err)
	}
	return admitted, decisions
}

// wants fails the test unless the request is admitted as wanted.
func wants(tb testing.TB, admitted bool, s store.Store, charges ...store.Charge) []algorithms.Decision {
	tb.Helper()
	got, decisions := ask(tb, s, charges...)
	if got != admitted {
		tb.Errorf("%v %q admitted: %v; want %v: %+v", charges[0].Limit.Algorithm, charges[0].Key, got, admitted, decisions)
	}
	return decisions
}

// remains returns how many hits a key has left, which it asks Redis.
func remains(tb testing.TB, s store.Store, c store.Charge) uint32 {
	tb.Helper()
	c.Hits = 0
	decisions := make([]algorithms.Decision, 1)
	if err := s.Peek(tb.Context(), []store.Charge{c}, decisions); err != nil {
		tb.Fatalf("Peek: %v", err)
	}
	return decisions[0].Remaining
}

// eventually waits until a condition holds.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !holds(); <-tick.C {
		if time.Now().After(end) {
			tb.Fatalf("waited in vain until %s", what)
		}
	}
}

// scripts returns how often a server was asked to run a script, and did.
func scripts(tb testing.TB, r *parts.Redis) int {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	stats, err := r.Info(ctx, "commandstats")
	if err != nil {
		tb.Fatal(err)
	}
	total := 0
	for _, name := range []string{"cmdstat_eval", "cmdstat_evalsha"} {
		for field := range strings.SplitSeq(stats[name], ",") {
			if text, is := strings.CutPrefix(field, "calls="); is {
				n, err := strconv.Atoi(text)
				if err != nil {
					tb.Fatal(err)
				}
				total += n
			}
		}
	}
	return total
}

// cached is a store with a deny cache in front.
type cached struct {
	*denycache.Store
	redis *Store
}

// remembering returns s with a deny cache in front, closed with the test. The cache has the clock
// of s.
func remembering(tb testing.TB, s *Store, maxAge time.Duration) *cached {
	tb.Helper()
	front, err := denycache.New(denycache.Options{Store: s, Outbox: s, MaxAge: maxAge, Now: s.given})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(front.Close)
	return &cached{front, s}
}

// givenRemembering is given with a deny cache.
func givenRemembering(tb testing.TB, maxAge time.Duration, o Options) (*cached, *clock) {
	tb.Helper()
	s, c := given(tb, o)
	return remembering(tb, s, maxAge), c
}

// front returns s with a deny cache in front, or s itself when the cache would remember nothing.
func front(tb testing.TB, s *Store, maxAge time.Duration) store.Store {
	tb.Helper()
	if maxAge == 0 {
		return s
	}
	return remembering(tb, s, maxAge)
}

// given returns a store whose clock only the test moves.
func given(tb testing.TB, o Options) (*Store, *clock) {
	tb.Helper()
	c := newClock()
	s := open(tb, urlOf("redis", shared(tb).Address()), o)
	c.drives(s)
	return s, c
}
