package redisstore

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
	near "github.com/weirproxy/weir/pkg/store/shared"
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
	return uint32(decisions[0].Remaining)
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

// exact is a store that decides each charge exactly: with the memory of denials, and without
// leases.
type exact struct{ *near.Store }

func (e exact) TakeNow(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	for i := range charges {
		charges[i].Exact = true
	}
	return e.Store.TakeNow(charges, decisions)
}

func (e exact) TakeAll(transactions []store.Transaction, decided func(indexes []int)) {
	for i := range transactions {
		for n := range transactions[i].Charges {
			transactions[i].Charges[n].Exact = true
		}
	}
	e.Store.TakeAll(transactions, decided)
}

// front returns s with the memory of denials in front, by the clock of s and closed with the test.
// With the age 0 front returns s itself.
func front(tb testing.TB, s *Store, maxAge time.Duration) store.Store {
	tb.Helper()
	if maxAge == 0 {
		return s
	}
	local, err := memstore.New(memstore.Options{Now: s.given})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(local.Close)
	front, err := near.New(near.Options{Remote: s, Local: local, Denials: maxAge, Now: s.given, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(front.Close)
	if err := front.Await(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return exact{front}
}

// given returns a store whose clock only the test moves.
func given(tb testing.TB, o Options) (*Store, *clock) {
	tb.Helper()
	c := newClock()
	s := open(tb, urlOf("redis", shared(tb).Address()), o)
	c.drives(s)
	return s, c
}
