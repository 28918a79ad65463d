package algorithms

import (
	"math"
	"slices"
	"testing"
)

// Property 1 of the semantics: no requests get more than the limit promises. The tests leave out
// refunds, which give back admitted hits.

func TestTokenBucketNeverAdmitsOverBurstAndRate(t *testing.T) {
	holdsOf(t, 2000, []Algorithm{TokenBucket}, func(t failer, c chooser, a Algorithm) {
		l, admitted, _ := admissions(t, c, a, true)
		// In any interval of length T: burst + requests*T/period.
		eachInterval(admitted, func(first, last admission, hits int64) {
			length := of(last.at).minus(of(first.at))
			if most := capacity(l).plus(length.times(rate(l))); most.less(of(hits)) {
				t.Fatalf("%+v: admitted %d hits from %d to %d, want at most %v\nof %v", l, hits, first.at, last.at, most, admitted)
			}
		})
	})
}

// Every charge can lose less than a nanosecond of the time of its refill, and so gain the tokens of
// a nanosecond. With up to one token per nanosecond that is the "slightly more" of the text. With
// more than one, every charge at one instant can gain some; callers with coarse ticks have no such
// limit.
func TestTokenBucketIntegerAdmitsAtMostANanosecondPerChargeMore(t *testing.T) {
	holdsOf(t, 2000, []Algorithm{TokenBucketInteger}, func(t failer, c chooser, a Algorithm) {
		l, admitted, _ := admissions(t, c, a, true)
		eachInterval(admitted, func(first, last admission, hits int64) {
			charges := 0
			for _, x := range admitted {
				if first.at <= x.at && x.at <= last.at {
					charges++
				}
			}
			length := of(last.at).minus(of(first.at)).plus(of(charges))
			if most := capacity(l).plus(length.times(rate(l))); most.less(of(hits)) {
				t.Fatalf("%+v: admitted %d hits from %d to %d, want at most %v\nof %v", l, hits, first.at, last.at, most, admitted)
			}
		})
	})
}

func TestFixedWindowNeverAdmitsOverTheLimitInAWindow(t *testing.T) {
	holdsOf(t, 2000, []Algorithm{FixedWindow}, func(t failer, c chooser, a Algorithm) {
		l, admitted, _ := admissions(t, c, a, true)
		counts := make(map[string]int64) // by the number of the window
		for _, x := range admitted {
			window := windowOf(l, of(x.at)).String()
			counts[window] += x.hits
			if counts[window] > int64(l.Requests) {
				t.Fatalf("%+v: admitted %d hits in window %s\nof %v", l, counts[window], window, admitted)
			}
		}
	})
}

func TestSlidingWindowLogNeverAdmitsOverTheLimitInAPeriod(t *testing.T) {
	holdsOf(t, 2000, []Algorithm{SlidingWindowLog}, func(t failer, c chooser, a Algorithm) {
		l, admitted, _ := admissions(t, c, a, true)
		// Half-open: hits at both ends of a period do not count together.
		eachInterval(admitted, func(first, last admission, hits int64) {
			if past(first.at, last.at) < uint64(l.Period) && hits > int64(l.Requests) {
				t.Fatalf("%+v: admitted %d hits from %d to %d\nof %v", l, hits, first.at, last.at, admitted)
			}
		})
	})
}

func TestSlidingWindowCounterEstimateNeverGoesOverTheLimit(t *testing.T) {
	holdsOf(t, 2000, []Algorithm{SlidingWindowCounter}, func(t failer, c chooser, a Algorithm) {
		l, admitted, _ := admissions(t, c, a, false)
		for i, x := range admitted {
			window := windowOf(l, of(x.at))
			estimate := of(0)
			for _, y := range admitted[:i+1] {
				switch behind := window.minus(windowOf(l, of(y.at))); {
				case behind.is(of(0)):
					estimate = estimate.plus(of(y.hits))
				case behind.is(of(1)):
					estimate = estimate.plus(of(y.hits).times(windowEnd(l, of(x.at))).over(of(l.Period)))
				}
			}
			if of(l.Requests).less(estimate) {
				t.Fatalf("%+v: estimate %v after the admission at %d\nof %v", l, estimate, x.at, admitted)
			}
		}
	})
}

// TestFixedWindowAdmitsTwiceTheLimitAcrossABoundary holds the documentation to its word: the bound
// above is per window.
func TestFixedWindowAdmitsTwiceTheLimitAcrossABoundary(t *testing.T) {
	l := Limit{Algorithm: FixedWindow, Requests: 5, Period: MinPeriod}
	k := newKey(l)
	for _, now := range []Instant{Instant(MinPeriod) - 1, Instant(MinPeriod)} {
		if got := k.take(now, 5, false); !got.Allowed {
			t.Errorf("5 hits at %d: got %+v; want allowed", now, got)
		}
	}
}

// TestABurstPassesAtOnceAndOneMoreDoesNot is the other side: a limit is not kept by denying
// everything.
func TestABurstPassesAtOnceAndOneMoreDoesNot(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		l, now := chooseLimit(c, a), chooseStart(c)
		if perNanosecond(l) {
			return
		}
		k := newKey(l)
		if got := k.take(now, int64(l.Capacity()), false); !got.Allowed {
			t.Fatalf("%+v: the whole capacity at %d: got %+v; want allowed", l, now, got)
		}
		if got := k.take(now, 1, true); got.Allowed {
			t.Fatalf("%+v: one hit more at %d: got %+v; want denied", l, now, got)
		}
	})
}

// perNanosecond reports whether a limit makes more than one whole token per nanosecond.
// token_bucket_integer can then find tokens again and again at one instant.
func perNanosecond(l Limit) bool {
	return l.Algorithm == TokenBucketInteger && int64(l.Requests) > int64(l.Period)
}

// admissions walks a key of that algorithm, with time going backwards now and then, and returns the
// admitted charges.
func admissions(t failer, c chooser, a Algorithm, rejected bool) (Limit, []admission, *key) {
	t.Helper()
	c, steps := walk(c, 50)
	l, now := chooseLimit(c, a), chooseStart(c)
	k := newKey(l)
	var d Decision
	var admitted []admission
	for range steps {
		now = chooseNext(c, l, now, d)
		hits := chooseHits(c, l, d, false)
		held := k.held(now)
		d = k.take(now, hits, rejected && c.upTo("count rejected", 2) == 1)
		if hits = min(hits, MaxHits); d.Allowed && hits > 0 {
			admitted = append(admitted, admission{held, hits})
		}
	}
	if !slices.IsSortedFunc(admitted, byInstant) {
		t.Fatalf("%+v: admissions go back in time: %v", l, admitted)
	}
	return l, admitted, k
}

// eachInterval calls check for every interval that starts and ends with an admission, with the hits
// admitted in it.
func eachInterval(admitted []admission, check func(first, last admission, hits int64)) {
	for i, first := range admitted {
		hits := int64(0)
		for j, last := range admitted[i:] {
			hits = min(hits, math.MaxInt64-MaxHits) + last.hits
			if next := i + j + 1; next < len(admitted) && admitted[next].at == last.at {
				continue // The interval takes in all of an instant.
			}
			check(first, last, hits)
		}
	}
}
