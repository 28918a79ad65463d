package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// A clock that goes back by hours starves a key no longer than the clock needs to pass
// farthestBack, or a window to end.
func TestClockThatGoesBackStarvesNoKey(t *testing.T) {
	for _, a := range storetest.EveryRate() {
		for _, back := range []time.Duration{farthestBack + Granularity, time.Minute, 25 * time.Hour} {
			s, clock := given(t, Options{})
			c := hit("k", algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Second})
			for range 10 {
				wants(t, true, s, c)
			}
			wants(t, false, s, c)
			clock.at.Add(-int64(back))
			wants(t, false, s, c) // the step gives nothing
			clock.sleep(2 * time.Second)
			if got := remains(t, s, c); got != 10 {
				t.Errorf("%v: %d of 10 remain 2s after the clock went back by %v", a, got, back)
			}
		}
	}
}

func TestClockThatGoesBackALittleHoldsTheKey(t *testing.T) {
	for _, a := range storetest.EveryRate() {
		s, clock := given(t, Options{})
		clock.sleep(500 * time.Millisecond)
		c := hit("k", algorithms.Limit{Algorithm: a, Requests: 10, Period: 10 * time.Second})
		c.Hits = 10
		wants(t, true, s, c)
		clock.at.Add(-int64(farthestBack))
		c.Hits = 1
		for range 2 {
			wants(t, false, s, c)
			clock.sleep(farthestBack / 2)
		}
		wants(t, false, s, c)
	}
}

// wandering moves a clock on by real time, and by steps, of which back says how large they are.
type wandering struct {
	*clock
	real, ahead time.Duration // real time since the start, and the sum of all steps ahead
	steps       int           // back
}

func (w *wandering) move(seed uint64, n int, onlyBack bool) {
	r := newRand(seed<<20 + uint64(n))
	passed := time.Duration(r.Int64N(int64(400*time.Millisecond))) * time.Duration(r.IntN(2))
	w.real += passed.Truncate(Granularity)
	w.sleep(passed.Truncate(Granularity))
	if r.IntN(4) > 0 {
		return
	}
	step := []time.Duration{time.Millisecond, time.Second, farthestBack, farthestBack + Granularity, 3 * time.Second, time.Hour, 11*time.Second + 7}[r.IntN(7)].Truncate(Granularity)
	if onlyBack || r.IntN(2) == 0 {
		w.steps++
		w.at.Add(-int64(step))
		return
	}
	w.ahead += step
	w.at.Add(int64(step))
}

// Steps back never mint. Admitted hits are at most the hits that the limit allows in real time and
// in the steps ahead. Nobody can tell a step ahead from time. A window that begins at another place
// in real time may begin anew after each step.
func TestTimeThatGoesBackAndForthNeverMints(t *testing.T) {
	const requests = 20
	for _, a := range storetest.EveryRate() {
		for _, onlyBack := range []bool{true, false} {
			s, clock := given(t, Options{})
			for seed := range uint64(race.Scale(30)) {
				w := &wandering{clock: clock}
				c := hit(fmt.Sprint("k", seed, onlyBack), algorithms.Limit{Algorithm: a, Requests: requests, Period: time.Second})
				admitted := int64(0)
				for n := range 60 {
					c.Hits = 1 + int64(n%7)
					if ok, _ := ask(t, s, c); ok {
						admitted += c.Hits
					}
					w.move(seed, n, onlyBack)
				}
				time := w.real + w.ahead
				most := requests + requests*int64(time)/int64(c.Limit.Period)
				switch a {
				case algorithms.FixedWindow:
					most = requests * (2 + int64(time/c.Limit.Period) + int64(w.steps))
				case algorithms.SlidingWindowCounter, algorithms.SlidingWindowLog:
					most = requests * (2 + int64(time/c.Limit.Period))
				default:
				}
				if admitted > most {
					t.Errorf("%v, seed %d, only back: %v: %d hits in %v of real time and %v of steps ahead (%d back); want at most %d",
						a, seed, onlyBack, admitted, w.real, w.ahead, w.steps, most)
				}
			}
			if n := s.Stats().Disagreements; n > 0 {
				t.Errorf("%v: the script and this program decided differently %d times", a, n)
			}
		}
	}
}

// The script writes the states that this program reckons, also when the clock goes back and forth.
func TestScriptAndProgramAgreeOnAClockThatGoesBack(t *testing.T) {
	s, clock := given(t, Options{})
	for seed := range uint64(race.Scale(60)) {
		r := newRand(seed)
		w := &wandering{clock: clock}
		all := families(r, fmt.Sprint("back ", seed), 2)
		for i := range all {
			all[i].limits = all[i].limits[:1] // under another limit a held state has two forms
		}
		var last []algorithms.Decision
		for n := range 40 {
			charges := randomCharges(r, all, last)
			c := callOf([]action{take, take, reserve}[r.IntN(3)], charges...)
			run(t, s, c)
			for i := range c.charges {
				if !c.charges[i].Limit.Algorithm.HasState() {
					continue
				}
				var got kept
				if raw := dump(t, s, &c.charges[i]); raw != "" {
					var err error
					if got, err = parse(raw, c.charges[i].Limit); err != nil {
						t.Fatal(err)
					}
				}
				if diff := cmp.Diff(seenAt(c.after[i], clock.now()), seenAt(got, clock.now())); diff != "" {
					t.Fatalf("seed %d, step %d, charge %d of %+v: (-want +in Redis) %s", seed, n, i, c.charges, diff)
				}
			}
			last = c.decisions
			w.move(seed, n, false)
		}
	}
	if n := s.Stats().Disagreements; n > 0 {
		t.Errorf("the script and this program decided differently %d times", n)
	}
}

// A log keeps the ages of its hits, its order and its expiry when the clock goes back.
func TestLogMovesWithTheClock(t *testing.T) {
	s, clock := given(t, Options{})
	c := hit("k", algorithms.Limit{Algorithm: algorithms.SlidingWindowLog, Requests: 200, Period: 10 * time.Second})
	for range 100 { // more than a chunk
		wants(t, true, s, c)
		clock.sleep(50 * time.Millisecond)
	}
	clock.at.Add(-int64(time.Hour))
	if got := remains(t, s, c); got != 100 {
		t.Errorf("%d of 200 remain after the step; want 100", got)
	}
	if err := holdsLog(t, s, s.name(&c), c.Limit, clock.now().Add(10*time.Second)); err != nil {
		t.Error(err)
	}
	if ttl, err := command(t, s, "PTTL", s.name(&c)).AsInt64(); err != nil || ttl <= 0 {
		t.Errorf("the list expires in %d ms: %v", ttl, err)
	}
	clock.sleep(10*time.Second - 99*50*time.Millisecond)
	if got := remains(t, s, c); got != 101 {
		t.Errorf("%d of 200 remain when the oldest hit has expired; want 101", got)
	}
}

// Hits from before a step count at the end of the step. The bucket does not gain the time that the
// step took back.
func TestDeferredHitsOfBeforeAStepMintNothing(t *testing.T) {
	for _, a := range []algorithms.Algorithm{algorithms.TokenBucket, algorithms.TokenBucketInteger, algorithms.FixedWindow, algorithms.SlidingWindowCounter} {
		s, clock := given(t, Options{})
		c := hit("k", algorithms.Limit{Algorithm: a, Requests: 10, Period: time.Second})
		c.Hits = 10
		wants(t, true, s, c)
		told := clock.now()
		clock.at.Add(-int64(time.Minute))
		c.Hits = 0
		remains(t, s, c) // the state goes on from now
		owed := c
		owed.Hits = 1
		s.Later(&owed, told, store.Part{})
		payAll(t, s)
		if got := remains(t, s, c); got != 0 {
			t.Errorf("%v: %d of 10 remain after 11 hits", a, got)
		}
	}
}
