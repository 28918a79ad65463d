package redisstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// inFlight returns a limit of concurrency.
func inFlight(most uint32) algorithms.Limit {
	return algorithms.Limit{Algorithm: algorithms.Concurrency, Requests: most}
}

// withHolder returns a charge with a holder that is known for a minute.
func withHolder(p algorithms.HoldPhase, key string, l algorithms.Limit, holder string, hits int64) store.Charge {
	c := hit(key, l)
	c.Hits, c.Hold = hits, &store.Hold{Phase: p, Holder: store.HolderOf([]byte(holder)), AtMost: time.Minute}
	return c
}

func begin(key string, l algorithms.Limit, holder string, hits int64) store.Charge {
	return withHolder(algorithms.HoldBegin, key, l, holder, hits)
}

func end(key string, l algorithms.Limit, holder string, hits int64) store.Charge {
	return withHolder(algorithms.HoldEnd, key, l, holder, hits)
}

// A reset deletes the book of the holders. A new book has another name, so the records of the old
// one stay forgotten.
func TestResetForgetsHolders(t *testing.T) {
	for name, open := range map[string]func() *Store{
		"single":   func() *Store { s, _ := given(t, Options{}); return s },
		"cluster":  func() *Store { s := clustered(t, Options{}); newClock().drives(s); return s },
		"counters": func() *Store { s, _ := given(t, Options{Counters: counted(fresh(t))}); return s },
		"counters in a cluster": func() *Store {
			s := clustered(t, Options{Counters: counted(fresh(t))})
			newClock().drives(s)
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open()
			for _, a := range storetest.EveryAlgorithm() {
				l := perAge(a, 10)
				if a == algorithms.Concurrency {
					l = inFlight(10)
				}
				for _, holder := range []string{"r", "s"} {
					wants(t, true, s, begin("k", l, holder, 5))
				}
				for _, want := range []int{1, 0} {
					if n, err := s.Reset(t.Context(), []store.Charge{hit("k", l)}); n != want || err != nil {
						t.Errorf("%v: Reset forgot %d, %v; want %d", a, n, err, want)
					}
				}
				again := begin("k", l, "r", 7)
				wants(t, true, s, again)
				e := end("k", l, "s", 0)
				wants(t, true, s, e)
				if again.Hold.Was != (algorithms.Hold{}) || e.Hold.Was != (algorithms.Hold{}) {
					t.Errorf("%v: after Reset the holders were %+v and %+v", a, again.Hold.Was, e.Hold.Was)
				}
				if left := remains(t, s, begin("k", l, "", 0)); left != 3 {
					t.Errorf("%v: %d remaining after a begin of 7 of 10", a, left)
				}
			}
		})
	}
}

// After a begin and an end there is no key for longer than the holder is known, and the rest of a
// book. A state lives for its period: a day, so that no window ends during the test.
func TestNothingOfHoldersIsLeftInRedis(t *testing.T) {
	const day = 24 * time.Hour
	for _, a := range storetest.EveryAlgorithm() {
		s := open(t, urlOf("redis", shared(t).Address()), Options{})
		l := algorithms.Limit{Algorithm: a, Requests: 10, Period: day}
		if a == algorithms.Concurrency {
			l.Period = 0
		}
		r := begin("k", l, "r", 5)
		wants(t, true, s, r, begin("k", l, "s", 5))
		names := namesLeft(t, s)
		if a == algorithms.Concurrency && len(names) != 2 {
			t.Errorf("%v: the keys are %q; want a set and a book", a, names)
		}
		state, _ := s.main.appendName(nil, &r, 0)
		if !slices.Contains(names, string(state)) {
			t.Errorf("%v: the keys are %q; want the state %q among them", a, names, state)
		}
		for _, name := range names {
			most := time.Minute*9/8 + 2*time.Millisecond // Redis rounds twice
			if name == string(state) && a != algorithms.Concurrency {
				most = 2 * day // of a window and the one before
			}
			left, err := command(t, s, "PTTL", name).AsInt64()
			if d := time.Duration(left) * time.Millisecond; err != nil || d <= 0 || d > most {
				t.Errorf("%v: %q lives for %v, %v; want until its holder has run out, and an eighth more", a, name, d, err)
			}
		}
		wants(t, true, s, end("k", l, "r", 0), end("k", l, "s", 0))
		if names := namesLeft(t, s); a == algorithms.Concurrency && len(names) > 0 {
			t.Errorf("the keys %q are left after the last end", names)
		}
	}
}

// The keys of a state and of its holders lie in one slot, and no name means two things.
func TestHoldersLieInTheSlotOfTheirState(t *testing.T) {
	for _, s := range namings() {
		seen := map[string]bool{}
		keys := []string{"k", "a;6;0;hx", "{x}", "{", "}", "a{b}c", "k;6;0", "{}", "x{}y"}
		for n := range 20_000 { // more than slots: the name of a book lies in the slot of the state by chance
			keys = append(keys, fmt.Sprint(n))
		}
		for _, key := range keys {
			for _, a := range storetest.EveryAlgorithm() {
				l := perAge(a, 1)
				if a == algorithms.Concurrency {
					l = inFlight(1)
				} else if key[0] >= '0' && key[0] <= '9' {
					continue // one of each number is enough
				}
				c := begin(key, l, "r", 1)
				server := s.of(&c)
				name, _ := server.appendName(nil, &c, 0)
				book := server.appendBook(nil, &c)
				names := []string{string(name), string(book), string(appendHolder(slices.Clone(book), c.Hold.Holder))}
				for i, n := range names {
					if seen[n] {
						t.Errorf("%q is the name of two keys", n)
					}
					seen[n] = true
					if i > 0 && server.cluster && slotOf(n) != slotOf(names[0]) {
						t.Errorf("%q lies in another slot than %q", n, names[0])
					}
				}
			}
		}
	}
}

// Also of a begin that Redis saw before the window of the program's clock.
func TestHoldersGiveBackInTheWindowOfTheProgramsClock(t *testing.T) {
	s, clock := given(t, Options{Counters: counted(fresh(t))})
	limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 10, Period: time.Minute}
	window := clock.now()
	for _, step := range []struct {
		charge    store.Charge
		redis     time.Duration // Redis's clock after the start of the window
		remaining uint64
	}{
		{begin("k", limit, "r", 8), -5 * time.Second, 2},
		{end("k", limit, "r", 3), time.Second, 7},
	} {
		c := callOf(take, step.charge)
		c.at = window
		clock.at.Store(int64(window) + int64(step.redis))
		run(t, s, c)
		if d := c.decisions[0]; d.Remaining != step.remaining {
			t.Errorf("phase %d: %d remain; want %d", step.charge.Hold.Phase, d.Remaining, step.remaining)
		}
	}
}

func TestHoldersGiveBackAfterTheClockHasGoneBack(t *testing.T) {
	for _, a := range storetest.EveryRate() {
		if a == algorithms.SlidingWindowLog {
			continue // gives back hits of an instant, which has moved
		}
		s, clock := given(t, Options{})
		l := algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Minute}
		wants(t, true, s, begin("k", l, "r", 8))
		clock.at.Add(-int64(time.Hour))
		decisions := make([]algorithms.Decision, 1)
		if _, err := store.Take(t.Context(), s, []store.Charge{end("k", l, "r", 3)}, decisions); err != nil || decisions[0].Remaining != 7 {
			t.Errorf("%v: %d of 10 remain after an end, %v; want 7", a, decisions[0].Remaining, err)
		}
	}
}
