package algorithms

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// These tests try out the promise of each field of a decision, and do not compute the field again.

func TestRemainingHitsPassRightNowAndOneMoreDoesNot(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, now, d := used(c, a, true)
		now = chooseNext(c, k.limit, now, d)
		d = k.take(now, chooseHits(c, k.limit, d, true), c.upTo("count rejected", 2) == 1)
		remains(t, k, now, d)
	})
}

// remains checks that the remaining hits of a decision pass at its instant, and that one more does
// not.
func remains(t failer, k *key, now Instant, d Decision) {
	t.Helper()
	if d.Remaining > 0 && !k.passes(now, int64(d.Remaining)) {
		t.Fatalf("remaining %d at %d, but that many do not pass: %v", d.Remaining, now, k)
	}
	if more := int64(d.Remaining) + 1; more <= MaxCount && k.passes(now, more) {
		t.Fatalf("remaining %d at %d, but one more passes: %v", d.Remaining, now, k)
	}
}

func TestRetryAfterIsZeroExactlyWhenAllowed(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, now, d := used(c, a, true)
		now = chooseNext(c, k.limit, now, d)
		d = k.take(now, chooseHits(c, k.limit, d, true), c.upTo("count rejected", 2) == 1)
		if d.Allowed != (d.RetryAfter == 0) || d.RetryAfter < 0 || d.ResetAfter < 0 {
			t.Fatalf("at %d: %+v of %v", now, d, k)
		}
	})
}

func TestResetAfterIsWhenTheKeyIsFresh(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, now, d := used(c, a, true)
		now = chooseNext(c, k.limit, now, d)
		held := k.held(now)
		d = k.take(now, chooseHits(c, k.limit, d, true), c.upTo("count rejected", 2) == 1)
		switch fresh := k.idleAt(); {
		case k.limit.Requests == 0: // Says when it ends for windows only; there is no state to forget in most.
		case a == FixedWindow:
			if want := saturate(uint64(held.Sub(now)) + uint64(k.limit.Period-elapsed(k.limit.Period, held))); d.ResetAfter != want {
				t.Fatalf("at %d: reset after %v; want the window's end in %v", now, d.ResetAfter, want)
			}
		case fresh == math.MaxInt64: // Held at the last instant there is.
		case fresh <= held:
			if d.ResetAfter != 0 {
				t.Fatalf("at %d: reset after %v of a key fresh at %d: %v", now, d.ResetAfter, fresh, k)
			}
		case d.ResetAfter != fresh.Sub(now):
			t.Fatalf("at %d: reset after %v; want %v, the instant %d: %v", now, d.ResetAfter, fresh.Sub(now), fresh, k)
		}
	})
}

func TestAProbeIsDeniedOnlyInDebt(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		k, now, d := used(c, a, true)
		now = chooseNext(c, k.limit, now, d)
		d = k.take(now, 0, false)
		if d.Allowed {
			return
		}
		if d.Remaining != 0 {
			t.Fatalf("probe at %d denied with %d remaining: %v", now, d.Remaining, k)
		}
		// Debt ends when the answer says, and the key is then at its limit or better.
		if end := now.Add(d.RetryAfter); end.Sub(now) == d.RetryAfter && d.RetryAfter < math.MaxInt64 {
			if after := k.take(end, 0, false); !after.Allowed {
				t.Fatalf("probe at %d denied for %v, and then again: %+v: %v", now, d.RetryAfter, after, k)
			}
			if before := k.take(end-1, 0, false); before.Allowed {
				t.Fatalf("probe at %d denied for %v, but not a nanosecond earlier: %v", now, d.RetryAfter, k)
			}
		}
	})
}

func TestWithoutCountRejectedThereIsNoDebt(t *testing.T) {
	holds(t, func(t failer, c chooser, a Algorithm) {
		c, steps := walk(c, 20)
		l := chooseLimit(c, a)
		k, now := newKey(l), chooseStart(c)
		var d Decision
		for range steps {
			now = chooseNext(c, l, now, d)
			d = k.take(now, chooseHits(c, l, d, true), false)
			if probe := k.take(now, 0, false); !probe.Allowed {
				t.Fatalf("probe at %d: got %+v; want allowed: %v", now, probe, k)
			}
		}
	})
}

func TestSeveralPendingHitsAreTheSameAsOneAfterAnother(t *testing.T) {
	holdsOf(t, 2000, []Algorithm{SlidingWindowLog}, func(t failer, c chooser, a Algorithm) {
		c, steps := walk(c, 10)
		l := chooseLimit(c, a)
		k, now := newKey(l), chooseStart(c)
		var d Decision
		for range steps {
			now = chooseNext(c, l, now, d)
			d = chain(t, c, k, now, d)
		}
	})
}

// chain takes some hits at one instant as pending hits of a log, and returns the last decision.
// chain checks that a log which takes the same hits one after another ends in the same state.
func chain(t failer, c chooser, k *key, now Instant, d Decision) Decision {
	t.Helper()
	oneByOne, before := k.clone(), k.clone()
	held := k.held(now)
	var p Pending
	for i := range 1 + c.upTo("charges", 4) {
		hits, countRejected := chooseHits(c, k.limit, d, true), c.upTo("count rejected", 2) == 1
		was := p
		p, d = k.log.Decide(k.limit, now, p, hits, countRejected)
		if want := oneByOne.take(held, hits, countRejected).later(held.Sub(now)); d != want {
			t.Fatalf("charge %d of %d at %d on top of %+v: (-one by one +pending)\n%s\n%v", i, hits, now, was, cmp.Diff(want, d), k)
		}
		if hits >= 0 && !d.Allowed && !countRejected && p != was {
			t.Fatalf("denied charge %d of %d at %d changed what is pending from %+v to %+v", i, hits, now, was, p)
		}
	}
	if !k.same(before) {
		t.Fatalf("deciding at %d changed\n%v to\n%v", now, before, k)
	}
	k.log.Apply(k.limit, now, p)
	if before.log.Unused() && k.log.Unused() == p.Adds() {
		t.Fatalf("%+v says that it adds hits: %v, but made %v of a key never used", p, p.Adds(), k)
	}
	if got, want := k.clone().take(held, 0, false), oneByOne.clone().take(held, 0, false); got != want {
		t.Fatalf("probe after %+v at %d: (-one by one +pending)\n%s", p, now, cmp.Diff(want, got))
	}
	if !k.same(oneByOne) {
		t.Fatalf("after %+v at %d the log is\n%v, one by one\n%v", p, now, k, oneByOne)
	}
	return d
}
