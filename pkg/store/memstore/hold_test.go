package memstore

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// held returns a charge of a holder with an at_most of a minute.
func held(p algorithms.HoldPhase, key string, a algorithms.Algorithm, requests uint32, holder int, hits int64) store.Charge {
	l := algorithms.Limit{Algorithm: a, Requests: requests}
	if a != algorithms.Concurrency {
		l.Period = time.Hour
	}
	return store.Charge{Key: []byte(key), Limit: l, Hits: hits, Hold: &store.Hold{Phase: p, Holder: holderOf(holder), AtMost: time.Minute}}
}

// takeHeld applies charges as one transaction in a bubble, and returns the decisions.
func takeHeld(t *testing.T, s *Store, charges ...store.Charge) []algorithms.Decision {
	t.Helper()
	decisions := make([]algorithms.Decision, len(charges))
	s.TakeNow(charges, decisions)
	synctest.Wait() // for a sweep of the same instant
	if err := s.checkHolders(); err != nil {
		t.Fatalf("after %+v: %v", charges, err)
	}
	return decisions
}

// holdSome makes a holder of each status under each algorithm.
func holdSome(s *Store) {
	d := make([]algorithms.Decision, 1)
	for _, a := range algorithms.Algorithms() {
		for holder, phase := range []algorithms.HoldPhase{algorithms.HoldBegin, algorithms.HoldBegin, algorithms.HoldEnd} {
			s.TakeNow([]store.Charge{held(phase, "held", a, 3, holder, int64(1+3*holder))}, d)
		}
	}
}

// random charges for a store of few places, see below.
func randomHeld(r *rand.Rand) []store.Charge {
	charges := make([]store.Charge, 1+r.IntN(2)*r.IntN(4))
	for i := range charges {
		a := algorithms.Algorithms()[r.IntN(len(algorithms.Algorithms()))]
		phase := algorithms.HoldPhase(1 + r.IntN(2)*r.IntN(4))
		charges[i] = held(phase, fmt.Sprint("key ", r.IntN(40)), a, uint32(1+r.IntN(9)), r.IntN(300), int64(1+r.IntN(4)))
		charges[i].Hold.AtMost = time.Duration(1+r.IntN(5)) * 7 * time.Second
		charges[i].Rule, charges[i].Mode = i, store.Mode(r.IntN(4))
		charges[i].CountRejected = r.IntN(3) == 0
	}
	return charges
}

// At both bounds every list, count and place agrees after each transaction, also while sweeps and
// resets come between.
func TestRandomHoldersKeepEveryBound(t *testing.T) {
	for _, onFull := range []OnFull{Allow, Deny} {
		for _, o := range []Options{{MaxKeys: 20, MaxHolds: 1000}, {MaxHolds: 50}, {MaxKeys: 600, MaxHolds: 40}} {
			o.OnFull, o.SweepInterval = onFull, 13*time.Second
			inBubble(t, o, func(t *testing.T, s *Store) {
				r := rand.New(rand.NewPCG(uint64(o.MaxKeys), uint64(onFull)))
				for step := range race.Scale(4000) {
					time.Sleep(time.Duration(r.IntN(3)*r.IntN(2000)) * time.Millisecond)
					charges := randomHeld(r)
					takeHeld(t, s, charges...)
					if r.IntN(40) == 0 {
						_, _ = s.Reset(t.Context(), charges)
					}
					if err := s.checkPlaces(); err != nil {
						t.Fatalf("step %d: %v", step, err)
					}
				}
				if st := s.Stats(); st.HoldersRanOut == 0 || o.MaxHolds < 100 && st.HoldersDropped == 0 {
					t.Errorf("%+v: %+v; want some that ran out, and some dropped", o, st)
				}
				time.Sleep(time.Minute)
				if st := s.Stats(); st.HoldersHeld+st.HoldersDenied+st.HoldersEnded != 0 {
					t.Errorf("%+v: %+v; want no holder after the longest at_most", o, st)
				}
			})
		}
	}
}

// At the bound a begin displaces a denied or ended holder, the oldest of a shard first, and never
// one that holds.
func TestABeginAtTheBoundOfHoldersDropsASpentOne(t *testing.T) {
	const most = 100
	for _, a := range algorithms.Algorithms() {
		for _, onFull := range []OnFull{Allow, Deny} {
			inBubble(t, Options{MaxHolds: most, OnFull: onFull, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
				for i := range most / 2 { // on many shards
					takeHeld(t, s, held(algorithms.HoldEnd, fmt.Sprint("key ", i), algorithms.FixedWindow, 10, i, 1))
				}
				for i := range most {
					if d := takeHeld(t, s, held(algorithms.HoldBegin, "key", a, 10*most, 1000+i, 2)); !d[0].Allowed {
						t.Fatalf("%v: begin %d: %+v", a, i, d)
					}
				}
				before := s.Stats()
				if before.HoldersHeld != most || before.HoldersEnded != 0 || before.HoldersDropped != most/2 {
					t.Errorf("%v: %+v; want %d that hold, and %d dropped", a, before, most, most/2)
				}
				left := takeHeld(t, s, held(algorithms.HoldBegin, "key", a, 10*most, -1, 0))[0].Remaining
				refused := held(algorithms.HoldBegin, "key", a, 10*most, 5000, 3)
				both := []store.Charge{refused, held(algorithms.HoldBegin, "other", a, 10*most, 5000, 3)}
				both[1].Rule = 1
				for _, charges := range [][]store.Charge{{refused}, both} {
					d := takeHeld(t, s, charges...)
					if d[0].Allowed != (onFull == Allow) || !d[0].Allowed && d[0].RetryAfter != time.Minute {
						t.Errorf("%v: a begin without room: %+v; want on_full %v", a, d, onFull)
					}
				}
				if now := takeHeld(t, s, held(algorithms.HoldBegin, "key", a, 10*most, -1, 0))[0].Remaining; now != left {
					t.Errorf("%v: begins that were not remembered took %d hits", a, left-now)
				}
				st := s.Stats()
				if st.FullHoldersAllowed+st.FullHoldersDenied != 3 || (st.FullHoldersAllowed > 0) != (onFull == Allow) || st.HoldersHeld != most {
					t.Errorf("%v: %+v; want 3 begins without room", a, st)
				}
				takeHeld(t, s, held(algorithms.HoldEnd, "key", a, 10*most, 1000, 2))
				if d := takeHeld(t, s, refused); !d[0].Allowed || s.Stats().FullHoldersDenied != st.FullHoldersDenied {
					t.Errorf("%v: a begin after an end: %+v; want room", a, d)
				}
			})
		}
	}
}

// Goroutines that begin and end at once, and displace each other's spent holders, keep the bound of
// the store and the limit of each key.
func TestTheBoundHoldsForHoldersOfManyGoroutines(t *testing.T) {
	const keys, limit, most = 16, 5, 60
	s, err := New(Options{MaxHolds: most, OnFull: Deny, SweepInterval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var inFlight [keys]atomic.Int64
	var begun, over atomic.Int64
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(worker)))
			d := make([]algorithms.Decision, 2)
			for i := range race.Scale(20_000) {
				key, holder := r.IntN(keys), worker<<20+i
				charges := func(p algorithms.HoldPhase) []store.Charge {
					c := []store.Charge{
						held(p, fmt.Sprint("slots ", key), algorithms.Concurrency, limit, holder, 1),
						held(p, fmt.Sprint("hits ", key), algorithms.TokenBucket, 1<<30, holder, 1),
					}
					c[1].Rule = 1
					return c[:1+i%2]
				}
				if admitted, _ := s.TakeNow(charges(algorithms.HoldBegin), d); !admitted {
					continue
				}
				begun.Add(1)
				if inFlight[key].Add(1) > limit || s.metrics.holds.Load() > most {
					over.Add(1)
				}
				inFlight[key].Add(-1)
				s.TakeNow(charges(algorithms.HoldEnd), d)
			}
		})
	}
	all.Wait()
	st := s.Stats()
	if err := s.checkHolders(); err != nil || over.Load() > 0 || begun.Load() == 0 || st.HoldersHeld != 0 || st.HoldersDropped == 0 {
		t.Errorf("%d begun, %d over a bound, %+v: %v; want every slot free, and some holders dropped", begun.Load(), over.Load(), st, err)
	}
}

// Of the spent holders of a shard the oldest goes first, after all that have run out.
func TestTheOldestSpentHolderGoesFirst(t *testing.T) {
	const most = 10
	inBubble(t, Options{MaxKeys: 100, MaxHolds: most, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) { // one shard
		for i := range most / 2 { // i has ended or was denied later than i+1 began
			takeHeld(t, s, held(algorithms.HoldBegin, "key", algorithms.TokenBucket, 100, most-i, 1))
		}
		for i := range most {
			time.Sleep(time.Second)
			takeHeld(t, s, held(algorithms.HoldEnd, "key", algorithms.TokenBucket, 100, 1+i, 1))
		}
		for i := range most / 2 {
			takeHeld(t, s, held(algorithms.HoldBegin, "key", algorithms.TokenBucket, 100, 100+i, 1))
		}
		for i := range most {
			c := held(algorithms.HoldEnd, "key", algorithms.TokenBucket, 100, 1+i, -1)
			if err := s.Peek(t.Context(), []store.Charge{c}, make([]algorithms.Decision, 1)); err != nil {
				t.Fatal(err)
			}
			if known := c.Hold.Was.Status == algorithms.HoldEnded; known != (i >= most/2) {
				t.Errorf("holder %d: %+v; want the first %d forgotten", 1+i, c.Hold.Was, most/2)
			}
		}
		time.Sleep(time.Minute)
		for i := range most {
			if d := takeHeld(t, s, held(algorithms.HoldBegin, "key", algorithms.TokenBucket, 100, 200+i, 1)); !d[0].Allowed {
				t.Errorf("begin %d: %+v", i, d[0])
			}
		}
		want := Stats{Keys: 1, Places: 1, MaxKeys: 100, MaxHolds: most, HoldersHeld: most, HoldersRanOut: most / 2, HoldersDropped: most / 2}
		if got := s.Stats(); got != want {
			t.Errorf("after all have run out: %+v; want %+v", got, want)
		}
	})
}

// A key of concurrency stays while it holds, however many keys come; then it goes as others do.
func TestAKeyThatHoldsIsNotEvicted(t *testing.T) {
	const maxKeys = 256
	inBubble(t, Options{MaxKeys: maxKeys, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
		begin := func(key int) {
			takeHeld(t, s, held(algorithms.HoldBegin, fmt.Sprint("slots ", key), algorithms.Concurrency, 1, 1, 1))
		}
		for key := range maxKeys / 2 {
			begin(key)
		}
		l := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 100, Period: 1000 * time.Hour}
		flood(t, s, 4*maxKeys, 50, l)
		for key := range maxKeys / 2 {
			if d := takeHeld(t, s, held(algorithms.HoldBegin, fmt.Sprint("slots ", key), algorithms.Concurrency, 1, 2, 1)); d[0].Allowed {
				t.Fatalf("key %d has forgotten its holder", key)
			}
		}
		time.Sleep(time.Minute)
		evicted := s.Stats().Evicted
		flood(t, s, 4*maxKeys, 50, algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 101, Period: 1000 * time.Hour})
		if st := s.Stats(); st.HoldersHeld != 0 || st.HoldersRanOut != maxKeys/2 || st.Evicted == evicted {
			t.Errorf("%+v; want the %d keys forgotten whose holders have run out", st, maxKeys/2)
		}
	})
}

// A step of the clock moves holders along: each holds as long as before.
func TestHoldersFollowAStepOfTheClock(t *testing.T) {
	for _, step := range []time.Duration{-400 * 24 * time.Hour, -3 * time.Second, time.Hour, 400 * 24 * time.Hour} {
		inSteppingBubble(t, Options{}, func(t *testing.T, s *Store, w *stepping) {
			for _, a := range algorithms.Algorithms() {
				takeHeld(t, s, held(algorithms.HoldBegin, "key", a, 3, 1, 3))
				takeHeld(t, s, held(algorithms.HoldBegin, "key", a, 3, 2, 1))
			}
			time.Sleep(59 * time.Second)
			w.step(s, step)
			for _, a := range algorithms.Algorithms() {
				c := held(algorithms.HoldEnd, "key", a, 3, 1, -1)
				if err := s.Peek(t.Context(), []store.Charge{c}, make([]algorithms.Decision, 1)); err != nil {
					t.Fatal(err)
				}
				if was := c.Hold.Was; was.Status != algorithms.HoldHeld || was.Until.Sub(s.now()) != time.Second || was.Until.Sub(was.At) != time.Minute {
					t.Errorf("%v, step %v: the holder is %+v at %d; want a second left", a, step, was, s.now())
				}
			}
			time.Sleep(time.Second)
			c := held(algorithms.HoldBegin, "key", algorithms.Concurrency, 3, 3, 3)
			if d := takeHeld(t, s, c); !d[0].Allowed {
				t.Errorf("step %v: %+v; want the slots free again", step, d[0])
			}
		})
	}
}
