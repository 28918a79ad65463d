package storetest

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func holdTransactionCases() []Case {
	return []Case{
		{"a_request_that_another_charge_denies_holds_nothing", deniedByAnother},
		{"a_denied_begin_that_counts_rejected_hits_charges_rate_limits_only", deniedBeginCounts},
		{"a_begin_denied_in_shadow_mode_holds_nothing", shadowHolds},
		{"a_quota_that_is_over_holds_nothing", quotaHolds},
		{"several_holds_of_one_request_are_held_together", severalHolds},
		{"two_holders_of_one_key_in_one_request_are_charged_in_order", twoHoldersOfOneKey},
		{"a_holder_twice_in_one_request_holds_once", holderTwice},
		{"an_end_comes_before_the_begins_of_its_request", endBeforeBegin},
		{"an_end_is_applied_though_its_request_is_denied", endInDeniedRequest},
		{"an_end_under_a_quota_has_no_effect_on_the_verdict", endUnderQuota},
		{"a_holder_belongs_to_one_key_algorithm_and_period", holdersAreIndependent},
	}
}

// wantStatus fails the test unless the holder of a charge has that status now.
func (e Env) wantStatus(t *testing.T, c store.Charge, want algorithms.HoldStatus) {
	t.Helper()
	hold := *c.Hold
	c.Hold = &hold
	if err := e.Store.Peek(t.Context(), []store.Charge{c}, make([]algorithms.Decision, 1)); err != nil {
		t.Fatalf("Peek failed: %v", err)
	}
	if c.Limit.Algorithm == algorithms.Concurrency && want != algorithms.HoldHeld {
		want = algorithms.HoldUnknown
	}
	if c.Hold.Was.Status != want {
		t.Errorf("%v: the holder is %+v; want status %d", c.Limit.Algorithm, c.Hold.Was, want)
	}
}

func deniedByAnother(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		banned := charge("banned", limit(algorithms.FixedWindow, 0))
		banned.Rule = 1
		for _, first := range []bool{true, false} {
			c := begin("k", l, "r", 4)
			charges, at := []store.Charge{c, banned}, 0
			if !first {
				charges, at = []store.Charge{banned, c}, 1
			}
			if d := e.wantAdmitted(t, false, charges...)[at]; !d.Allowed || d.Remaining != 10 {
				t.Errorf("%v: the begin beside a denial: %+v; want allowed, with 10 remaining", a, d)
			}
			e.wantStatus(t, c, algorithms.HoldDenied)
		}
		// Another hold of the same request is denied as well.
		narrow, wide := begin("narrow", l, "r", 11), begin("wide", l, "r", 4)
		narrow.Rule = 1
		e.wantAdmitted(t, false, wide, narrow)
		for _, c := range []store.Charge{end("k", l, "r", 0), end("wide", l, "r", 7), end("narrow", l, "r", 20)} {
			e.wantAdmitted(t, true, c)
			e.wantRemaining(t, charge(string(c.Key), l), 10)
		}
	})
}

func deniedBeginCounts(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		l := held(a, 10)
		counting := func(holder string, hits int64) store.Charge {
			c := begin("k", l, holder, hits)
			c.CountRejected = true
			return c
		}
		banned := charge("banned", limit(algorithms.FixedWindow, 0))
		banned.Rule = 1
		left := uint64(10)
		if rate {
			left = 6
		}
		if d := e.wantAdmitted(t, false, counting("r", 4), banned)[0]; !d.Allowed || d.Remaining != left {
			t.Errorf("%v: %+v; want allowed, with %d remaining", a, d, left)
		}
		e.wantRemaining(t, charge("k", l), left)
		e.wantAdmitted(t, true, end("k", l, "r", 0)) // gives nothing back
		e.wantRemaining(t, charge("k", l), left)
		e.wantAdmitted(t, false, counting("s", 11))
		if rate {
			e.wantAdmitted(t, false, begin("k", l, "t", 0)) // past the limit
			refund := charge("k", l)                        // makes room for a begin without hits, but is not applied
			refund.Hits = -8
			if d := e.wantAdmitted(t, false, refund, counting("t", 0), banned); !d[0].Allowed || d[1].Allowed {
				t.Errorf("%v: %+v; want the refund allowed, and the begin denied", a, d)
			}
		} else {
			e.wantRemaining(t, charge("k", l), 10)
		}
	})
}

func shadowHolds(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		shadow := func(holder string, hits int64) store.Charge {
			c := begin("k", l, holder, hits)
			c.Mode = store.Shadow
			return c
		}
		e.wantAdmitted(t, true, shadow("r", 8))
		e.wantStatus(t, shadow("r", 8), algorithms.HoldHeld)
		if d := e.wantAdmitted(t, true, shadow("s", 3))[0]; d.Allowed || d.Remaining != 2 {
			t.Errorf("%v: a begin in shadow mode over the limit: %+v; want denied, with 2 remaining", a, d)
		}
		e.wantStatus(t, shadow("s", 3), algorithms.HoldDenied)
		e.wantAdmitted(t, true, end("k", l, "s", 0))
		e.wantRemaining(t, charge("k", l), 2)
		e.wantAdmitted(t, true, end("k", l, "r", 0))
		e.wantRemaining(t, charge("k", l), 10)
	})
}

func quotaHolds(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		under := func(key, holder string, hits int64, rule int) store.Charge {
			c := begin(key, l, holder, hits)
			c.Mode, c.Rule = store.Quota, rule
			return c
		}
		d := e.wantAdmitted(t, true, under("one", "r", 11, 0), under("two", "r", 4, 1))
		if d[0].Allowed || !d[1].Allowed {
			t.Errorf("%v: %+v; want the first denied, the second allowed", a, d)
		}
		e.wantStatus(t, under("one", "r", 1, 0), algorithms.HoldDenied)
		e.wantStatus(t, under("two", "r", 1, 0), algorithms.HoldHeld)
		e.wantAdmitted(t, false, under("one", "s", 11, 0), under("two", "s", 7, 1))
		e.wantStatus(t, under("two", "s", 1, 0), algorithms.HoldDenied)
		e.wantAdmitted(t, true, end("one", l, "r", 0), end("two", l, "r", 0), end("one", l, "s", 0), end("two", l, "s", 0))
		e.wantRemaining(t, charge("one", l), 10)
		e.wantRemaining(t, charge("two", l), 10)
	})
}

func severalHolds(t *testing.T, e Env) {
	all := EveryAlgorithm()
	request := func(p algorithms.HoldPhase, holder string, hits int64) []store.Charge {
		var charges []store.Charge
		for i, a := range all {
			c := phase(p, "k", held(a, 10), holder, hits)
			c.Rule = i
			charges = append(charges, c)
		}
		return charges
	}
	first := request(algorithms.HoldBegin, "r", 6)
	e.wantAdmitted(t, true, first...)
	e.wantBegunNow(t, first...)
	for i, d := range e.wantAdmitted(t, true, request(algorithms.HoldBegin, "r", 6)...) {
		if d.Remaining != 4 {
			t.Errorf("%v: %+v after a repeat; want 4 remaining", all[i], d)
		}
	}
	e.wantAdmitted(t, false, request(algorithms.HoldBegin, "s", 5)...)
	e.wantAdmitted(t, true, request(algorithms.HoldEnd, "s", 5)...)
	for i, d := range e.wantAdmitted(t, true, request(algorithms.HoldEnd, "r", 2)...) {
		want := uint64(8)
		if all[i] == algorithms.Concurrency {
			want = 10
		}
		if !d.Allowed || d.Remaining != want {
			t.Errorf("%v: %+v after the end; want %d remaining", all[i], d, want)
		}
	}
}

func twoHoldersOfOneKey(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		d := e.wantAdmitted(t, true, begin("k", l, "r", 3), begin("k", l, "s", 5))
		if d[0].Remaining != 7 || d[1].Remaining != 2 {
			t.Errorf("%v: %+v; want 7 and 2 remaining", a, d)
		}
		d = e.wantAdmitted(t, false, begin("k", l, "t", 2), begin("k", l, "u", 1))
		if !d[0].Allowed || d[0].Remaining != 2 || d[1].Allowed {
			t.Errorf("%v: %+v; want the first allowed with 2 remaining, the second denied", a, d)
		}
		e.wantStatus(t, end("k", l, "t", 0), algorithms.HoldDenied)
		e.wantStatus(t, end("k", l, "u", 0), algorithms.HoldDenied)
		d = e.wantAdmitted(t, true, end("k", l, "r", 0), end("k", l, "s", 0))
		if d[0].Remaining != 5 || d[1].Remaining != 10 {
			t.Errorf("%v: %+v; want 5 and 10 remaining", a, d)
		}
	})
}

func holderTwice(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		first, again := begin("k", l, "r", 7), begin("k", l, "r", 7)
		if d := e.wantAdmitted(t, true, first, again); !d[1].Allowed || d[1].Remaining != 3 || again.Hold.Was.Status != algorithms.HoldHeld {
			t.Errorf("%v: the holder again: %+v, was %+v; want it held, with 3 remaining", a, d[1], again.Hold.Was)
		}
		e.wantAdmitted(t, false, begin("k", l, "s", 4), begin("k", l, "s", 2)) // the second is decided, and allowed, afresh
		e.wantStatus(t, begin("k", l, "s", 2), algorithms.HoldDenied)
		twice := e.wantAdmitted(t, true, end("k", l, "r", 0), end("k", l, "r", 0))
		if twice[0].Remaining != 10 || twice[1].Remaining != 10 {
			t.Errorf("%v: two ends: %+v; want 10 remaining", a, twice)
		}
	})
}

func endBeforeBegin(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		e.wantAdmitted(t, true, begin("k", l, "r", 10))
		d := e.wantAdmitted(t, true, begin("k", l, "s", 8), end("k", l, "r", 0))
		if d[0].Remaining != 2 || d[1].Remaining != 10 {
			t.Errorf("%v: a begin and the end that makes room: %+v; want 2 and 10 remaining", a, d)
		}
		again := begin("k", l, "s", 9) // of the same holder: its end first, then a begin afresh
		e.wantAdmitted(t, true, again, end("k", l, "s", 0))
		e.wantStatus(t, again, algorithms.HoldHeld)
		e.wantRemaining(t, charge("k", l), 1)
	})
}

func endInDeniedRequest(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		banned := charge("banned", limit(algorithms.FixedWindow, 0))
		banned.Rule = 1
		e.wantAdmitted(t, true, begin("k", l, "r", 6))
		d := e.wantAdmitted(t, false, banned, end("k", l, "r", 0), begin("k", l, "s", 3))
		if !d[1].Allowed || d[1].Remaining != 10 || !d[2].Allowed || d[2].Remaining != 10 {
			t.Errorf("%v: %+v; want the end and the begin allowed, with 10 remaining", a, d)
		}
		e.wantRemaining(t, charge("k", l), 10)
		e.wantStatus(t, begin("k", l, "s", 3), algorithms.HoldDenied)
	})
}

func endUnderQuota(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 10)
		over := quota("over", limit(algorithms.FixedWindow, 0), 0)
		settled := end("k", l, "r", 0)
		settled.Mode, settled.Rule = store.Quota, 1
		e.wantAdmitted(t, false, over, settled)
		settled.Mode = store.ShadowQuota
		e.wantAdmitted(t, false, over, settled)
		e.wantAdmitted(t, true, settled)
	})
}

func holdersAreIndependent(t *testing.T, e Env) {
	var all []store.Charge
	for _, a := range EveryAlgorithm() {
		for _, period := range []time.Duration{time.Hour, 24 * time.Hour} {
			l := held(a, 10)
			if a != algorithms.Concurrency {
				l.Period = period
			}
			for _, key := range []string{"a", "b", ""} {
				if a != algorithms.Concurrency || period == time.Hour {
					all = append(all, begin(key, l, "r", 4))
				}
			}
		}
	}
	for _, c := range all {
		e.wantAdmitted(t, true, c)
		if c.Hold.Was != (algorithms.Hold{}) {
			t.Errorf("%q under %+v: the holder is known: %+v", c.Key, c.Limit, c.Hold.Was)
		}
	}
	for _, c := range all {
		e.wantStatus(t, c, algorithms.HoldHeld)
		e.wantAdmitted(t, true, end(string(c.Key), c.Limit, "r", 0))
		e.wantRemaining(t, charge(string(c.Key), c.Limit), 10)
	}
}
