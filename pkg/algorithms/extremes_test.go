package algorithms

import (
	"math"
	"testing"
	"time"
)

// Property 9 of the semantics: no input causes a panic. That nothing overflows is in
// agreement_test.go.

func TestNothingPanicsOnAnyInput(t *testing.T) {
	holds(t, func(_ failer, c chooser, a Algorithm) { anything(c, a) })
}

func TestNothingPanicsOnAnAlgorithmThatNoRuleNames(t *testing.T) {
	for _, a := range []Algorithm{0, 6, Learned, math.MaxUint8} {
		anything(seedChooser{newRand(uint64(a))}, a)
	}
}

// anything calls everything there is with arguments that no caller should pass.
func anything(c chooser, a Algorithm) {
	l, other := anyLimit(c, a), anyLimit(c, a)
	var g Log
	for range 1 + c.upTo("steps", 8) {
		s := State{last: anyInstant(c), a: anyWord(c), b: anyWord(c)}
		now, hits, countRejected := anyInstant(c), int64(anyWord(c)), c.upTo("count rejected", 1) == 1
		next, _ := Take(l, s, now, hits, countRejected)
		Take(l, next, anyInstant(c), int64(anyWord(c)), countRejected)
		IdleAt(l, s)
		Change(l, other, s, now)
		Change(Limit{Algorithm: a, Period: other.Period}, other, s, now)

		Realign(l, s, now, time.Duration(anyWord(c)))
		Take(l, Clamp(l, s, now), anyInstant(c), hits, countRejected)

		g.Take(l, now, hits, countRejected)
		g.Realign(time.Duration(anyWord(c)))
		g.Restore(l, LogEntry{At: anyInstant(c), Hits: anyWord(c)}, anyInstant(c))
		p, _ := g.Decide(other, now, Pending{}, hits, countRejected)
		p, _ = g.Decide(l, anyInstant(c), p, int64(anyWord(c)), countRejected)
		g.SizeAfter(other, now, p)
		if g.Len() > 0 {
			g.ApplyInPlace(other, now, p)
		}
		g.Apply(other, now, p)
		g.IdleAt(l)
		g.Size()
	}
	_ = l.Validate()
	_ = l.Capacity()
	_ = a.String()
	_ = anyInstant(c).Add(time.Duration(anyWord(c)))
	_ = anyInstant(c).Sub(anyInstant(c))
}

func anyLimit(c chooser, a Algorithm) Limit {
	return Limit{Algorithm: a, Requests: uint32(anyWord(c)), Period: time.Duration(anyWord(c)), Extra: Extra{Burst: uint32(anyWord(c))}}
}

func anyInstant(c chooser) Instant { return Instant(anyWord(c)) }

// anyWord returns any number, often one at an edge of its type.
func anyWord(c chooser) uint64 {
	return pick(c, "edge", 0, 1, math.MaxUint64, math.MaxInt64, 1<<63, math.MaxUint32, 1<<32, uint64(time.Second), c.upTo("any", math.MaxUint64))
}

func TestAnInvalidLimitDeniesEveryHit(t *testing.T) {
	for _, a := range RateAlgorithms() {
		for _, period := range []time.Duration{0, -1, math.MinInt64} {
			k := newKey(Limit{Algorithm: a, Requests: 10, Period: period})
			if got := k.take(1, 1, true); got.Allowed || got.RetryAfter < 0 || got.ResetAfter < 0 {
				t.Errorf("%v with a period of %v: got %+v; want denied", a, period, got)
			}
		}
	}
	if got := newKey(Limit{Period: time.Second, Requests: 10}).take(1, 1, false); got != (Decision{}) {
		t.Errorf("no algorithm: got %+v; want denied", got)
	}
	if _, got := Take(Limit{Algorithm: SlidingWindowLog, Requests: 10, Period: time.Second}, State{}, 1, 1, false); got != (Decision{}) {
		t.Errorf("Take of a log: got %+v; want denied", got)
	}
	if _, got := Take(Limit{Algorithm: Concurrency, Requests: 10}, State{}, 1, 1, false); got != (Decision{}) {
		t.Errorf("Take of a key of concurrency: got %+v; want denied", got)
	}
}

func TestCountsStayWithinTheirBoundsOfDebt(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, now, d := used(c, a, true)
		k.take(chooseNext(c, k.limit, now, d), MaxHits, true)
		requests := uint64(k.limit.Requests)
		switch a {
		case Concurrency, Learned, Escalation: // have no debt
		case FixedWindow, CalendarWindow: // debt has no bound, see below
		case TokenBucket: // The level is at least -burst.
			most := product(2*k.limit.Capacity(), uint64(k.limit.Period))
			if deficit := (wide{k.state.a, k.state.b}); !deficit.atMost(most) {
				t.Fatalf("deficit %v; want at most %v: %v", deficit, most, k)
			}
		case TokenBucketInteger:
			if k.state.a > 2*requests {
				t.Fatalf("deficit %d; want at most %d: %v", k.state.a, 2*requests, k)
			}
		case CalendarCounter: // see the tests of calendars
		case SlidingWindowCounter:
			if k.state.a > 2*requests || k.state.b > 2*requests {
				t.Fatalf("counts %d and %d; want at most %d: %v", k.state.a, k.state.b, 2*requests, k)
			}
		case SlidingWindowLog:
			if k.log.hits > 2*requests || uint64(k.log.len) > 2*requests {
				t.Fatalf("%d hits in %d entries; want at most %d: %v", k.log.hits, k.log.len, 2*requests, k)
			}
		}
	})
}

// The debt of a fixed window has no bound but the type of the count.
func TestAFixedWindowCountIsHeldAtItsLargest(t *testing.T) {
	l := Limit{Algorithm: FixedWindow, Requests: 1, Period: time.Second}
	s, d := Take(l, State{last: 5, a: math.MaxUint64 - 1}, 5, MaxHits, true)
	if want := (State{last: 5, a: math.MaxUint64}); d.Allowed || s != want {
		t.Errorf("a hit on a full count: got %+v, %+v; want denied, %+v", s, d, want)
	}
}

func TestOwedHitsCountInFull(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, now, d := used(c, a, true)
		if !a.HasState() || k.limit.Requests == 0 {
			return
		}
		now = max(k.held(now), chooseNext(c, k.limit, now, d))
		before := contentOf(k.limit, k.state, now)
		hits := int64(1 + c.upTo("hits", MaxHits-1))
		owed, _ := Charge(k.limit, k.state, now, hits, Owe)
		want := before.plus(product(uint64(hits), uint64(k.limit.Period)))
		if a == TokenBucketInteger { // each look may find up to a nanosecond's tokens at once
			want = want.minus(product(uint64(k.limit.Requests)+uint64(k.limit.Period), 4))
		}
		if got := contentOf(k.limit, owed, now); !want.atMost(got) || a != TokenBucketInteger && got != want {
			t.Fatalf("used %v/period after %d owed hits; want %v: %v", got, hits, want, k)
		}
		counted, _ := Take(k.limit, owed, now, hits, true)
		if got := contentOf(k.limit, counted, now); !want.atMost(got) {
			t.Fatalf("used %v/period after more hits; want at least %v: %v", got, want, k)
		}
		if back, _ := Take(k.limit, counted, now, 0, false); back != counted {
			t.Fatalf("a probe changed %v to %v", counted, back)
		}
	})
}
