package storetest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// CarryCases returns the cases of limits that replaced others.
func CarryCases() []Case {
	return []Case{
		{"hits_carry_over_to_another_algorithm_and_period_and_back", carryThereAndBack},
		{"a_client_that_is_denied_stays_denied_under_another_limit", deniedStaysDenied},
		{"a_bucket_keeps_its_tokens_under_another_period", tokensCarryOver},
		{"a_peek_counts_the_hits_of_the_limit_before", peekCarries},
		{"no_interval_admits_more_than_the_larger_limit", func(t *testing.T, e Env) { Intervals(t, e, 4) }},
		{"random_changes_of_limits_are_decided_as_a_plain_second_store_decides_them", carryAsModel},
	}
}

// changed returns a charge under a limit that replaced others, the oldest first.
func changed(key string, l algorithms.Limit, before ...algorithms.Limit) store.Charge {
	c := charge(keyUnder(key, l), l)
	for _, old := range before {
		c.Before = append(c.Before, store.Former{Key: []byte(keyUnder(key, old)), Limit: old, Both: true})
	}
	return c
}

// keyUnder returns a key with the limit as its end, as keys of rules have.
func keyUnder(key string, l algorithms.Limit) string {
	return fmt.Sprintf("%s#%d/%v", key, uint8(l.Algorithm), l.Period)
}

func carryThereAndBack(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		for _, b := range EveryRate() {
			key := fmt.Sprint(uint8(a), " ", uint8(b))
			from, to := limit(a, 10), algorithms.Limit{Algorithm: b, Requests: 100, Period: time.Hour}
			c := charge(keyUnder(key, from), from)
			c.Hits = 4
			e.wantAdmitted(t, true, c)
			there := changed(key, to, from)
			e.wantAdmitted(t, true, there)
			want := uint64(95)
			if isBucket(a) && isBucket(b) {
				want = 5
			}
			e.wantRemaining(t, there, want)
			e.wantRemaining(t, changed(key, from, to), 5)
			c.Hits = 6
			e.wantAdmitted(t, false, c)
			c.Hits = 5
			e.wantAdmitted(t, true, c) // of a process that has the rules before
			e.wantRemaining(t, there, want-5)
		}
	}
}

func isBucket(a algorithms.Algorithm) bool {
	return a == algorithms.TokenBucket || a == algorithms.TokenBucketInteger
}

func deniedStaysDenied(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		for _, b := range EveryRate() {
			key := fmt.Sprint(uint8(a), " ", uint8(b))
			from, to := limit(a, 5), algorithms.Limit{Algorithm: b, Requests: 5, Period: time.Hour}
			c := charge(keyUnder(key, from), from)
			c.Hits = 5
			e.wantAdmitted(t, true, c)
			e.wantAdmitted(t, false, changed(key, to, from))
			e.wantAdmitted(t, false, changed(key, from, to))
			e.wantAdmitted(t, false, charge(keyUnder(key, to), to))
		}
	}
}

func tokensCarryOver(t *testing.T, e Env) {
	second := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 20, Period: time.Second}
	minute := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1200, Period: time.Minute, Extra: algorithms.Extra{Burst: 100}}
	hour := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 60, Period: time.Hour, Extra: algorithms.Extra{Burst: 50}}
	c := charge(keyUnder("k", second), second)
	c.Hits = 11
	e.wantAdmitted(t, true, c)
	e.wantRemaining(t, changed("k", minute, second), 9)
	e.wantAdmitted(t, true, changed("k", hour, second, minute))
	e.wantRemaining(t, changed("k", hour, second, minute), 8)
	c.Hits = 2
	e.wantAdmitted(t, true, c)
	e.wantRemaining(t, changed("k", hour, second, minute), 6)
}

func peekCarries(t *testing.T, e Env) {
	from, to := limit(algorithms.FixedWindow, 5), limit(algorithms.SlidingWindowLog, 7)
	c := charge(keyUnder("k", from), from)
	c.Hits = 5
	e.wantAdmitted(t, true, c)
	e.wantRemaining(t, changed("k", to, from), 2)
}

// carryAsModel compares the store with a model over random changes of limits under load. Each key
// has limits of all algorithms, and some processes use the limits before.
func carryAsModel(t *testing.T, e Env) {
	const seed = 20261124
	r, m := rand.New(rand.NewPCG(seed, 1)), model.Keys{}
	scale := []time.Duration{0, 0, time.Millisecond, 100 * time.Millisecond, 3 * time.Second, 20 * time.Second}
	var rules [4][]algorithms.Limit // of each key, the oldest first
	for step := range race.Scale(5000) {
		e.Sleep(scale[r.IntN(len(scale))] + time.Duration(r.IntN(1000))*time.Microsecond)
		n := r.IntN(len(rules))
		if len(rules[n]) == 0 || r.IntN(8) == 0 {
			all := EveryRate()
			next := algorithms.Limit{
				Algorithm: all[r.IntN(len(all))], Requests: uint32(r.IntN(12)),
				Period: []time.Duration{time.Second, 7 * time.Second, time.Minute}[r.IntN(3)],
			}
			if next.Algorithm == algorithms.TokenBucket && next.Requests > 0 {
				next.Burst = uint32(r.IntN(20))
			}
			large := r.IntN(3) == 0
			if e.OneSize {
				large = n == 0
			}
			if next.Algorithm.HasWindows() && large {
				next.SetPerPeriod(next.PerPeriod() * 1_234_567_891)
			}
			rules[n] = follow(rules[n], next)
		}
		charges := []store.Charge{randomChange(r, n, rules[n])}
		if r.IntN(4) == 0 {
			other := e.sized(randomCharges(r))[0]
			other.Rule = 1
			charges = append(charges, other)
		}
		now := e.Now()
		if r.IntN(10) == 0 {
			e.peekAsModel(t, m, charges[:1], now)
		}
		admitted, decisions := e.take(t, charges...)
		if diff := differs(charges, admitted, decisions, m.Take(charges, now)); diff != "" {
			t.Fatalf("seed %d, step %d, before %+v: %s", seed, step, charges[0].Before, diff)
		}
	}
}

// follow returns the limits of a key after one more change, at most four.
func follow(all []algorithms.Limit, next algorithms.Limit) []algorithms.Limit {
	var kept []algorithms.Limit
	for _, l := range all {
		if l.Algorithm != next.Algorithm || l.Period != next.Period {
			kept = append(kept, l)
		}
	}
	return append(kept[max(0, len(kept)-3):], next)
}

// randomChange returns a charge under the newest limit of a key, or of a process that has older
// rules.
func randomChange(r *rand.Rand, key int, all []algorithms.Limit) store.Charge {
	if len(all) > 1 && r.IntN(4) == 0 {
		all = all[:1+r.IntN(len(all)-1)]
	}
	last := len(all) - 1
	c := changed(fmt.Sprint("changed ", key), all[last], all[:last]...)
	for i := range c.Before {
		c.Before[i].Both = r.IntN(3) > 0
		c.Before[i].Skips = uint8(r.IntN(2) * r.IntN(last-i))
	}
	c.Hits, c.CountRejected = int64(r.IntN(6)-1), r.IntN(4) == 0
	if c.Limit.More > 0 {
		c.Hits = min(c.Hits*1_234_567_890, algorithms.MaxHits)
	}
	return c
}
