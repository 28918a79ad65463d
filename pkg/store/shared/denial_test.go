package shared

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// hour returns a charge of one hit under a limit per hour.
func hour(key string, requests uint32) store.Charge {
	return store.Charge{Key: []byte(key), Hits: 1, Limit: algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: requests, Period: time.Hour}}
}

func takes(tb testing.TB, s store.Store, charges ...store.Charge) bool {
	tb.Helper()
	admitted := must.Get(store.Take(context.Background(), s, charges, make([]algorithms.Decision, len(charges))))(tb)
	return admitted
}

func TestFloodAsksTheStoreOncePerMaxAge(t *testing.T) {
	inHub(t, setup{Denials: time.Second}, func(t *testing.T, s *Store, told *link) {
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
		if stats := s.Stats().Denials; stats.Requests != 2997 {
			t.Errorf("%+v; want 2997 denied", stats)
		}
	})
}

func TestHitsThatCountGoToTheOutbox(t *testing.T) {
	inHub(t, setup{Denials: time.Minute}, func(t *testing.T, s *Store, told *link) {
		c := hour("k", 1)
		c.Limit.Algorithm, c.CountRejected, c.Hits = algorithms.FixedWindow, true, 3
		told.asks(t, 1, func() {
			for range 10 {
				takes(t, s, c)
			}
		})
		if got := -told.gone(); got != 27 {
			t.Errorf("the outbox has %d hits; want 27", got)
		}
	})
}

func TestForgetAndResetMakeTheNextRequestAsk(t *testing.T) {
	inHub(t, setup{Denials: time.Minute}, func(t *testing.T, s *Store, told *link) {
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

func TestADenialFromBeforeARefundOrAResetIsNotLearnedAfterIt(t *testing.T) {
	c, refund := hour("k", 1), hour("k", 1)
	refund.Hits = -1
	for name, forget := range map[string]func(t *testing.T, s *Store){
		"refund": func(t *testing.T, s *Store) { takes(t, s, refund) },
		"reset": func(t *testing.T, s *Store) {
			if _, err := s.Reset(t.Context(), []store.Charge{c}); err != nil {
				t.Error(err)
			}
		},
	} {
		inHub(t, setup{Denials: time.Minute}, func(t *testing.T, s *Store, told *link) {
			takes(t, s, c)
			told.before = func() { // the denial is decided, and its answer under way
				told.before = nil
				forget(t, s)
			}
			takes(t, s, c)
			if !takes(t, s, c) {
				t.Errorf("a %s was forgotten", name)
			}
		})
	}
}

func TestKeysAreBoundedAndOldOnesSwept(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine fills the cache, and the race detector makes that slow")
	}
	inHub(t, setup{Denials: time.Minute}, func(t *testing.T, s *Store, _ *link) {
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

// With a breaker in between, a denial from memory is no success of the primary, and no question.
// The decisions of the local store teach the cache nothing.
func TestDenialsGoOnWhileTheBreakerIsOpen(t *testing.T) {
	inHub(t, setup{FailingFor: time.Nanosecond, Denials: time.Minute}, func(t *testing.T, s *Store, told *link) {
		denied, other := hour("denied", 1), hour("other", 1)
		takes(t, s, denied)
		takes(t, s, denied)
		told.fail(errors.New("connection refused"))
		for range defaultFailures {
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
	s := open(t, (&link{hub: newHub(0)}).parts(setup{Denials: math.MaxInt64}))
	must.Do(t, s.Await(t.Context()))
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

func TestTransactionsDeniedFromMemoryDoNotWaitForTheOthers(t *testing.T) {
	inHub(t, setup{Denials: time.Second}, func(t *testing.T, s *Store, told *link) {
		over, free := hour("over", 1), hour("free", 100)
		takes(t, s, over)
		takes(t, s, over) // denied, and remembered
		var all []store.Transaction
		for _, c := range []store.Charge{over, free, over, over} {
			all = append(all, store.Transaction{Ctx: t.Context(), Charges: []store.Charge{c}, Decisions: make([]algorithms.Decision, 1)})
		}
		var order []int
		told.before = func() {
			if !slices.Equal(order, []int{0, 2, 3}) {
				t.Errorf("before the store answers: got %v decided, want the transactions that memory denies", order)
			}
		}
		told.asks(t, 1, func() { s.TakeAll(all, func(indexes []int) { order = append(order, indexes...) }) })
		for i, want := range []bool{false, true, false, false} {
			if all[i].Admitted != want || all[i].Err != nil {
				t.Errorf("transaction %d: got %t, %v; want %t", i, all[i].Admitted, all[i].Err, want)
			}
		}
	})
}

func TestTakeNowDecidesDeniedKeysOnly(t *testing.T) {
	inHub(t, setup{Denials: time.Second}, func(t *testing.T, s *Store, told *link) {
		over, free := hour("over", 1), hour("free", 100)
		takes(t, s, over)
		takes(t, s, over) // denied, and remembered
		told.asks(t, 0, func() {
			decisions := make([]algorithms.Decision, 2)
			if admitted, decided := s.TakeNow([]store.Charge{over}, decisions); admitted || !decided || decisions[0].RetryAfter == 0 {
				t.Errorf("a denied key: got %t, decided %t, %+v", admitted, decided, decisions[0])
			}
			if _, decided := s.TakeNow([]store.Charge{free}, decisions); decided {
				t.Error("a key that memory does not know is decided")
			}
		})
	})
}

// elsewhere is a store that decides without the one that it should ask.
type elsewhere struct{}

func (elsewhere) Take(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	decisions[0] = algorithms.Decision{Allowed: true}
	*charges[0].Left = store.State{Source: store.Without}
	return true, nil
}

func TestCallersLearnHowAChargeWasDecided(t *testing.T) {
	inHub(t, setup{Denials: time.Second}, func(t *testing.T, s *Store, told *link) {
		over := hour("over", 1)
		takes(t, s, over)
		takes(t, s, over) // denied, and remembered
		for name, test := range map[string]struct {
			s    *Store
			c    store.Charge
			want store.State
		}{
			"denied from memory":       {s, over, store.State{Source: store.Memory}},
			"decided by another store": {open(t, setup{Remote: storetest.Of(elsewhere{}), Denials: time.Second}), hour("free", 1), store.State{Source: store.Without}},
		} {
			synctest.Wait()
			left := store.State{Now: 1}
			test.c.Left = &left
			takes(t, test.s, test.c)
			if left != test.want {
				t.Errorf("%s: got %+v, want %+v", name, left, test.want)
			}
		}
	})
}

// holding makes a charge one of a holder.
func holding(c store.Charge, p algorithms.HoldPhase) store.Charge {
	c.Hold = &store.Hold{Phase: p, Holder: store.HolderOf([]byte("R")), AtMost: time.Minute}
	return c
}

func TestTheEndOfAHolderForgetsTheDenialOfItsKey(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *Store, charges ...store.Charge){
		"alone": func(t *testing.T, s *Store, charges ...store.Charge) { takes(t, s, charges...) },
		"together": func(t *testing.T, s *Store, charges ...store.Charge) {
			all := []store.Transaction{{Ctx: t.Context(), Charges: charges, Decisions: make([]algorithms.Decision, len(charges))}}
			s.TakeAll(all, func([]int) {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inHub(t, setup{Denials: time.Second}, func(t *testing.T, s *Store, told *link) {
				over, other := hour("over", 1), hour("other", 1)
				takes(t, s, over)
				takes(t, s, over)
				takes(t, s, other)
				takes(t, s, other)
				told.asks(t, 0, func() { takes(t, s, over) })
				end(t, s, holding(over, algorithms.HoldEnd), holding(hour("k", 5), algorithms.HoldBegin))
				refund := other
				refund.Hits = -1
				end(t, s, refund, holding(hour("k", 5), algorithms.HoldBegin))
				told.asks(t, 2, func() {
					takes(t, s, over)
					takes(t, s, other)
				})
			})
		})
	}
}
