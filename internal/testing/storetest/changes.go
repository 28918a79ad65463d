package storetest

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

func changeCases() []Case {
	return []Case{
		{"a_count_stays_and_is_judged_by_the_new_limit", countStays},
		{"a_bucket_keeps_its_tokens_clamped_to_the_new_burst", bucketKeepsTokens},
		{"a_smaller_burst_in_between_does_not_fill_a_spent_bucket", smallerBurstInBetween},
		{"a_ban_in_between_does_not_forget", banInBetween},
		{"a_new_rate_counts_from_the_change_on", newRateFromTheChange},
		{"limits_of_one_key_in_one_request_share_its_state", twoLimitsOfOneKey},
	}
}

func countStays(t *testing.T, e Env) {
	for _, a := range []algorithms.Algorithm{
		algorithms.FixedWindow, algorithms.SlidingWindowLog, algorithms.SlidingWindowCounter,
	} {
		c := charge("k", limit(a, 10))
		c.Hits = 6
		e.wantAdmitted(t, true, c)
		e.wantRemaining(t, charge("k", limit(a, 20)), 14)
		lower := charge("k", limit(a, 4))
		e.wantRemaining(t, lower, 0)
		e.wantAdmitted(t, false, lower)
		c = charge("k", limit(a, 7))
		e.wantAdmitted(t, true, c)
		e.wantAdmitted(t, false, c)
	}
}

func bucketKeepsTokens(t *testing.T, e Env) {
	bucket := func(burst uint32) algorithms.Limit {
		return algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1, Period: time.Hour, Extra: algorithms.Extra{Burst: burst}}
	}
	c := charge("k", bucket(10))
	c.Hits = 4
	e.wantAdmitted(t, true, c)
	e.wantRemaining(t, charge("k", bucket(100)), 6)
	e.wantAdmitted(t, true, charge("k", bucket(100)))
	e.wantRemaining(t, charge("k", bucket(10)), 5)
	e.wantAdmitted(t, true, charge("k", bucket(3))) // clamped to 3, then one taken
	e.wantRemaining(t, charge("k", bucket(10)), 2)
}

func smallerBurstInBetween(t *testing.T, e Env) {
	large := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1, Period: time.Second, Extra: algorithms.Extra{Burst: 1000}}
	small := large
	small.Burst = 1
	all := charge("k", large)
	all.Hits = 1000
	e.wantAdmitted(t, true, all)
	e.wantAdmitted(t, false, charge("k", small))
	e.Sleep(1100 * time.Millisecond)
	e.wantAdmitted(t, false, all)
	e.wantRemaining(t, all, 1)
	e.wantAdmitted(t, true, charge("k", small)) // and as good as spent again, under the small one
	e.Sleep(30 * time.Second)
	e.wantRemaining(t, charge("k", small), 1)
	e.wantAdmitted(t, false, all)
	e.wantRemaining(t, all, 30)
}

func banInBetween(t *testing.T, e Env) {
	for _, a := range []algorithms.Algorithm{
		algorithms.FixedWindow, algorithms.TokenBucket, algorithms.SlidingWindowLog, algorithms.SlidingWindowCounter,
	} {
		c := charge("k", limit(a, 10))
		c.Hits = 10
		e.wantAdmitted(t, true, c)
		e.wantAdmitted(t, false, charge("k", limit(a, 0)))
		probe := charge("k", limit(a, 0))
		probe.Hits = 0
		e.take(t, probe)
		e.wantRemaining(t, c, 0)
		e.wantAdmitted(t, false, charge("k", limit(a, 10)))
	}
}

func newRateFromTheChange(t *testing.T, e Env) {
	slow := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1, Period: time.Hour, Extra: algorithms.Extra{Burst: 100}}
	fast := slow
	fast.Requests = 3600
	c := charge("k", slow)
	c.Hits = 100
	e.wantAdmitted(t, true, c)
	e.Sleep(30 * time.Minute) // half a token at the old rate, 1800 at the new one
	e.wantAdmitted(t, false, charge("k", fast))
	e.wantRemaining(t, charge("k", fast), 0)
}

func twoLimitsOfOneKey(t *testing.T, e Env) {
	a := algorithms.FixedWindow
	e.wantAdmitted(t, true, charge("k", limit(a, 5)), charge("k", limit(a, 2)))
	e.wantAdmitted(t, false, charge("k", limit(a, 5)), charge("k", limit(a, 2)))
	e.wantRemaining(t, charge("k", limit(a, 5)), 3)
}
