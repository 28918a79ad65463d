package algorithms

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Properties 2, 3, 4, 6 and 7 of the semantics, of every algorithm.

// used returns a key after a walk, with the instant it ended at and the last decision.
func used(c chooser, a Algorithm, refunds bool) (k *key, now Instant, d Decision) {
	c, steps := walk(c, 12)
	l := chooseLimit(c, a)
	k, now = newKey(l), chooseStart(c)
	for range steps {
		now = chooseNext(c, l, now, d)
		d = k.take(now, chooseHits(c, l, d, refunds), c.upTo("count rejected", 2) == 1)
	}
	return k, now, d
}

func TestRetryIsTight(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, now, d := used(c, a, true)
		now = k.held(chooseNext(c, k.limit, now, d))
		hits := min(max(0, chooseHits(c, k.limit, d, false)), int64(k.limit.Capacity()))
		countRejected := c.upTo("count rejected", 1) == 1
		d = k.take(now, hits, countRejected)
		retry := now.Add(d.RetryAfter)
		if d.Allowed || d.RetryAfter == math.MaxInt64 || retry.Sub(now) != d.RetryAfter {
			return // There is no such instant.
		}
		if k.limit.Requests == 0 && hits > 0 {
			return // A ban never ends.
		}
		if !k.passes(retry, hits) {
			t.Fatalf("%d hits at %d denied for %v, but do not pass then: %v", hits, now, d.RetryAfter, k)
		}
		if k.passes(retry-1, hits) && !(countRejected && perNanosecond(k.limit)) {
			t.Fatalf("%d hits at %d denied for %v, but pass a nanosecond earlier: %v", hits, now, d.RetryAfter, k)
		}
	})
}

func TestDenialsAndProbesChangeNothing(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, now, d := used(c, a, true)
		now = chooseNext(c, k.limit, now, d)
		hits := chooseHits(c, k.limit, d, false)
		before := k.clone()
		if d = k.take(now, hits, hits == 0); (!d.Allowed || hits == 0) && !k.same(before) {
			t.Fatalf("%d hits at %d, decision %+v, changed\n%v to\n%v", hits, now, d, before, k)
		}
	})
}

func TestAnEarlierInstantCountsAsThatOfTheLastCharge(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, now, d := used(c, a, true)
		if k.unused() {
			return
		}
		earlier := min(k.last(), chooseNext(c, k.limit, now, d))
		hits, countRejected := chooseHits(c, k.limit, d, true), c.upTo("count rejected", 1) == 1
		back, still := k.clone(), k.clone()
		got, want := back.take(earlier, hits, countRejected), still.take(k.last(), hits, countRejected)
		if want = want.later(k.last().Sub(earlier)); got != want {
			t.Fatalf("%d hits at %d, before the last charge: (-at the last charge +got)\n%s\n%v", hits, earlier, cmp.Diff(want, got), k)
		}
		if !back.same(still) {
			t.Fatalf("%d hits at %d made %v, at the last charge %v, of %v", hits, earlier, back, still, k)
		}
	})
}

func TestForgettingIsFreeAfterResetAfter(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, now, _ := used(c, a, true)
		d := k.take(now, 0, false)
		reset := now.Add(d.ResetAfter)
		if k.unused() {
			reset = now
		}
		if fresh := k.idleAt(); fresh > reset && d.ResetAfter < math.MaxInt64 && !perNanosecond(k.limit) {
			t.Fatalf("fresh at %d, later than the reset in %v of %d: %v", fresh, d.ResetAfter, now, k)
		}
		fresh := k.idleAt()
		if fresh == math.MaxInt64 {
			return // not before the last instant
		}
		// From then on every decision is as if the state had been dropped.
		dropped := newKey(k.limit)
		kept := k.clone()
		now = max(fresh, chooseNext(c, k.limit, fresh, d))
		for range 1 + c.upTo("later steps", 8) {
			hits, countRejected := chooseHits(c, k.limit, d, true), c.upTo("count rejected", 2) == 1
			want := dropped.take(now, hits, countRejected)
			got := kept.take(now, hits, countRejected)
			if got != want {
				t.Fatalf("%d hits at %d, after %v was fresh at %d: (-dropped +kept)\n%s", hits, now, k, fresh, cmp.Diff(want, got))
			}
			d = got
			now = max(now, chooseNext(c, k.limit, now, d))
		}
	})
}

// TestNothingIsFreshBeforeFreshAt is why a store may keep states no shorter: a nanosecond earlier
// less would pass.
func TestNothingIsFreshBeforeFreshAt(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, _, _ := used(c, a, true)
		fresh := k.idleAt()
		if k.unused() || k.limit.Requests == 0 || fresh == math.MaxInt64 || fresh <= k.last() || perNanosecond(k.limit) {
			return
		}
		if got := k.clone().take(fresh-1, 0, false); got.Remaining >= k.limit.Capacity() {
			t.Fatalf("a nanosecond before %d: got %+v; want less than the capacity: %v", fresh, got, k)
		}
	})
}

func TestRefundsClamp(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, now, d := used(c, a, true)
		now = chooseNext(c, k.limit, now, d)
		before := k.clone().take(now, 0, false)
		fresh := k.idleAt()
		hits := -max(1, min(MaxCount, chooseHits(c, k.limit, before, false)))
		held := k.held(now)
		after := k.take(now, hits, c.upTo("count rejected", 1) == 1)

		if !after.Allowed || after.RetryAfter != 0 {
			t.Fatalf("refund of %d hits at %d: got %+v; want allowed", -hits, now, after)
		}
		if after.Remaining < before.Remaining || after.Remaining > k.limit.Capacity() {
			t.Fatalf("refund of %d hits at %d: remaining %d, was %d of %d", -hits, now, after.Remaining, before.Remaining, k.limit.Capacity())
		}
		if a == FixedWindow && after.ResetAfter != before.ResetAfter {
			t.Fatalf("refund of %d hits at %d: reset after %v, was %v: a window's end moved", -hits, now, after.ResetAfter, before.ResetAfter)
		}
		if after.ResetAfter > before.ResetAfter || !k.unused() && k.idleAt() > fresh {
			t.Fatalf("refund of %d hits at %d: reset after %v, was %v: it took time", -hits, now, after.ResetAfter, before.ResetAfter)
		}
		if more := int64(k.limit.Capacity()) + 1; more <= MaxCount && k.passes(held, more) {
			t.Fatalf("refund of %d hits at %d: more than the capacity passes: %v", -hits, now, k)
		}
	})
}

// TestARefundUndoesACharge checks the purpose of a refund: at the same instant the state is again
// as before.
func TestARefundUndoesACharge(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, now, d := used(c, a, true)
		now = chooseNext(c, k.limit, now, d)
		want := k.clone().take(now, 0, false)
		hits := min(MaxCount, chooseHits(c, k.limit, want, false))
		if perNanosecond(k.limit) || !k.take(now, hits, false).Allowed {
			return
		}
		got := k.take(now, -hits, false)
		if a == TokenBucketInteger {
			// Charging settles a refill, which can lose part of a nanosecond in the caller's favor.
			if got.Remaining < want.Remaining || got.ResetAfter > want.ResetAfter {
				t.Fatalf("%d hits taken and given back at %d: got %+v; want no less than %+v", hits, now, got, want)
			}
			return
		}
		if got != want {
			t.Fatalf("%d hits taken and given back at %d: (-before +after)\n%s", hits, now, cmp.Diff(want, got))
		}
	})
}

func TestWaitingNeverTakesAnythingAway(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, now, d := used(c, a, true)
		now = k.held(now)
		sooner := k.clone().take(now, 0, false)
		later := max(now, chooseNext(c, k.limit, now, d))
		got := k.clone().take(later, 0, false)
		if got.Remaining < sooner.Remaining || sooner.Allowed && !got.Allowed {
			t.Fatalf("at %d: %+v, at %d: %+v of %v", now, sooner, later, got, k)
		}
		if waited := time.Duration(min(past(now, later), math.MaxInt64)); a != FixedWindow && got.ResetAfter > max(0, sooner.ResetAfter-waited) && sooner.ResetAfter < math.MaxInt64 {
			t.Fatalf("at %d: %+v, at %d: %+v: the reset moved away: %v", now, sooner, later, got, k)
		}
	})
}

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
			if counts[window] > int64(l.PerPeriod()) {
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
		if hits = min(hits, MaxCount); d.Allowed && hits > 0 {
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
			hits = min(hits, math.MaxInt64-MaxCount) + last.hits
			if next := i + j + 1; next < len(admitted) && admitted[next].at == last.at {
				continue // The interval takes in all of an instant.
			}
			check(first, last, hits)
		}
	}
}
