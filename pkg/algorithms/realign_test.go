package algorithms

import (
	"math"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// realign carries a key over a step of the clock.
func (k *key) realign(now Instant, step time.Duration) {
	k.state = Realign(k.limit, k.state, now, step)
	k.log.Realign(step)
}

// chooseStep returns a step of the clock, often small against the period or near it.
func chooseStep(c chooser, l Limit) time.Duration {
	some := time.Duration(c.upTo("any step", uint64(3*l.Period)))
	step := pick(c, "step", 1, l.Period, l.Period-1, l.Period+1, l.Period/2, some, some/16, some/256, 200*time.Millisecond, time.Hour, 5*MaxPeriod)
	return step * time.Duration(pick(c, "direction", 1, -1))
}

// aligned is a key at an instant of its clock after a walk, with room for steps on both sides.
func aligned(c chooser, a Algorithm) (k *key, now Instant, d Decision) {
	k, now, d = used(c, a, true)
	for now < math.MinInt64/4 || now > math.MaxInt64/4 || !k.unused() && (k.last() < math.MinInt64/4 || k.last() > math.MaxInt64/4) {
		k, now, d = newKey(k.limit), Instant(c.upTo("another start", 1<<61)), Decision{}
		d = k.take(now, chooseHits(c, k.limit, d, false), false)
	}
	return k, k.held(now), d
}

// A bucket and a log decide after a step as if there had been no step.
func TestAStepOfTheClockChangesNoDecisionWithoutWindows(t *testing.T) {
	windowless := slices.DeleteFunc(RateAlgorithms(), func(a Algorithm) bool { return a == FixedWindow || a == SlidingWindowCounter })
	holdsOf(t, 2000, windowless, func(t failer, c chooser, a Algorithm) {
		k, now, d := aligned(c, a)
		step, stepped := chooseStep(c, k.limit), k.clone()
		stepped.realign(now, step)
		for range 1 + c.upTo("later charges", 8) {
			if now = max(now, chooseNext(c, k.limit, now, d)); now > math.MaxInt64/4 {
				return
			}
			hits, countRejected := chooseHits(c, k.limit, d, true), c.upTo("count rejected", 2) == 1
			d = k.take(now, hits, countRejected)
			if got := stepped.take(now+Instant(step), hits, countRejected); got != d {
				t.Fatalf("a step of %v, then %d hits at %d: (-without the step +with it)\n%s\n%v", step, hits, now, cmp.Diff(d, got), k)
			}
		}
	})
}

// A step frees no window: the window stays as full as it was. The window ends by the clock after
// the step, at a multiple of the period.
func TestAStepOfTheClockCarriesTheCountOfTheWindow(t *testing.T) {
	holdsOf(t, 4000, []Algorithm{FixedWindow}, func(t failer, c chooser, a Algorithm) {
		k, now, _ := aligned(c, a)
		step := chooseStep(c, k.limit)
		before := k.take(now, 0, false)
		k.realign(now, step)
		next := now + Instant(step)
		after := k.take(next, 0, false)
		if after.Remaining != before.Remaining || after.Allowed != before.Allowed {
			t.Fatalf("a step of %v at %d: got %+v, before %+v: %v", step, now, after, before, k)
		}
		end := next.Add(after.ResetAfter)
		if elapsed(k.limit.Period, end) != 0 {
			t.Fatalf("a step of %v at %d: the window ends at %d, which is not a multiple of the period: %v", step, now, end, k)
		}
		if past(next, end) >= 2*uint64(k.limit.Period) {
			t.Fatalf("a step of %v at %d: the window ends only at %d: %v", step, now, end, k)
		}
		if last := k.take(end-1, 0, false); last.Remaining != before.Remaining {
			t.Fatalf("a step of %v at %d: got %+v just before the end, want the count of before: %v", step, now, last, k)
		}
		if fresh := k.take(end, 0, false); fresh.Remaining != k.limit.Capacity() || !fresh.Allowed {
			t.Fatalf("a step of %v at %d: got %+v at the end %d, want an empty window: %v", step, now, fresh, end, k)
		}
	})
}

// A step lowers no estimate at its instant. If the window ends sooner than before, the estimate can
// be lower later. The difference is at most count*sooner/Period.
func TestAStepOfTheClockHardlyLowersAnEstimate(t *testing.T) {
	estimate := func(k *key, at Instant) *big.Rat {
		w := slidingWindowCounter{}.windows(k.limit, k.state, at)
		e := new(big.Int).Mul(new(big.Int).SetUint64(w.previous), new(big.Int).SetUint64(uint64(k.limit.Period)-w.elapsed))
		return new(big.Rat).Add(new(big.Rat).SetFrac(e, big.NewInt(int64(k.limit.Period))), new(big.Rat).SetInt(new(big.Int).SetUint64(w.current)))
	}
	holdsOf(t, 4000, []Algorithm{SlidingWindowCounter}, func(t failer, c chooser, a Algorithm) {
		k, now, _ := aligned(c, a)
		step, stepped := chooseStep(c, k.limit), k.clone()
		stepped.realign(now, step)
		next := now + Instant(step)
		if IdleAt(k.limit, k.state) <= now {
			if !stepped.state.Unused() {
				t.Fatalf("a step of %v at %d: an idle key has the state %v", step, now, stepped)
			}
			return
		}
		if estimate(stepped, next).Cmp(estimate(k, now)) < 0 {
			t.Fatalf("a step of %v at %d: the estimate fell to %v: %v, before %v", step, now, estimate(stepped, next), stepped, k)
		}
		most := new(big.Rat).Add(estimate(k, now), big.NewRat(1, 1))
		if estimate(stepped, next).Cmp(most) > 0 {
			t.Fatalf("a step of %v at %d: the estimate rose to %v: %v, before %v", step, now, estimate(stepped, next), stepped, k)
		}
		left := k.limit.Period - elapsed(k.limit.Period, now)
		after := k.limit.Period - elapsed(k.limit.Period, stepped.held(next)) + stepped.held(next).Sub(next)
		gain := big.NewRat(0, 1)
		if after < left {
			count := slidingWindowCounter{}.windows(k.limit, k.state, now).current
			gain.SetFrac(new(big.Int).Mul(new(big.Int).SetUint64(count), big.NewInt(int64(left-after))), big.NewInt(int64(k.limit.Period)))
		}
		for range 8 {
			wait := Instant(c.upTo("wait", uint64(2*k.limit.Period)))
			got := new(big.Rat).Add(estimate(stepped, next+wait), gain)
			if want := estimate(k, now+wait); got.Cmp(want) < 0 {
				t.Fatalf("a step of %v at %d: after %d the estimate is %v, without the step %v, and may be %v less: %v, before %v",
					step, now, wait, estimate(stepped, next+wait), want, gain, stepped, k)
			}
		}
		if idle := stepped.idleAt(); past(next, idle) > 3*uint64(k.limit.Period) {
			t.Fatalf("a step of %v at %d: idle only at %d: %v", step, now, idle, stepped)
		}
	})
}

// Under a clock that steps at random, a key admits its promise for the time that has passed. With
// windows the key may admit one limit more for each step.
func TestRandomStepsOfTheClockMintNothing(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		l := Limit{Algorithm: a, Requests: uint32(1 + c.upTo("requests", 20)), Period: time.Duration(1+c.upTo("period", 50)) * time.Second}
		k, now := newKey(l), Instant(1_700_000_000_000_000_000)
		var passed time.Duration
		admitted, steps := uint64(0), uint64(0)
		for range 200 {
			wait := time.Duration(c.upTo("wait", uint64(l.Period/8)))
			now, passed = now+Instant(wait), passed+wait
			if c.upTo("steps now", 9) == 0 {
				step := chooseStep(c, l) % (5 * MaxPeriod)
				k.realign(now, step)
				now, steps = now+Instant(step), steps+1
				if now < 1_000_000_000_000_000_000 || now > 3_000_000_000_000_000_000 {
					k.realign(now, time.Duration(1_700_000_000_000_000_000-now))
					now, steps = 1_700_000_000_000_000_000, steps+1
				}
			}
			hits := 1 + c.upTo("hits", 3)
			if k.take(now, int64(hits), false).Allowed {
				admitted += hits
			}
		}
		requests, periods := uint64(l.Requests), uint64(passed/l.Period)+1
		most := requests + periods*requests
		switch a {
		case FixedWindow, SlidingWindowCounter, CalendarWindow, CalendarCounter:
			most += requests * (1 + steps)
		case TokenBucketInteger:
			most += 200 // a nanosecond's gain per charge
		case TokenBucket, SlidingWindowLog, Concurrency, Learned, Escalation: // steps change no decision
		}
		if admitted > most {
			t.Fatalf("%d steps in %v: %d hits passed, want at most %d: %v", steps, passed, admitted, most, k)
		}
	})
}

// A state that an algorithm made is valid. A clamped state of any parts is one, and its key is idle
// in bounded time.
func TestClampKeepsStatesThatAnAlgorithmMade(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, now, _ := used(c, a, true)
		if a == SlidingWindowLog || k.unused() {
			return
		}
		if got := Clamp(k.limit, k.state, k.held(now)); got != k.state {
			t.Fatalf("at %d: got %+v: %v", now, got, k)
		}
	})
}

func TestClampBoundsAnyState(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		if a == SlidingWindowLog {
			return
		}
		l := chooseLimit(c, a)
		now := Instant(c.upTo("now", 1<<61))
		s := Clamp(l, State{last: anyInstant(c), a: anyWord(c), b: anyWord(c)}, now)
		if s.Unused() {
			return
		}
		if again := Clamp(l, s, now); again != s {
			t.Fatalf("%+v: clamped twice: %+v, once %+v", l, again, s)
		}
		_, d := Take(l, s, now, 1, true)
		if d.Remaining > l.Capacity() || d.RetryAfter < 0 || d.ResetAfter < 0 {
			t.Fatalf("%+v, %+v at %d: got %+v", l, s, now, d)
		}
		idle := IdleAt(l, s)
		most := 4 * uint64(l.Period)
		if l.Requests > 0 && l.Algorithm != FixedWindow && l.Algorithm != SlidingWindowCounter {
			most += min(l.gain(product(MaxOwed, uint64(l.Period))), math.MaxInt64)
		}
		if past(now, idle) > most && most < math.MaxInt64 && idle < math.MaxInt64 {
			t.Fatalf("%+v, %+v: idle %d ns after %d, want at most %d", l, s, past(now, idle), now, most)
		}
	})
}

// A log that is restored from its entries decides as before.
func TestARestoredLogDecidesAsBefore(t *testing.T) {
	holdsOf(t, 2000, []Algorithm{SlidingWindowLog}, func(t failer, c chooser, a Algorithm) {
		k, now, d := used(c, a, true)
		now = k.held(now)
		restored := newKey(k.limit)
		for _, e := range k.log.AppendEntries(nil) {
			restored.log.Restore(k.limit, e, now)
		}
		for range 1 + c.upTo("later charges", 8) {
			now = max(now, chooseNext(c, k.limit, now, d))
			hits, countRejected := chooseHits(c, k.limit, d, true), c.upTo("count rejected", 2) == 1
			d = k.take(now, hits, countRejected)
			if got := restored.take(now, hits, countRejected); got != d {
				t.Fatalf("%d hits at %d: (-before +restored)\n%s\n%v", hits, now, cmp.Diff(d, got), k)
			}
		}
	})
}

// A clock that goes back by more than the tolerance makes the last charge one of now, and mints
// nothing at that instant.
func TestAStateOfTheFutureGoesOnAtNow(t *testing.T) {
	const tolerance = 2 * time.Second
	for _, a := range RateAlgorithms() {
		if !a.HasState() {
			continue
		}
		l, now := Limit{Algorithm: a, Requests: 10, Period: time.Minute}, Instant(1_000_000_000_000_000)
		s, _ := Take(l, State{}, now-Instant(20*time.Second), 6, false)
		s, before := Take(l, s, now, 1, false)
		if got := Rewind(l, s, now-Instant(tolerance), tolerance); got != s {
			t.Errorf("%v: a state within the tolerance became %+v, was %+v", a, got, s)
		}
		back := now - Instant(time.Hour)
		rewound := Rewind(l, s, back, tolerance)
		_, after := Take(l, rewound, back, 0, false)
		if after.Remaining > before.Remaining {
			t.Errorf("%v: %d hits remain after the clock went back, %d before", a, after.Remaining, before.Remaining)
		}
		if _, d := Take(l, rewound, back.Add(2*l.Period), 10, false); !d.Allowed {
			t.Errorf("%v: the key starves: %+v", a, d)
		}
		if again := Rewind(l, rewound, back, tolerance); again != rewound {
			t.Errorf("%v: a second Rewind changed %+v to %+v", a, rewound, again)
		}
	}
}
