package shared

import (
	"context"
	"errors"
	"fmt"
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
)

// denier is a store in memory that tells states, and an outbox that charges at once. Each
// transaction should have one charge, of an algorithm with a state.
type denier struct {
	asked  atomic.Int64
	before func() // called before each answer; may be nil

	mu     sync.Mutex // guards the fields below
	states map[string]store.State
	later  int64 // hits that Later was given
	err    error
}

func (s *denier) Take(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
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

func (s *denier) Reset(_ context.Context, charges []store.Charge) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range charges {
		delete(s.states, string(charges[i].Key))
	}
	return len(charges), nil
}

func (s *denier) Later(c *store.Charge, at algorithms.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.later += c.Hits
	state := s.states[string(c.Key)]
	state.Take(c.Limit, at, c.Hits, true)
	s.states[string(c.Key)] = state
}

func (s *denier) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// remembering returns a store that remembers the denials of another one for some time. The test's
// end closes it.
func remembering(tb testing.TB, s storetest.Double, maxAge time.Duration) *Store {
	tb.Helper()
	o := setup{Remote: storetest.Of(s), Denials: maxAge}
	if l, ok := s.(interface {
		Later(c *store.Charge, at algorithms.Instant)
	}); ok {
		o.Later = l.Later
	}
	c := open(tb, o)
	if err := c.Await(context.Background()); err != nil {
		tb.Fatal(err)
	}
	return c
}

// inDenials runs a test on a store that remembers denials, in front of a denier store.
func inDenials(t *testing.T, maxAge time.Duration, test func(t *testing.T, s *Store, told *denier)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		told := &denier{states: map[string]store.State{}}
		test(t, remembering(t, told, maxAge), told)
	})
}

// hour returns a charge of one hit under a limit per hour.
func hour(key string, requests uint32) store.Charge {
	return store.Charge{Key: []byte(key), Hits: 1, Limit: algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: requests, Period: time.Hour}}
}

func takes(tb testing.TB, s store.Store, charges ...store.Charge) bool {
	tb.Helper()
	admitted, err := store.Take(context.Background(), s, charges, make([]algorithms.Decision, len(charges)))
	if err != nil {
		tb.Fatal(err)
	}
	return admitted
}

// asks fails the test unless something asks the store that many times.
func (s *denier) asks(t *testing.T, want int64, do func()) {
	t.Helper()
	before := s.asked.Load()
	do()
	if got := s.asked.Load() - before; got != want {
		t.Errorf("the store was asked %d times; want %d", got, want)
	}
}

func TestFloodAsksTheStoreOncePerMaxAge(t *testing.T) {
	inDenials(t, time.Second, func(t *testing.T, s *Store, told *denier) {
		c := hour("k", 1)
		takes(t, s, c)
		told.asks(t, 3, func() {
			for range 3000 {
				if takes(t, s, c) {
					t.Fatal("a request over the limit was admitted")
				}
				time.Sleep(time.Millisecond)
			}
		})
		if stats := s.Stats().Denials; stats.Requests != 2997 || stats.Hits != 2997 {
			t.Errorf("%+v; want 2997 denied", stats)
		}
	})
}

func TestHitsThatCountGoToTheOutbox(t *testing.T) {
	inDenials(t, time.Minute, func(t *testing.T, s *Store, told *denier) {
		c := hour("k", 1)
		c.Limit.Algorithm, c.CountRejected, c.Hits = algorithms.FixedWindow, true, 3
		told.asks(t, 1, func() {
			for range 10 {
				takes(t, s, c)
			}
		})
		if told.later != 27 {
			t.Errorf("the outbox has %d hits; want 27", told.later)
		}
	})
}

func TestForgetAndResetMakeTheNextRequestAsk(t *testing.T) {
	inDenials(t, time.Minute, func(t *testing.T, s *Store, told *denier) {
		c := hour("k", 1)
		for name, forget := range map[string]func(){
			"Forget": s.Forget,
			"Reset":  func() { _, _ = s.Reset(t.Context(), []store.Charge{c}) },
			"refund": func() {
				refund := c
				refund.Hits = -1
				takes(t, s, refund)
			},
			"failed refund": func() {
				refund := c
				refund.Hits = -1
				told.fail(errors.New("no answer"))
				defer told.fail(nil)
				_, _ = store.Take(t.Context(), s, []store.Charge{refund}, make([]algorithms.Decision, 1))
			},
		} {
			for takes(t, s, c) {
			}
			told.asks(t, 0, func() { takes(t, s, c) })
			forget()
			told.asks(t, 1, func() { takes(t, s, c) })
			if t.Failed() {
				t.Fatal(name)
			}
		}
	})
}

func TestDenialFromBeforeARefundIsNotLearnedAfterIt(t *testing.T) {
	inDenials(t, time.Minute, func(t *testing.T, s *Store, told *denier) {
		c, refund := hour("k", 1), hour("k", 1)
		refund.Hits = -1
		takes(t, s, c)
		told.before = func() { // the denial is decided, and its answer under way
			told.before = nil
			takes(t, s, refund)
		}
		takes(t, s, c)
		if !takes(t, s, c) {
			t.Error("a refund was forgotten")
		}
	})
}

func TestOneDenialFromBeforeAResetIsNotLearnedAfterIt(t *testing.T) {
	inDenials(t, time.Minute, func(t *testing.T, s *Store, told *denier) {
		c := hour("k", 1)
		takes(t, s, c)
		told.before = func() {
			told.before = nil
			if _, err := s.Reset(t.Context(), []store.Charge{c}); err != nil {
				t.Error(err)
			}
		}
		takes(t, s, c)
		if !takes(t, s, c) {
			t.Error("a reset was forgotten")
		}
	})
}

func TestKeysAreBoundedAndOldOnesSwept(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine fills the cache, and the race detector makes that slow")
	}
	inDenials(t, time.Minute, func(t *testing.T, s *Store, _ *denier) {
		const bound = shards * deniedByShard
		for n := range bound * 5 / 4 {
			takes(t, s, hour(fmt.Sprint(n), 0))
		}
		if n := s.Stats().Denials.Keys; n > bound || n < bound*9/10 {
			t.Errorf("%d keys are remembered; want at most %d, and about as many", n, bound)
		}
		for i := range s.table.shards {
			s.table.shards[i].mu.Lock()
			if n := s.table.shards[i].denials; n > deniedByShard {
				t.Errorf("shard %d remembers %d keys", i, n)
			}
			s.table.shards[i].mu.Unlock()
		}
		time.Sleep(time.Minute + shards*sweepEvery)
		if n := s.Stats().Denials.Keys; n != 0 {
			t.Errorf("%d keys are remembered after their age; want none", n)
		}
	})
}

// A caller in front of the cache goes on from the same state.
func TestCallerIsToldTheState(t *testing.T) {
	inDenials(t, time.Minute, func(t *testing.T, s *Store, told *denier) {
		var left store.State
		c := hour("k", 5)
		c.Left = &left
		takes(t, s, c)
		if want := told.states["k"]; left != want || left.Now == 0 {
			t.Errorf("told %+v; want %+v", left, want)
		}
	})
}

// With a breaker in between, a denial from memory is no success of the primary, and no question.
// The decisions of the local store teach the cache nothing.
func TestDenialsGoOnWhileTheBreakerIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := &denier{states: map[string]store.State{}}
		probe := func(context.Context) error { told.mu.Lock(); defer told.mu.Unlock(); return told.err }
		s := open(t, setup{Remote: storetest.Of(told), Probe: probe, FailingFor: time.Nanosecond, Denials: time.Minute, Later: told.Later})
		synctest.Wait()
		denied, other := hour("denied", 1), hour("other", 1)
		takes(t, s, denied)
		takes(t, s, denied)
		told.fail(errors.New("connection refused"))
		for range DefaultFailures {
			takes(t, s, hour("new", 1))
			told.asks(t, 0, func() { // is no success of the primary
				if takes(t, s, denied) {
					t.Error("admitted")
				}
			})
			time.Sleep(time.Microsecond)
		}
		if got := s.State(); got != Open {
			t.Fatalf("the breaker is %v; want open", got)
		}
		told.asks(t, 0, func() {
			if takes(t, s, denied) {
				t.Error("admitted while the breaker is open")
			}
		})
		keys := s.Stats().Denials.Keys
		for range 3 {
			takes(t, s, other)
		}
		if got := s.Stats().Denials.Keys; got != keys {
			t.Errorf("%d keys are remembered, of which %d from the local store", got, got-keys)
		}
	})
}

func TestDenyingFromMemoryDoesNotAllocate(t *testing.T) {
	told := &denier{states: map[string]store.State{}}
	s := remembering(t, told, math.MaxInt64)
	charges, decisions := []store.Charge{hour("k", 0)}, make([]algorithms.Decision, 1)
	takes(t, s, charges...)
	if n := testing.AllocsPerRun(1000, func() {
		if admitted, err := store.Take(t.Context(), s, charges, decisions); admitted || err != nil {
			t.Error(admitted, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
