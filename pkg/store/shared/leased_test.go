package shared

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func TestAHotKeyAsksTheSharedStoreATwentiethOfTheTimes(t *testing.T) {
	inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
		c := minute("hot", 1_000_000)
		warm(t, s, told, c)
		for range 5000 {
			time.Sleep(time.Millisecond)
			if admitted, _ := take(t, s, c); !admitted {
				t.Fatal("a request below the limit was denied")
			}
		}
		if got := told.asked(); got > 250 {
			t.Errorf("the shared store was asked %d times for 5000 requests, want at most 250", got)
		}
	})
}

func TestKeysThatAreAskedRarelyAreNotTracked(t *testing.T) {
	inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
		for i := range 1000 {
			time.Sleep(time.Millisecond)
			take(t, s, minute(string(rune('a'+i)), 10))
		}
		if got := s.Stats().Leases; got.Charged != 0 || told.asked() != 1000 {
			t.Errorf("got %+v, want nothing granted", got)
		}
	})
}

func TestAnIdleLeaseGoesBackWithinItsLength(t *testing.T) {
	inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
		c := minute("k", 1000)
		warm(t, s, told, c)
		held := s.Stats().Leases.Held
		time.Sleep(longest + sweepEvery)
		synctest.Wait()
		if got := told.gone(); got != int64(held) || s.Stats().Leases.Held != 0 {
			t.Errorf("got %d hits back and %d held, want %d back", got, s.Stats().Leases.Held, held)
		}
		time.Sleep(time.Second)
		if got := s.Stats().Leases.Keys; got != 0 {
			t.Errorf("got %d keys after a while, want 0", got)
		}
	})
}

func TestCloseGivesEverythingBack(t *testing.T) {
	inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
		warm(t, s, told, minute("k", 1000))
		held := s.Stats().Leases.Held
		s.Close()
		if got := told.gone(); got != int64(held) {
			t.Errorf("got %d hits back, want the %d held", got, held)
		}
	})
}

func TestARequestThatALeaseCannotPayGivesItBackAndAsks(t *testing.T) {
	inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
		c := minute("k", 1000)
		warm(t, s, told, c)
		held := s.Stats().Leases.Held
		c.Hits = 900
		if admitted, decisions := take(t, s, c); !admitted || decisions[0].Remaining != 80 {
			t.Errorf("got %t, %+v, want the request admitted and 80 left", admitted, decisions[0])
		}
		if got := told.gone(); got != int64(held) {
			t.Errorf("got %d hits back, want %d", got, held)
		}
	})
}

func TestAResetDropsLeasesAndAReloadGivesThemBack(t *testing.T) {
	inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
		c := minute("k", 1000)
		warm(t, s, told, c)
		if n, err := s.Reset(t.Context(), []store.Charge{c}); n != 1 || err != nil {
			t.Fatalf("Reset: got %d, %v", n, err)
		}
		if got := told.gone(); got != 0 || s.Stats().Leases.Held != 0 {
			t.Errorf("after a reset: got %d hits back and %d held, want none", got, s.Stats().Leases.Held)
		}
		if _, decisions := take(t, s, c); decisions[0].Remaining != 999 {
			t.Errorf("after a reset: got %+v, want 999 left", decisions[0])
		}
		warm(t, s, told, c)
		held := s.Stats().Leases.Held
		s.Forget()
		if got := told.gone(); got != int64(held) || s.Stats().Leases.Held != 0 {
			t.Errorf("after new rules: got %d hits back and %d held, want %d back", got, s.Stats().Leases.Held, held)
		}
	})
}

func TestADeniedRequestPutsLeasedHitsBackUnlessTheyCount(t *testing.T) {
	for _, counts := range []bool{true, false} {
		inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
			c := minute("hot", 1000)
			c.CountRejected = counts
			warm(t, s, told, c)
			before := spent(s)
			never := store.Charge{Key: []byte("never"), Hits: 1, Rule: 1, Limit: algorithms.Limit{Algorithm: algorithms.FixedWindow, Period: time.Minute}}
			admitted, decisions := take(t, s, c, never)
			want := uint64(0)
			if counts {
				want = 1
			}
			if got := spent(s) - before; admitted || got != want {
				t.Errorf("count_rejected %t: admitted %t with %d hits spent, want a denial with %d", counts, admitted, got, want)
			}
			if d := decisions[0]; !d.Allowed || d.RetryAfter != 0 || uint64(d.Remaining) != 980-want {
				t.Errorf("count_rejected %t: got %+v, want allowed and %d left", counts, d, 980-want)
			}
			if decisions[1].Allowed {
				t.Errorf("the charge that denies: got %+v", decisions[1])
			}
		})
	}
}

func TestAnErrorPutsLeasedHitsBack(t *testing.T) {
	inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
		c := minute("hot", 1000)
		warm(t, s, told, c)
		before := spent(s)
		told.delay = 10 * time.Millisecond
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Millisecond, cancel)
		if _, err := store.Take(ctx, s, []store.Charge{c, minute("other", 10)}, make([]algorithms.Decision, 2)); err == nil {
			t.Fatal("got no error")
		}
		if got := spent(s) - before; got != 0 {
			t.Errorf("got %d hits spent, want none", got)
		}
	})
}

func TestSomeChargesAlwaysAskTheStore(t *testing.T) {
	for name, change := range map[string]func(c *store.Charge){
		"exact":  func(c *store.Charge) { c.Exact = true },
		"refund": func(c *store.Charge) { c.Hits = -1 },
		"quota":  func(c *store.Charge) { c.Mode = store.Quota },
		"debt":   func(c *store.Charge) { c.Limit, c.CountRejected = bucket, true },
		"log":    func(c *store.Charge) { c.Limit.Algorithm = algorithms.SlidingWindowLog },
		"ban":    func(c *store.Charge) { c.Limit.Requests = 0 },
	} {
		inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
			c := minute("k", 1000)
			change(&c)
			for range 30 {
				take(t, s, c)
			}
			if got := told.asked(); got != 30 || s.Stats().Leases.Charged != 0 {
				t.Errorf("%s: the store was asked %d times and granted %d hits, want 30 and 0", name, got, s.Stats().Leases.Charged)
			}
		})
	}
}

func TestProbesAndPeeksAreAnsweredFromALease(t *testing.T) {
	inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
		c := minute("k", 1000)
		warm(t, s, told, c)
		c.Hits = 0
		if _, decisions := take(t, s, c); decisions[0].Remaining != 980 || told.asked() != 0 {
			t.Errorf("a probe: got %+v, want 980 left without a question", decisions[0])
		}
		decisions := make([]algorithms.Decision, 1)
		c.Hits = 3
		if err := s.Peek(t.Context(), []store.Charge{c}, decisions); err != nil || decisions[0].Remaining != 977 {
			t.Errorf("a peek of 3 hits: got %+v, %v, want 977 left", decisions[0], err)
		}
	})
}

func TestAnAnswerSaysItsSource(t *testing.T) {
	inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
		var left store.State
		c := minute("k", 1000)
		c.Left = &left
		if take(t, s, c); left.Source != store.Asked {
			t.Errorf("the first request: got the source %d, want Asked", left.Source)
		}
		c.Left = nil
		warm(t, s, told, c)
		c.Left = &left
		take(t, s, c)
		if d := left.Take(c.Limit, left.Now, 0, false); left.Source != store.Lease || d.Remaining != 978 {
			t.Errorf("a leased request: got the source %d and %d left, want Lease and 978", left.Source, d.Remaining)
		}
	})
}

func TestTakeNowDecidesLeasedKeysAndPassesOnTheOthers(t *testing.T) {
	inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
		c, decisions := minute("k", 1000), make([]algorithms.Decision, 2)
		if _, decided := s.TakeNow([]store.Charge{c}, decisions); decided {
			t.Error("a key without a lease is decided")
		}
		warm(t, s, told, c)
		before := spent(s)
		if admitted, decided := s.TakeNow([]store.Charge{c}, decisions); !admitted || !decided || spent(s) != before+1 {
			t.Errorf("a leased key: got %t, decided %t, %d hits spent; want one", admitted, decided, spent(s)-before)
		}
		if _, decided := s.TakeNow([]store.Charge{c, minute("other", 9)}, decisions); decided || spent(s) != before+1 {
			t.Errorf("a leased key beside another: decided %t, %d hits spent; want the one of before", decided, spent(s)-before)
		}
	})
}

func TestSpendingFromManyGoroutinesIsExact(t *testing.T) {
	inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
		const limit, workers = 10_000, 16
		var admitted atomic.Int64
		var all sync.WaitGroup
		for range workers {
			all.Go(func() {
				decisions := make([]algorithms.Decision, 1)
				for range race.Scale(2000) {
					time.Sleep(100 * time.Microsecond)
					ok, err := store.Take(context.Background(), s, []store.Charge{minute("k", limit)}, decisions)
					if err != nil {
						t.Error(err)
					}
					if ok {
						admitted.Add(1)
					}
				}
			})
		}
		all.Wait()
		if got, most := admitted.Load(), int64(min(limit, workers*race.Scale(2000))); got > most || got < most*99/100 {
			t.Errorf("admitted %d, want at most %d and nearly all", got, most)
		}
		if got := s.Stats().Leases; got.Decided == 0 {
			t.Errorf("got %+v, want decisions from leases", got)
		}
	})
}

func BenchmarkTakeNow(b *testing.B) {
	s := open(b, (&link{hub: newHub(0)}).parts(setup{}))
	charges, decisions := []store.Charge{minute("hot", algorithms.MaxHits)}, make([]algorithms.Decision, 1)
	sh := s.table.spot(&charges[0])
	for range 3 {
		s.trackLocked(sh, &charges[0], 0)
	}
	k := sh.allotments["hot"].yes
	k.told = store.State{Now: now()}
	b.ReportAllocs()
	for b.Loop() {
		if k.first.left < 2 {
			k.first = part{left: 1 << 40, size: 1 << 40, at: now(), ends: 1 << 62, half: 1 << 62}
		}
		if _, decided := s.TakeNow(charges, decisions); !decided {
			b.Fatal("not decided")
		}
	}
}

// A key of which the limit changes while a request waits is forgotten in the end, and is leased
// again.
func TestAKeyIsForgottenAfterItsLimitChangedBesideARequest(t *testing.T) {
	inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
		old, young := minute("k", 1000), minute("k", 900)
		warm(t, s, told, old)
		s.Forget()
		told.delay = 10 * time.Millisecond
		var waiting sync.WaitGroup
		waiting.Go(func() { take(t, s, old) })
		time.Sleep(time.Millisecond)
		take(t, s, young)
		waiting.Wait()
		time.Sleep(10 * time.Second)
		if got := s.Stats().Leases.Keys; got != 0 {
			t.Errorf("got %d keys long after the last request, want 0", got)
		}
	})
}

func TestPeekAsksOnceAboutAllChargesWithoutALease(t *testing.T) {
	inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
		hot := minute("hot", 1000)
		warm(t, s, told, hot)
		charges := []store.Charge{minute("a", 10), hot, minute("b", 20), minute("c", 30)}
		decisions := make([]algorithms.Decision, len(charges))
		before := told.peeks
		if err := s.Peek(t.Context(), charges, decisions); err != nil {
			t.Fatal(err)
		}
		if got := told.peeks - before; got != 1 {
			t.Errorf("asked the other store %d times, want once", got)
		}
		for i, want := range []uint32{9, 979, 19, 29} {
			if got := decisions[i].Remaining; got != want {
				t.Errorf("charge %d: got %d left, want %d", i, got, want)
			}
		}
	})
}
