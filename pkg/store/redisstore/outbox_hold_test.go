package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// limitOfTen returns a limit of ten hits.
func limitOfTen(a algorithms.Algorithm) algorithms.Limit {
	if a == algorithms.Concurrency {
		return inFlight(10)
	}
	return perAge(a, 10)
}

// toldHolds waits until Redis knows of all holders.
func toldHolds(t *testing.T, s *Store) {
	t.Helper()
	s.sendAll()
	eventually(t, "Redis knows of all holders", func() bool { return s.Stats().OwedHolders == 0 && s.idle() })
}

// tellLater tells the events of holder r, each phase with hits.
func tellLater(s *Store, key string, l algorithms.Limit, at algorithms.Instant, events ...store.Charge) {
	for _, c := range events {
		c.Key, c.Limit, c.Mode = []byte(key), l, store.Enforce
		s.HoldLater(&c, at)
	}
}

func begun(hits int64) store.Charge {
	return withHolder(algorithms.HoldBegun, "", algorithms.Limit{}, "r", hits)
}

func canceled() store.Charge {
	return withHolder(algorithms.HoldCancel, "", algorithms.Limit{}, "r", 0)
}

func paired(estimate uint32, cost int64) store.Charge {
	c := withHolder(algorithms.HoldPair, "", algorithms.Limit{}, "r", cost)
	c.Hold.Estimate = estimate
	return c
}

func ended(hits int64) store.Charge { return end("", algorithms.Limit{}, "r", hits) }

func TestRedisIsToldOfHoldersLater(t *testing.T) {
	held, done := algorithms.HoldHeld, algorithms.HoldEnded
	for _, test := range []struct {
		name    string
		begins  bool // Redis has admitted a begin of 5 hits before
		events  []store.Charge
		rate    uint32 // remaining of 10 under a rate limit
		slots   uint32 // and under concurrency
		was     algorithms.HoldStatus
		wasSlot algorithms.HoldStatus
	}{
		{"a begin", false, []store.Charge{begun(4)}, 6, 6, held, held},
		{"a begin beyond the limit", false, []store.Charge{begun(40)}, 0, 0, held, held},
		{"a begin that Redis knows", true, []store.Charge{begun(4)}, 5, 5, held, held},
		{"a begin and its end", false, []store.Charge{begun(4), ended(7)}, 3, 10, done, 0},
		{"a begin that Redis knows, and its end", true, []store.Charge{begun(5), ended(7)}, 3, 10, done, 0},
		{"a begin and its cancel", false, []store.Charge{begun(4), canceled()}, 10, 10, 0, 0},
		{"an end", true, []store.Charge{ended(2)}, 8, 10, done, 0},
		{"an end of more", true, []store.Charge{ended(9)}, 1, 10, done, 0},
		{"two ends", true, []store.Charge{ended(2), ended(3)}, 8, 10, done, 0},
		{"an end of a holder that is not known", false, []store.Charge{ended(4)}, 6, 10, done, 0},
		{"a cancel", true, []store.Charge{canceled()}, 10, 10, algorithms.HoldDenied, 0},
		{"a pair", false, []store.Charge{paired(4, 9)}, 6, 6, held, held},
		{"a pair beyond the limit", false, []store.Charge{paired(40, 1)}, 0, 0, held, held},
		{"a pair without hits", false, []store.Charge{paired(0, 9)}, 10, 10, held, 0},
		{"a pair that Redis knows", true, []store.Charge{paired(4, 9)}, 1, 10, done, 0},
		{"both calls of a pair", false, []store.Charge{paired(4, 1), paired(9, 7)}, 3, 10, done, 0},
		{"a pair and its end", false, []store.Charge{paired(4, 1), ended(7)}, 3, 10, done, 0},
		{"an end and a new begin", true, []store.Charge{ended(1), begun(3)}, 9, 7, done, held},
	} {
		t.Run(test.name, func(t *testing.T) {
			for name, o := range map[string]Options{"": {}, "counters": {Counters: counted(fresh(t))}} {
				s, clock := given(t, o)
				for _, a := range storetest.EveryAlgorithm() {
					l := limitOfTen(a)
					key := fmt.Sprint(name, a)
					if test.begins {
						wants(t, true, s, begin(key, l, "r", 5))
					}
					at := clock.now()
					clock.sleep(time.Second)
					tellLater(s, key, l, at, test.events...)
					toldHolds(t, s)
					left, was := test.rate, test.was
					if a == algorithms.Concurrency {
						left, was = test.slots, test.wasSlot
					}
					if got := remains(t, s, begin(key, l, "", 0)); got != left {
						t.Errorf("%s %v: %d remain; want %d", name, a, got, left)
					}
					probe := end(key, l, "r", 0)
					if err := s.Peek(t.Context(), []store.Charge{probe}, make([]algorithms.Decision, 1)); err != nil || probe.Hold.Was.Status != was {
						t.Errorf("%s %v: the holder is %+v, %v; want status %d", name, a, probe.Hold.Was, err, was)
					}
				}
				if stats := s.Stats(); stats.LostHolds != 0 || stats.ToldHolds == 0 {
					t.Errorf("%+v", stats)
				}
			}
		})
	}
}

// While Redis stands still no call is answered, and Redis applies some of them when it goes on.
// Each begin counts once.
func TestHoldersAreToldOnceThoughRedisStandsStill(t *testing.T) {
	r := ownRedis(t)
	patient := open(t, urlOf("redis", r.Address()), Options{})
	s := open(t, urlOf("redis", r.Address()), Options{Timeout: 30 * time.Millisecond, Prefix: patient.main.prefix})
	for _, a := range []algorithms.Algorithm{algorithms.TokenBucket, algorithms.Concurrency} {
		l := limitOfTen(a)
		c := begin("k", l, "", 0)
		settled(t, s, c)
		paused(t, r, func() {
			tellLater(s, "k", l, s.Now(algorithms.Limit{}), begun(4))
			s.sendAll()
			eventually(t, "the call is given up", s.idle)
			if n := s.Stats().OwedHolders; n != 1 {
				t.Errorf("%v: %d holders wait after a call without an answer; want 1", a, n)
			}
		})
		toldHolds(t, s)
		if got := remains(t, patient, c); got != 6 {
			t.Errorf("%v: %d of 10 remain; want 6", a, got)
		}
		tellLater(s, "k", l, s.Now(algorithms.Limit{}), ended(3))
		toldHolds(t, s)
		want := uint32(7)
		if a == algorithms.Concurrency {
			want = 10
		}
		if got := remains(t, patient, c); got != want {
			t.Errorf("%v: %d of 10 remain after the end; want %d", a, got, want)
		}
	}
}

// Redis has applied the begin of a holder, and the answer is lost. The end comes with a request,
// before the begin is sent again.
func TestABeginThatIsToldAgainDoesNotOutliveItsEnd(t *testing.T) {
	for _, a := range storetest.EveryAlgorithm() {
		s, c := given(t, Options{})
		l := limitOfTen(a)
		tellLater(s, "k", l, s.Now(algorithms.Limit{}), begun(4))
		c.sleep(time.Millisecond)
		var told *telling
		s.in([]byte("k"), func(b *owed.Book) {
			told = s.telling(b.Tell(b.Of([]byte("k"), s.clocks())[0], s.clocks()))
		})
		b := newBatch(s.main)
		b.add(&told.call)
		told.owner = nil
		s.main.execute(&flight{node: s.main.queue.node(0)}, []*batch{b}, false)
		wants(t, true, s, end("k", l, "r", 3))
		told.err = errReply
		told.landed(underWay)
		toldHolds(t, s)
		want := uint32(7)
		if a == algorithms.Concurrency {
			want = 10
		}
		if got := remains(t, s, begin("k", l, "", 0)); got != want {
			t.Errorf("%v: %d of 10 remain after the end; want %d", a, got, want)
		}
	}
}

// A holder is told in its own window, and has its own time to live.
func TestHoldersAreToldAtTheirOwnInstant(t *testing.T) {
	s, clock := given(t, Options{})
	window := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 10, Period: time.Hour}
	at := clock.now()
	clock.sleep(59*time.Minute + 30*time.Second)
	early := clock.now()
	clock.sleep(31 * time.Second)
	tellLater(s, "k", window, at, begun(4))
	tellLater(s, "slots", inFlight(10), early, begun(4))
	toldHolds(t, s)
	if got := remains(t, s, begin("k", window, "", 0)); got != 10 {
		t.Errorf("%d of 10 remain after hits of the window before", got)
	}
	for n, want := range []uint32{6, 6, 10} {
		if got := remains(t, s, begin("slots", inFlight(10), "", 0)); got != want {
			t.Errorf("look %d: %d of 10 slots are free; want %d", n, got, want)
		}
		clock.sleep([]time.Duration{29*time.Second - Granularity, Granularity, 0}[n])
	}
	tellLater(s, "slots", inFlight(10), clock.now()-algorithms.Instant(2*time.Minute), begun(4))
	toldHolds(t, s)
	if stats := s.Stats(); stats.ExpiredHolds != 1 {
		t.Errorf("%+v; want a holder that has run out", stats)
	}
}

func TestResetForgetsHoldersThatRedisDoesNotKnowOf(t *testing.T) {
	s, clock := given(t, Options{})
	for n := range 20 {
		for _, a := range storetest.EveryAlgorithm() {
			l := limitOfTen(a)
			key := fmt.Sprint(n)
			tellLater(s, key, l, clock.now(), begun(4))
			if n%2 == 0 {
				s.sendAll()
			}
			if _, err := s.Reset(t.Context(), []store.Charge{hit(key, l)}); err != nil {
				t.Fatal(err)
			}
			if got := remains(t, s, begin(key, l, "", 0)); got != 10 {
				t.Errorf("%v: %d of 10 remain after Reset", a, got)
			}
		}
	}
}
