package storetest

import (
	"testing"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func transactionCases() []Case {
	return []Case{
		{"no_charges_are_admitted", func(t *testing.T, e Env) { e.wantAdmitted(t, true) }},
		{"all_or_nothing", allOrNothing},
		{"the_same_key_twice_is_charged_twice_in_order", sameKeyTwice},
		{"the_same_key_twice_beyond_its_limit_is_not_charged", sameKeyTwiceBeyond},
		{"a_denied_request_still_charges_what_counts_rejected_hits", countRejectedInDeniedRequest},
		{"a_denied_request_gives_no_refund", deniedRequestGivesNoRefund},
		{"shadow_decides_but_does_not_deny", shadowDoesNotDeny},
		{"one_quota_of_two_does_not_deny", oneQuotaOfTwo},
		{"all_quotas_over_deny", allQuotasOver},
		{"a_quota_rule_is_over_when_one_of_its_limits_is", quotaRuleOfTwoLimits},
		{"a_quota_in_shadow_is_one_that_is_not_over", shadowQuota},
		{"an_enforcing_denial_outweighs_quotas", enforcingOutweighsQuota},
		{"a_thousand_charges_are_one_transaction", thousandCharges},
	}
}

func allOrNothing(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		wide, narrow := charge("wide", limit(a, 10)), charge("narrow", limit(a, 1))
		e.wantAdmitted(t, true, wide, narrow)
		for range 3 {
			decisions := e.wantAdmitted(t, false, wide, narrow)
			if d := decisions[0]; !d.Allowed || d.Remaining != 9 || d.RetryAfter != 0 {
				t.Errorf("%v: decision of the charge that was not denied = %+v; want allowed with 9 remaining", a, d)
			}
			if decisions[1].Allowed {
				t.Errorf("%v: the charge over its limit is allowed", a)
			}
		}
		e.wantRemaining(t, wide, 9)
	}
}

func sameKeyTwice(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		c := charge("k", limit(a, 5))
		decisions := e.wantAdmitted(t, true, c, c)
		if decisions[0].Remaining != 4 || decisions[1].Remaining != 3 {
			t.Errorf("%v: remaining = %d, %d; want 4, 3", a, decisions[0].Remaining, decisions[1].Remaining)
		}
		e.wantRemaining(t, c, 3)
	}
}

func sameKeyTwiceBeyond(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		c := charge("k", limit(a, 1))
		decisions := e.wantAdmitted(t, false, c, c)
		if !decisions[0].Allowed || decisions[0].Remaining != 1 || decisions[1].Allowed {
			t.Errorf("%v: decisions = %+v; want the first allowed with 1 remaining, the second denied", a, decisions)
		}
		e.wantRemaining(t, c, 1)
	}
}

func countRejectedInDeniedRequest(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		counting, plain, narrow := charge("counting", limit(a, 10)), charge("plain", limit(a, 10)), charge("narrow", limit(a, 1))
		counting.CountRejected, narrow.CountRejected = true, true
		narrow.Hits = 2
		decisions := e.wantAdmitted(t, false, counting, plain, narrow)
		if d := decisions[0]; !d.Allowed || d.Remaining != 9 {
			t.Errorf("%v: decision of the counting charge = %+v; want allowed with 9 remaining", a, d)
		}
		e.wantRemaining(t, counting, 9)
		e.wantRemaining(t, plain, 10)
		narrow.Hits = 0
		e.wantAdmitted(t, false, narrow) // past its limit: the denied hits count
	}
}

func deniedRequestGivesNoRefund(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		used, banned := charge("used", limit(a, 10)), charge("banned", limit(a, 0))
		used.Hits = 5
		e.wantAdmitted(t, true, used)
		used.Hits = -5
		e.wantAdmitted(t, false, used, banned)
		e.wantRemaining(t, used, 5)
	}
}

func shadowDoesNotDeny(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		c, shadow := charge("k", limit(a, 10)), charge("shadow", limit(a, 1))
		shadow.Mode = store.Shadow
		e.wantAdmitted(t, true, c, shadow)
		decisions := e.wantAdmitted(t, true, c, shadow)
		if decisions[1].Allowed || decisions[1].RetryAfter <= 0 {
			t.Errorf("%v: decision of the shadow limit = %+v; want denied", a, decisions[1])
		}
		e.wantRemaining(t, c, 8)
	}
}

// quota returns a charge in quota mode of the rule with that number.
func quota(key string, l algorithms.Limit, rule int) store.Charge {
	c := charge(key, l)
	c.Mode, c.Rule = store.Quota, rule
	return c
}

func oneQuotaOfTwo(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		one, two := quota("one", limit(a, 1), 0), quota("two", limit(a, 2), 1)
		e.wantAdmitted(t, true, one, two)
		decisions := e.wantAdmitted(t, true, one, two)
		if decisions[0].Allowed || !decisions[1].Allowed {
			t.Errorf("%v: decisions = %+v; want the first denied, the second allowed", a, decisions)
		}
		e.wantRemaining(t, two, 0) // the one that admits is charged
	}
}

func allQuotasOver(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		one, two, c := quota("one", limit(a, 1), 0), quota("two", limit(a, 2), 1), charge("k", limit(a, 10))
		c.Rule = 2
		e.wantAdmitted(t, true, one, two, c)
		e.wantAdmitted(t, true, one, two, c)
		e.wantAdmitted(t, false, one, two, c)
		e.wantRemaining(t, c, 8)
	}
}

func quotaRuleOfTwoLimits(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		narrow, wide := quota("narrow", limit(a, 1), 7), quota("wide", limit(a, 10), 7)
		e.wantAdmitted(t, true, narrow, wide)
		e.wantAdmitted(t, false, narrow, wide)
		other := quota("other", limit(a, 10), 8)
		e.wantAdmitted(t, true, narrow, wide, other)
	}
}

func shadowQuota(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		over, shadow := quota("over", limit(a, 0), 0), charge("shadow", limit(a, 0))
		shadow.Mode, shadow.Rule = store.ShadowQuota, 1
		e.wantAdmitted(t, false, over)
		e.wantAdmitted(t, true, shadow)
		e.wantAdmitted(t, true, over, shadow)
	}
}

func enforcingOutweighsQuota(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		free, banned := quota("free", limit(a, 10), 0), charge("banned", limit(a, 0))
		banned.Rule = 1
		e.wantAdmitted(t, false, free, banned)
		e.wantRemaining(t, free, 10)
	}
}

func thousandCharges(t *testing.T, e Env) {
	l := limit(algorithms.TokenBucket, 3)
	charges := make([]store.Charge, 1000)
	for i := range charges {
		charges[i] = charge(string(rune('a'+i%500)), l)
		charges[i].Rule = i
	}
	e.wantAdmitted(t, true, charges...)
	e.wantAdmitted(t, false, charges...)
	e.wantRemaining(t, charges[0], 1)
}
