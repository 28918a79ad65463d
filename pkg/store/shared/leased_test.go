package shared

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
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
			t.Errorf("got %+v, want nothing leased", got)
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
			if d := decisions[0]; !d.Allowed || d.RetryAfter != 0 || d.Remaining != 980-want {
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
				t.Errorf("%s: the store was asked %d times and leased %d hits, want 30 and 0", name, got, s.Stats().Leases.Charged)
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
		must.Do(t, s.Peek(t.Context(), charges, decisions))
		if got := told.peeks - before; got != 1 {
			t.Errorf("asked the other store %d times, want once", got)
		}
		for i, want := range []uint64{9, 979, 19, 29} {
			if got := decisions[i].Remaining; got != want {
				t.Errorf("charge %d: got %d left, want %d", i, got, want)
			}
		}
	})
}

// minute returns a charge of one hit under a fixed window of a minute.
func minute(key string, requests uint32) store.Charge {
	return store.Charge{Key: []byte(key), Limit: window(requests, time.Minute), Hits: 1, CountRejected: true}
}

// take takes charges, and lets the goroutines of the bubble go on.
func take(t *testing.T, s store.Store, charges ...store.Charge) (bool, []algorithms.Decision) {
	t.Helper()
	decisions := make([]algorithms.Decision, len(charges))
	admitted := must.Get(store.Take(t.Context(), s, charges, decisions))(t)
	synctest.Wait()
	return admitted, decisions
}

// spent returns the hits that were spent from leases. A lease that comes in the background leaves
// the number as it is.
func spent(s *Store) uint64 {
	l := s.Stats().Leases
	return l.Charged - l.Held - l.Back - l.Expired
}

// warm asks a key until it is leased.
func warm(t *testing.T, s *Store, k *link, c store.Charge) {
	t.Helper()
	for range 20 {
		take(t, s, c)
	}
	if s.Stats().Leases.Held == 0 {
		t.Fatalf("after 20 calls: got %+v, want hits held", s.Stats())
	}
	k.asked()
}

// unanswered is the error of a part that may be applied later.
type unanswered struct {
	error
	instead func(hits []int64)
}

func (u unanswered) Instead(hits []int64, _ []store.Part) { u.instead(hits) }
func (u unanswered) Answered(int) bool                    { return false }

func TestAPartWithoutAnAnswerIsGivenBackUnlessItIsOfABucket(t *testing.T) {
	for name, want := range map[string]int32{"window": 1, "bucket": 0} {
		inHub(t, setup{}, func(t *testing.T, s *Store, told *link) {
			var told0 atomic.Int32
			c := minute("k", 1000)
			if name == "bucket" {
				c = store.Charge{Key: []byte("k"), Limit: bucket, Hits: 1}
			}
			warm(t, s, told, c)
			told.fail(unanswered{errors.New("no answer"), func(hits []int64) {
				if len(hits) != 1 || hits[0] != 0 {
					t.Errorf("%s: got %d hits instead, want 0 of one charge", name, hits)
				}
				told0.Add(1)
			}})
			for s.Stats().Leases.Failed == 0 {
				if !s.spendAll([]store.Charge{c}, make([]algorithms.Decision, 1)) {
					t.Fatalf("%s: the lease was spent before it was renewed", name)
				}
				synctest.Wait()
			}
			if got := told0.Load(); got != want {
				t.Errorf("%s: the hits of the part were given back %d times, want %d", name, got, want)
			}
		})
	}
}

// begin makes a charge the begin of a holder.
func begin(c store.Charge) store.Charge {
	c.Hold = &store.Hold{Phase: algorithms.HoldBegin, Holder: store.HolderOf([]byte("R")), AtMost: time.Minute}
	return c
}

// ledger is a link that keeps the transactions that it is asked about.
type ledger struct {
	*link
	seen [][]store.Charge
}

func (l *ledger) Take(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	l.seen = append(l.seen, slices.Clone(charges))
	return l.link.Take(ctx, charges, decisions)
}

// inLedger is inBubble with a ledger, and with leased hits of the key "hot".
func inLedger(t *testing.T, o setup, test func(t *testing.T, s *Store, l *ledger)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{link: &link{hub: newHub(0)}}
		o = l.parts(o)
		o.Remote = storetest.Of(l)
		s := open(t, o)
		synctest.Wait()
		warm(t, s, l.link, minute("hot", 1_000_000))
		l.seen = nil
		test(t, s, l)
	})
}

func TestTheRemoteStoreDecidesEachTransactionWithAHolderAsItIs(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, s *Store, charges []store.Charge){
		"alone": func(t *testing.T, s *Store, charges []store.Charge) { take(t, s, charges...) },
		"at_once": func(t *testing.T, s *Store, charges []store.Charge) {
			if _, decided := s.TakeNow(charges, make([]algorithms.Decision, len(charges))); decided && store.Holds(charges) {
				t.Error("decided at once")
			}
			take(t, s, charges...)
		},
		"together": func(t *testing.T, s *Store, charges []store.Charge) {
			all := []store.Transaction{{Ctx: t.Context(), Charges: charges, Decisions: make([]algorithms.Decision, len(charges))}}
			s.TakeAll(all, func([]int) {})
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inLedger(t, setup{Denials: time.Hour}, func(t *testing.T, s *Store, l *ledger) {
				held, hot, over := s.Stats().Leases.Held, minute("hot", 1_000_000), hour("over", 1)
				for range 3 { // a denial is remembered, but not of a holder
					take(t, s, []store.Charge{over})
					take(t, s, []store.Charge{begin(hour("denied", 1))})
				}
				for range 50 {
					for _, charges := range [][]store.Charge{
						{begin(minute("k", 1_000_000))},
						{hot, begin(minute("k", 1_000_000))},
						{begin(hour("denied", 1))},
						{over, begin(hour("denied", 1))},
					} {
						l.seen = nil
						take(t, s, charges)
						if len(l.seen) != 1 || len(l.seen[0]) != len(charges) {
							t.Fatalf("%d charges: the remote store was asked about %v, want one question about all", len(charges), l.seen)
						}
						if got := l.seen[0][len(charges)-1].Hold; got != charges[len(charges)-1].Hold {
							t.Fatalf("the holder is %p on the way, want %p", got, charges[len(charges)-1].Hold)
						}
					}
				}
				if got := s.Stats(); got.Leases.Held != held || got.Leases.Keys != 2 || got.Denials.Keys != 1 {
					t.Errorf("got %+v and %+v, want the lease as before, and the denial of the key without a holder", got.Leases, got.Denials)
				}
			})
		})
	}
}

func TestNoLeaseAnswersATransactionWithAHolderAtOnce(t *testing.T) {
	inLedger(t, setup{}, func(t *testing.T, s *Store, l *ledger) {
		decided := s.Stats().Leases.Decided
		if _, hot := s.TakeNow([]store.Charge{minute("hot", 1_000_000)}, make([]algorithms.Decision, 1)); !hot {
			t.Fatal("the key has no lease: the test shows nothing")
		}
		decided++
		synctest.Wait()
		l.fail(errors.New("no answer"))
		l.asked()
		charges, decisions := []store.Charge{minute("hot", 1_000_000), begin(minute("k", 5))}, make([]algorithms.Decision, 2)
		if _, decided := s.TakeNow(charges, decisions); decided {
			t.Error("a transaction with a holder was decided at once")
		}
		_, err := store.Take(t.Context(), s, charges, decisions)
		if asked := l.asked(); err != nil || asked != 1 || s.Stats().Leases.Decided != decided {
			t.Errorf("Take: %v, after %d questions; want one, and the policies after its error", err, asked)
		}
	})
}
