package memstore

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// other is a key as another store keeps it.
type other struct {
	state store.State
	log   algorithms.Log
}

// take takes the hits of a charge, and returns the state for Left and the decision.
func (o *other) take(c *store.Charge, now algorithms.Instant) (left store.State, d algorithms.Decision) {
	if !c.Limit.Algorithm.HasState() {
		return store.State{Now: now}, o.log.Take(c.Limit, now, c.Hits, c.CountRejected)
	}
	d = o.state.Take(c.Limit, now, c.Hits, c.CountRejected)
	left = o.state
	if left.Now = now; left.State.Unused() {
		left = store.State{Now: now}
	}
	return left, d
}

// peek returns the decision on a probe.
func (o *other) peek(c *store.Charge, now algorithms.Instant) algorithms.Decision {
	copied, probe := *o, *c
	probe.Hits = 0
	_, d := copied.take(&probe, now)
	return d
}

// goOn continues one charge.
func goOn(s *Store, c store.Charge, left store.State, d algorithms.Decision) {
	s.Continue([]store.Charge{c}, []store.State{left}, []algorithms.Decision{d})
}

// randomLimit returns a limit of few hits in a minute.
func randomLimit(r *rand.Rand, a algorithms.Algorithm) algorithms.Limit {
	l := algorithms.Limit{Algorithm: a, Requests: 1 + uint32(r.IntN(12)), Period: time.Minute}
	if a == algorithms.TokenBucket && r.IntN(2) == 0 {
		l.Burst = 1 + uint32(r.IntN(30))
	}
	if a.HasWindows() && r.IntN(2) == 0 {
		l.SetPerPeriod(uint64(l.Requests) << 35)
	}
	return l
}

func TestAStoreGoesOnFromTheStatesOfAnotherOne(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		t.Run(a.String(), func(t *testing.T) {
			inBubble(t, Options{SweepInterval: time.Hour}, func(t *testing.T, s *Store) {
				r := rand.New(rand.NewPCG(1, uint64(a)))
				denied := 0
				for n := range race.Scale(2000) {
					c := store.Charge{Key: fmt.Append(nil, "key ", n%7), Limit: randomLimit(r, a), CountRejected: r.IntN(3) == 0}
					var o other
					var left store.State
					var d algorithms.Decision
					for range 1 + r.IntN(8) { // the last answer counts
						time.Sleep(time.Duration(r.IntN(20_000)) * time.Millisecond)
						c.Hits = int64(r.IntN(9) - 2)
						left, d = o.take(&c, s.now())
						goOn(s, c, left, d)
					}
					for range 5 {
						c.Hits = int64(r.IntN(5))
						now := s.now()
						want, got := o.peek(&c, now), peek(t, s, c)
						if !a.HasState() {
							c.Hits = 0
							got = peek(t, s, c)
							if got.Remaining > want.Remaining || got.ResetAfter != want.ResetAfter {
								t.Fatalf("%+v: got %+v left, and %+v by the other store", c.Limit, got, want)
							}
							time.Sleep(time.Duration(r.IntN(20_000)) * time.Millisecond)
							continue
						}
						_, want = o.take(&c, now)
						if got = takeCharge(t, s, c); got != want {
							t.Fatalf("%+v, %d hits: got %+v, want %+v", c.Limit, c.Hits, got, want)
						}
						if !got.Allowed {
							denied++
						}
						time.Sleep(time.Duration(r.IntN(20_000)) * time.Millisecond)
					}
				}
				if a.HasState() && denied < 100 {
					t.Errorf("%d denials are too few to show anything", denied)
				}
				if err := s.checkPlaces(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Another clock never leaves more, as long as the windows of both clocks last.
func TestAnotherClockLeavesNoMore(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		t.Run(a.String(), func(t *testing.T) {
			inBubble(t, Options{SweepInterval: time.Hour}, func(t *testing.T, s *Store) {
				r := rand.New(rand.NewPCG(2, uint64(a)))
				for n := range race.Scale(3000) {
					skew := time.Duration(r.Int64N(int64(3*time.Minute))) - 90*time.Second
					theirs := func() algorithms.Instant { return s.now() + algorithms.Instant(skew) }
					c := store.Charge{Key: fmt.Append(nil, "key ", n), Limit: randomLimit(r, a), CountRejected: r.IntN(3) == 0}
					var o other
					var left store.State
					var d algorithms.Decision
					for range 1 + r.IntN(8) {
						time.Sleep(time.Duration(r.IntN(20_000)) * time.Millisecond)
						c.Hits = int64(r.IntN(9) - 2)
						left, d = o.take(&c, theirs())
					}
					goOn(s, c, left, d)
					lasts := min(rest(theirs()), rest(s.now()))
					for _, part := range []time.Duration{0, 3, 2, 1} {
						if part > 0 {
							time.Sleep(lasts / 4)
						}
						c.Hits = 0
						if got, want := peek(t, s, c), o.peek(&c, theirs()); got.Remaining > want.Remaining || a.HasState() && !want.Allowed && got.Allowed {
							t.Fatalf("%+v, skew %v: got %+v, the other store has %+v", c.Limit, skew, got, want)
						}
					}
				}
			})
		})
	}
}

// rest returns how long the minute of an instant lasts.
func rest(now algorithms.Instant) time.Duration {
	return time.Minute - time.Duration(now)%time.Minute
}

func takeCharge(t *testing.T, s *Store, c store.Charge) algorithms.Decision {
	t.Helper()
	d := make([]algorithms.Decision, 1)
	if _, err := store.Take(t.Context(), s, []store.Charge{c}, d); err != nil {
		t.Fatal(err)
	}
	return d[0]
}

func peek(t *testing.T, s *Store, c store.Charge) algorithms.Decision {
	t.Helper()
	d := make([]algorithms.Decision, 1)
	if err := s.Peek(t.Context(), []store.Charge{c}, d); err != nil {
		t.Fatal(err)
	}
	return d[0]
}

// Answers that come together wake several goroutines, in any order.
func TestAnAnswerThatWasOvertakenChangesNothing(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		t.Run(a.String(), func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, s *Store) {
				c := store.Charge{Key: []byte("key"), Limit: algorithms.Limit{Algorithm: a, Requests: 100, Period: time.Hour}, Hits: 1}
				type answer struct {
					left store.State
					d    algorithms.Decision
				}
				var o other
				var answers []answer
				for n := range 30 {
					time.Sleep(time.Duration(n%3/2) * time.Millisecond) // three answers of each instant
					left, d := o.take(&c, s.now())
					answers = append(answers, answer{left, d})
				}
				rand.New(rand.NewPCG(3, 3)).Shuffle(len(answers), func(i, j int) { answers[i], answers[j] = answers[j], answers[i] })
				for _, a := range answers {
					goOn(s, c, a.left, a.d)
				}
				if got := peek(t, s, store.Charge{Key: c.Key, Limit: c.Limit}); got.Remaining != 70 {
					t.Errorf("got %d left, want 70", got.Remaining)
				}
				time.Sleep(time.Millisecond)
				back := s.now() - algorithms.Instant(time.Minute) // the other clock went back
				if c.Hits = -10; a != algorithms.SlidingWindowLog && a != algorithms.FixedWindow {
					c.Hits = 0
				}
				left, d := (&other{}).take(&c, back)
				goOn(s, c, left, d)
				if got := peek(t, s, store.Charge{Key: c.Key, Limit: c.Limit}); got.Remaining != 100 {
					t.Errorf("after a step back: got %d left, want 100", got.Remaining)
				}
			})
		})
	}
}

func TestGoingOnKeepsTheBoundAndEveryDeniedKey(t *testing.T) {
	const maxKeys = 600
	for _, a := range algorithms.RateAlgorithms() {
		t.Run(a.String(), func(t *testing.T) {
			inBubble(t, Options{MaxKeys: maxKeys, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
				spent := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1, Period: 1000 * time.Hour}
				for n := range maxKeys / 2 {
					take(t, s, fmt.Sprint("denied ", n), spent, 1)
				}
				l := algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Hour}
				for n := range 3 * maxKeys {
					c := store.Charge{Key: fmt.Append(nil, "key ", n), Limit: l, Hits: 3}
					left, d := (&other{}).take(&c, s.now())
					goOn(s, c, left, d)
				}
				st := s.Stats()
				if st.Places > maxKeys || st.Evicted == 0 || st.Keys <= maxKeys/2 {
					t.Errorf("%+v; want a full store that forgets keys", st)
				}
				for n := range maxKeys / 2 {
					if d := take(t, s, fmt.Sprint("denied ", n), spent, 1); d.Allowed {
						t.Fatalf("a denied key was forgotten")
					}
				}
				if err := s.checkPlaces(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestABanOrAnIdleKeyLeavesNothingBehind(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		t.Run(a.String(), func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, s *Store) {
				l := algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Hour}
				c := store.Charge{Key: []byte("key"), Limit: l, Hits: 3}
				take(t, s, "key", l, 5)
				var o other
				left, d := o.take(&c, s.now())
				goOn(s, c, left, d)
				if got := peek(t, s, store.Charge{Key: c.Key, Limit: l}); got.Remaining != 7 {
					t.Errorf("got %d left, want 7", got.Remaining)
				}
				banned := c
				banned.Limit.Requests = 0
				time.Sleep(time.Second)
				left, d = o.take(&banned, s.now())
				goOn(s, banned, left, d)
				if got := peek(t, s, store.Charge{Key: c.Key, Limit: l}); got.Remaining != 7 {
					t.Errorf("after a ban: got %d left, want 7", got.Remaining)
				}
				c.Hits = -3
				time.Sleep(time.Second)
				left, d = o.take(&c, s.now())
				goOn(s, c, left, d)
				if got := s.Stats(); got.Keys != 0 || got.Places != 0 {
					t.Errorf("%+v; want no key", got)
				}
			})
		})
	}
}

// TestRequestsGoOnWhileStatesCome is for the race detector first.
func TestRequestsGoOnWhileStatesCome(t *testing.T) {
	s, err := New(Options{MaxKeys: 300, SweepInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 5))
			for range race.Scale(20_000) {
				c := store.Charge{Key: fmt.Append(nil, "key ", r.IntN(400)), Hits: 1}
				c.Limit = algorithms.Limit{Algorithm: algorithms.RateAlgorithms()[r.IntN(5)], Requests: 10, Period: 100 * time.Millisecond}
				if w%2 == 0 {
					takeCharge(t, s, c)
					continue
				}
				left, d := (&other{}).take(&c, s.now())
				goOn(s, c, left, d)
			}
		})
	}
	all.Wait()
	if err := s.checkPlaces(); err != nil {
		t.Error(err)
	}
}

func TestGoingOnWithAKnownKeyAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, limit := range benchLimits() {
		charges, states, decisions := answers(s, limit)
		if n := testing.AllocsPerRun(1000, func() {
			states[0].Now++
			s.Continue(charges, states, decisions)
		}); n != 0 {
			t.Errorf("%v: Continue allocates %v times; want none", limit.Algorithm, n)
		}
	}
}

// answers returns one answer of another store.
func answers(s *Store, limit algorithms.Limit) ([]store.Charge, []store.State, []algorithms.Decision) {
	c := store.Charge{Key: benchKey(1), Limit: limit, Hits: 1}
	left, d := (&other{}).take(&c, s.now())
	return []store.Charge{c}, []store.State{left}, []algorithms.Decision{d}
}

// BenchmarkContinue is an answer of another store about one key that every request has.
func BenchmarkContinue(b *testing.B) {
	for _, limit := range benchLimits() {
		b.Run(limit.Algorithm.String(), func(b *testing.B) {
			s := benchStore(b, 0)
			charges, states, decisions := answers(s, limit)
			b.ReportAllocs()
			for b.Loop() {
				states[0].Now++
				s.Continue(charges, states, decisions)
			}
		})
	}
}

// The hits of this process make room one after the other. Where the store has no free place, and
// for a key of one answer, all hits of a log expire with the newest one.
func TestOwnHitsOfALogTakeOnlyFreePlaces(t *testing.T) {
	for _, maxKeys := range []int{1000, 120} {
		inBubble(t, Options{MaxKeys: maxKeys, SweepInterval: time.Hour}, func(t *testing.T, s *Store) {
			l := algorithms.Limit{Algorithm: algorithms.SlidingWindowLog, Requests: 100, Period: time.Minute}
			const keys = 30
			for range 12 {
				for n := range keys {
					c := store.Charge{Key: fmt.Append(nil, "key ", n), Limit: l, Hits: 1}
					left := store.State{Now: s.now()}
					left.SetOwn(algorithms.OwnHits{Hits: 5, Price: 5})
					goOn(s, c, left, algorithms.Decision{Allowed: true, Remaining: 10, ResetAfter: time.Minute})
				}
				time.Sleep(4 * time.Second)
			}
			if err := s.checkPlaces(); err != nil {
				t.Error(err)
			}
			time.Sleep(30 * time.Second)
			freed := 0
			for n := range keys {
				if peek(t, s, store.Charge{Key: fmt.Append(nil, "key ", n), Limit: l}).Remaining > 10 {
					freed++
				}
			}
			t.Logf("%d places: %d of %d keys have room for hits that have expired, %+v", maxKeys, freed, keys, s.Stats())
			if all := maxKeys == 1000; all != (freed == keys) || s.Stats().Evicted > 0 {
				t.Errorf("%d places: %d of %d keys have room; %d were evicted", maxKeys, freed, keys, s.Stats().Evicted)
			}
		})
	}
}
