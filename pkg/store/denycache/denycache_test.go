package denycache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/fallback"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// telling is a store in memory that tells states, and an outbox that charges at once. Each
// transaction should have one charge, of an algorithm with a state.
type telling struct {
	asked  atomic.Int64
	before func() // called before each answer; may be nil

	mu     sync.Mutex // guards the fields below
	states map[string]store.State
	later  int64 // hits that Later was given
	err    error
}

func now() algorithms.Instant { return algorithms.Instant(time.Now().UnixNano()) }

func (s *telling) Take(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	s.asked.Add(1)
	s.mu.Lock()
	for i := range charges {
		c := &charges[i]
		state := s.states[string(c.Key)]
		decisions[i] = state.Take(c.Limit, now(), c.Hits, c.CountRejected)
		state.Now = now()
		s.states[string(c.Key)] = state
		if c.Left != nil && s.err == nil {
			*c.Left = state
		}
	}
	err := s.err
	s.mu.Unlock()
	if s.before != nil {
		s.before()
	}
	return store.Admitted(charges, decisions), err
}

func (s *telling) Reset(_ context.Context, charges []store.Charge) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range charges {
		delete(s.states, string(charges[i].Key))
	}
	return len(charges), nil
}

func (s *telling) Later(c *store.Charge, at algorithms.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.later += c.Hits
	state := s.states[string(c.Key)]
	state.Take(c.Limit, at, c.Hits, true)
	s.states[string(c.Key)] = state
}

func (s *telling) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// newCache returns a cache in front of a store, and closes it with the test.
func newCache(tb testing.TB, s store.Store, outbox outbox, maxAge time.Duration) *Store {
	tb.Helper()
	c, err := New(Options{Store: s, Outbox: outbox, MaxAge: maxAge})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// inBubble runs a test on a cache in front of a telling store.
func inBubble(t *testing.T, maxAge time.Duration, test func(t *testing.T, s *Store, told *telling)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		told := &telling{states: map[string]store.State{}}
		test(t, newCache(t, storetest.Of(told), told, maxAge), told)
	})
}

// hour returns a charge of one hit under a limit per hour.
func hour(key string, requests uint32) store.Charge {
	return store.Charge{Key: []byte(key), Hits: 1, Limit: algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: requests, Period: time.Hour}}
}

func take(tb testing.TB, s store.Store, charges ...store.Charge) bool {
	tb.Helper()
	admitted, err := store.Take(context.Background(), s, charges, make([]algorithms.Decision, len(charges)))
	if err != nil {
		tb.Fatal(err)
	}
	return admitted
}

// asks fails the test unless something asks the store that many times.
func (s *telling) asks(t *testing.T, want int64, do func()) {
	t.Helper()
	before := s.asked.Load()
	do()
	if got := s.asked.Load() - before; got != want {
		t.Errorf("the store was asked %d times; want %d", got, want)
	}
}

func TestFloodAsksTheStoreOncePerMaxAge(t *testing.T) {
	inBubble(t, time.Second, func(t *testing.T, s *Store, told *telling) {
		c := hour("k", 1)
		take(t, s, c)
		told.asks(t, 3, func() {
			for range 3000 {
				if take(t, s, c) {
					t.Fatal("a request over the limit was admitted")
				}
				time.Sleep(time.Millisecond)
			}
		})
		if stats := s.Stats(); stats.Denied != 2997 || stats.Hits != 2997 {
			t.Errorf("%+v; want 2997 denied", stats)
		}
	})
}

func TestHitsThatCountGoToTheOutbox(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, s *Store, told *telling) {
		c := hour("k", 1)
		c.Limit.Algorithm, c.CountRejected, c.Hits = algorithms.FixedWindow, true, 3
		told.asks(t, 1, func() {
			for range 10 {
				take(t, s, c)
			}
		})
		if told.later != 27 {
			t.Errorf("the outbox has %d hits; want 27", told.later)
		}
	})
}

func TestForgetAndResetMakeTheNextRequestAsk(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, s *Store, told *telling) {
		c := hour("k", 1)
		for name, forget := range map[string]func(){
			"Forget": s.Forget,
			"Reset":  func() { _, _ = s.Reset(t.Context(), []store.Charge{c}) },
			"refund": func() {
				refund := c
				refund.Hits = -1
				take(t, s, refund)
			},
			"failed refund": func() {
				refund := c
				refund.Hits = -1
				told.fail(errors.New("no answer"))
				defer told.fail(nil)
				_, _ = store.Take(t.Context(), s, []store.Charge{refund}, make([]algorithms.Decision, 1))
			},
		} {
			for take(t, s, c) {
			}
			told.asks(t, 0, func() { take(t, s, c) })
			forget()
			told.asks(t, 1, func() { take(t, s, c) })
			if t.Failed() {
				t.Fatal(name)
			}
		}
	})
}

func TestDenialFromBeforeARefundIsNotLearnedAfterIt(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, s *Store, told *telling) {
		c, refund := hour("k", 1), hour("k", 1)
		refund.Hits = -1
		take(t, s, c)
		told.before = func() { // the denial is decided, and its answer under way
			told.before = nil
			take(t, s, refund)
		}
		take(t, s, c)
		if !take(t, s, c) {
			t.Error("a refund was forgotten")
		}
	})
}

func TestOneDenialFromBeforeAResetIsNotLearnedAfterIt(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, s *Store, told *telling) {
		c := hour("k", 1)
		take(t, s, c)
		told.before = func() {
			told.before = nil
			if _, err := s.Reset(t.Context(), []store.Charge{c}); err != nil {
				t.Error(err)
			}
		}
		take(t, s, c)
		if !take(t, s, c) {
			t.Error("a reset was forgotten")
		}
	})
}

func TestKeysAreBoundedAndOldOnesSwept(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine fills the cache, and the race detector makes that slow")
	}
	inBubble(t, time.Minute, func(t *testing.T, s *Store, _ *telling) {
		const bound = shards * keysPerShard
		for n := range bound * 5 / 4 {
			take(t, s, hour(fmt.Sprint(n), 0))
		}
		if n := s.Stats().Keys; n > bound || n < bound*9/10 {
			t.Errorf("%d keys are remembered; want at most %d, and about as many", n, bound)
		}
		for i := range s.shards {
			s.shards[i].mu.Lock()
			if n := len(s.shards[i].known); n > keysPerShard {
				t.Errorf("shard %d remembers %d keys", i, n)
			}
			s.shards[i].mu.Unlock()
		}
		time.Sleep(time.Minute + shards*sweepEvery)
		if n := s.Stats().Keys; n != 0 {
			t.Errorf("%d keys are remembered after their age; want none", n)
		}
	})
}

// A caller in front of the cache goes on from the same state.
func TestCallerIsToldTheState(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, s *Store, told *telling) {
		var left store.State
		c := hour("k", 5)
		c.Left = &left
		take(t, s, c)
		if want := told.states["k"]; left != want || left.Now == 0 {
			t.Errorf("told %+v; want %+v", left, want)
		}
	})
}

// With a breaker in between, a denial from memory is no success of the primary, and no question.
// The decisions of the local store teach the cache nothing.
func TestDenialsGoOnWhileTheBreakerIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local, err := memstore.New(memstore.Options{SweepInterval: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer local.Close()
		told := &telling{states: map[string]store.State{}}
		probe := func(context.Context) error { told.mu.Lock(); defer told.mu.Unlock(); return told.err }
		guard, err := fallback.New(fallback.Options{
			Primary: storetest.Of(told), Local: local, Probe: probe, FailingFor: time.Nanosecond, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer guard.Close()
		synctest.Wait()
		s := newCache(t, guard, told, time.Minute)
		denied, other := hour("denied", 1), hour("other", 1)
		take(t, s, denied)
		take(t, s, denied)
		told.fail(errors.New("connection refused"))
		for range fallback.DefaultFailures {
			take(t, s, hour("new", 1))
			told.asks(t, 0, func() { // is no success of the primary
				if take(t, s, denied) {
					t.Error("admitted")
				}
			})
			time.Sleep(time.Microsecond)
		}
		if got := guard.State(); got != fallback.Open {
			t.Fatalf("the breaker is %v; want open", got)
		}
		told.asks(t, 0, func() {
			if take(t, s, denied) {
				t.Error("admitted while the breaker is open")
			}
		})
		keys := s.Stats().Keys
		for range 3 {
			take(t, s, other)
		}
		if got := s.Stats().Keys; got != keys {
			t.Errorf("%d keys are remembered, of which %d from the local store", got, got-keys)
		}
	})
}

// A store that tells no states is only passed on to.
func TestCacheKeepsTheContractOfItsStore(t *testing.T) {
	for _, c := range storetest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, err := memstore.New(memstore.Options{SweepInterval: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				c.Run(t, storetest.Env{Store: newCache(t, m, &telling{}, time.Hour), Sleep: time.Sleep, Now: now})
			})
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no error")
	}
}

func TestDenyingFromMemoryDoesNotAllocate(t *testing.T) {
	told := &telling{states: map[string]store.State{}}
	s := newCache(t, storetest.Of(told), told, math.MaxInt64)
	charges, decisions := []store.Charge{hour("k", 0)}, make([]algorithms.Decision, 1)
	take(t, s, charges...)
	if n := testing.AllocsPerRun(1000, func() {
		if admitted, err := store.Take(t.Context(), s, charges, decisions); admitted || err != nil {
			t.Error(admitted, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
