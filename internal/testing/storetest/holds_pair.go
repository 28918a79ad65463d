package storetest

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func pairCases() []Case {
	return []Case{
		{"a_pair_begins_at_first_sight_and_ends_at_the_next", pairBeginsAndEnds},
		{"a_pair_of_no_hits_is_held", pairOfNoHits},
		{"a_pair_that_was_denied_begins_again", pairDenied},
		{"a_pair_after_at_most_begins_again", pairRunsOut},
		{"a_pair_that_holds_under_one_charge_ends_under_all", pairEndsUnderAll},
		{"pairs_of_several_holders_are_apart", pairsApart},
	}
}

// pair returns a charge of a holder that takes an estimate if it begins, and has a cost if it ends.
func pair(key string, l algorithms.Limit, holder string, estimate uint32, cost int64) store.Charge {
	c := phase(algorithms.HoldPair, key, l, holder, cost)
	c.Hold.Estimate = estimate
	return c
}

// wantBegin fails the test unless the store makes each charge of HoldPair a begin, and admits them
// or not.
func (e Env) wantBegin(t *testing.T, admitted bool, charges ...store.Charge) {
	t.Helper()
	e.wantAdmitted(t, admitted, charges...)
	for i, c := range charges {
		if c.Hold.Phase != algorithms.HoldPair || c.Hits != int64(c.Hold.Estimate) {
			t.Errorf("%v: charge %d has phase %d and %d hits; want a begin of %d", c.Limit.Algorithm, i, c.Hold.Phase, c.Hits, c.Hold.Estimate)
		}
	}
}

// wantEnds fails the test unless the store makes each charge of HoldPair an end.
func (e Env) wantEnds(t *testing.T, charges ...store.Charge) {
	t.Helper()
	for i, d := range e.wantAdmitted(t, true, charges...) {
		if c := charges[i]; c.Hold.Phase != algorithms.HoldEnd || !d.Allowed || d.RetryAfter != 0 {
			t.Errorf("%v: charge %d has phase %d: %+v; want an end, allowed", c.Limit.Algorithm, i, c.Hold.Phase, d)
		}
	}
}

func pairBeginsAndEnds(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l, left := held(a, 10), uint64(10)
		for range 2 {
			e.wantBegin(t, true, pair("k", l, "r", 4, 9))
			e.wantRemaining(t, charge("k", l), left-4)
			e.wantEnds(t, pair("k", l, "r", 7, 3))
			if rate {
				left -= 3
			}
			e.wantRemaining(t, charge("k", l), left)
		}
	})
}

func pairOfNoHits(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		if !rate {
			return
		}
		l := held(a, 10)
		e.wantBegin(t, true, pair("k", l, "r", 0, 0))
		e.wantAdmitted(t, true, begin("k", l, "other", 10))
		e.wantEnds(t, pair("k", l, "r", 0, 6))
		e.wantRemaining(t, charge("k", l), 0)
		e.wantBegin(t, false, pair("k", l, "r", 1, 1)) // the key owes 6
		e.wantEnd(t, end("k", l, "other", 0), algorithms.HoldHeld, 4)
	})
}

func pairDenied(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		e.wantAdmitted(t, true, begin("k", l, "other", 8))
		for range 2 {
			e.wantBegin(t, false, pair("k", l, "r", 3, 3))
		}
		e.wantEnd(t, end("k", l, "other", 0), algorithms.HoldHeld, 10)
		e.wantBegin(t, true, pair("k", l, "r", 3, 3))
		e.wantRemaining(t, charge("k", l), 7)
		e.wantEnds(t, pair("k", l, "r", 3, 0))
		e.wantRemaining(t, charge("k", l), 10)
	})
}

func pairRunsOut(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l := held(a, 100_000)
		e.wantBegin(t, true, pair("k", l, "r", 4, 4))
		e.Sleep(holdTime)
		c := pair("k", l, "r", 5, 5)
		if e.wantBegin(t, true, c); c.Hold.Was != (algorithms.Hold{}) {
			t.Errorf("%v: the holder was %+v; want one that is not known", a, c.Hold.Was)
		}
		e.wantEnds(t, pair("k", l, "r", 5, 0))
	})
}

func pairEndsUnderAll(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		one, other := held(a, 10), held(a, 10)
		e.wantBegin(t, true, pair("one", one, "r", 4, 4))
		// other does not know the holder: a rate limit charges the cost, and concurrency leaks no slot.
		all := []store.Charge{pair("one", one, "r", 6, 6), pair("other", other, "r", 6, 20)}
		all[1].Rule = 1
		e.wantEnds(t, all...)
		left := [2]uint64{10, 10}
		if rate {
			left = [2]uint64{4, 0}
		}
		e.wantRemaining(t, charge("one", one), left[0])
		e.wantRemaining(t, charge("other", other), left[1])
		e.wantBegin(t, !rate, pair("other", other, "s", 1, 1))
	})
}

func pairsApart(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l := held(a, 10)
		e.wantBegin(t, true, pair("k", l, "r", 4, 4))
		all := []store.Charge{pair("k", l, "s", 2, 9), pair("k", l, "r", 9, 4), pair("k", l, "s", 2, 9)}
		e.wantAdmitted(t, true, all...)
		for i, want := range []algorithms.HoldPhase{algorithms.HoldPair, algorithms.HoldEnd, algorithms.HoldPair} {
			if got := all[i].Hold.Phase; got != want {
				t.Errorf("%v: charge %d has phase %d; want %d", a, i, got, want)
			}
		}
		left := uint64(8)
		if rate {
			left = 4
		}
		e.wantRemaining(t, charge("k", l), left)
		e.Sleep(time.Second)
		e.wantEnds(t, pair("k", l, "s", 9, 0))
	})
}
