package shared

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// with returns the charge changed.
func with(c store.Charge, change func(*store.Charge)) store.Charge {
	change(&c)
	return c
}

func policy(c store.Charge, p store.OnError) store.Charge {
	return with(c, func(c *store.Charge) { c.OnError = p })
}

func quota(c store.Charge, rule int) store.Charge {
	return with(c, func(c *store.Charge) { c.Mode, c.Rule = store.Quota, rule })
}

func hits(c store.Charge, n int64) store.Charge {
	return with(c, func(c *store.Charge) { c.Hits = n })
}

func TestEachPolicyAnswersForItsCharge(t *testing.T) {
	bucket := charge("k", 3)
	bucket.Limit.Algorithm, bucket.Limit.Burst = algorithms.TokenBucket, 30
	refused := algorithms.Decision{RetryAfter: time.Second, ResetAfter: time.Second}
	for _, tt := range []struct {
		name     string
		charge   store.Charge
		admitted bool
		want     algorithms.Decision
	}{
		{"local_within", charge("k", 3), true, algorithms.Decision{Allowed: true, Remaining: 2, ResetAfter: time.Hour}},
		{
			"local_over", hits(charge("k", 3), 4), false,
			algorithms.Decision{Remaining: 3, RetryAfter: time.Hour, ResetAfter: time.Hour},
		},
		{"allow", policy(charge("k", 3), store.OnErrorAllow), true, algorithms.Decision{Allowed: true, Remaining: 3}},
		{"allow_over_the_limit", policy(hits(charge("k", 3), 4), store.OnErrorAllow), true, algorithms.Decision{Allowed: true, Remaining: 3}},
		{"allow_a_bucket", policy(bucket, store.OnErrorAllow), true, algorithms.Decision{Allowed: true, Remaining: 30}},
		{"allow_a_probe", policy(hits(charge("k", 3), 0), store.OnErrorAllow), true, algorithms.Decision{Allowed: true, Remaining: 3}},
		{"allow_a_refund", policy(hits(charge("k", 3), -2), store.OnErrorAllow), true, algorithms.Decision{Allowed: true, Remaining: 3}},
		{"allow_a_ban", policy(charge("k", 0), store.OnErrorAllow), false, algorithms.Decision{RetryAfter: time.Hour, ResetAfter: time.Hour}},
		{
			"allow_a_ban_in_shadow_quota",
			with(policy(charge("k", 0), store.OnErrorAllow), func(c *store.Charge) { c.Mode = store.ShadowQuota }),
			true,
			algorithms.Decision{RetryAfter: time.Hour, ResetAfter: time.Hour},
		},
		{"deny", policy(charge("k", 3), store.OnErrorDeny), false, refused},
		{"deny_many", policy(hits(charge("k", 3), algorithms.MaxHits), store.OnErrorDeny), false, refused},
		{"deny_a_probe", policy(hits(charge("k", 3), 0), store.OnErrorDeny), true, algorithms.Decision{Allowed: true, ResetAfter: time.Second}},
		{"deny_a_refund", policy(hits(charge("k", 3), -2), store.OnErrorDeny), true, algorithms.Decision{Allowed: true, ResetAfter: time.Second}},
		{"deny_in_shadow", with(policy(charge("k", 3), store.OnErrorDeny), func(c *store.Charge) { c.Mode = store.Shadow }), true, refused},
		{"deny_in_quota", policy(quota(charge("k", 3), 0), store.OnErrorDeny), false, refused},
		{"deny_in_shadow_quota", with(policy(charge("k", 3), store.OnErrorDeny), func(c *store.Charge) { c.Mode = store.ShadowQuota }), true, refused},
	} {
		// Alone, and beside a charge of the local store's, so that both ways to the verdict are
		// gone.
		for _, beside := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/beside=%v", tt.name, beside), func(t *testing.T) {
				inBubbleAway(t, setup{}, func(r *rig) {
					t := r.t
					charges := []store.Charge{tt.charge}
					if beside {
						charges = append(charges, with(charge("beside", 9), func(c *store.Charge) { c.Rule = 1 }))
					}
					decisions := make([]algorithms.Decision, len(charges))
					if err := r.Peek(t.Context(), charges, decisions); err != nil || decisions[0] != tt.want {
						t.Errorf("Peek = %+v, %v; want %+v", decisions[0], err, tt.want)
					}
					admitted, err := store.Take(t.Context(), r, charges, decisions)
					if err != nil || admitted != tt.admitted || decisions[0] != tt.want {
						t.Errorf("Take = %v, %+v, %v; want %v, %+v", admitted, decisions[0], err, tt.admitted, tt.want)
					}
					keys := 0
					if tt.name == "local_within" {
						keys++
					}
					if beside && admitted {
						keys++
					}
					if got := r.local.Stats().Keys; got != keys {
						t.Errorf("the local store has %d keys; want %d", got, keys)
					}
				})
			})
		}
	}
}

func TestChargesOfSeveralPoliciesAreOneTransaction(t *testing.T) {
	local, spent := charge("local", 5), charge("spent", 0)
	counted := with(charge("counted", 5), func(c *store.Charge) { c.CountRejected = true })
	allow, deny := policy(charge("allow", 5), store.OnErrorAllow), policy(charge("deny", 5), store.OnErrorDeny)
	for _, tt := range []struct {
		name     string
		charges  []store.Charge
		admitted bool
		left     map[string]uint64 // remaining of the local store's keys
	}{
		{"allow_beside_local", []store.Charge{allow, local}, true, map[string]uint64{"local": 4}},
		{"deny_keeps_local_from_being_charged", []store.Charge{local, deny}, false, map[string]uint64{"local": 5}},
		{"deny_first", []store.Charge{deny, local}, false, map[string]uint64{"local": 5}},
		{"denied_hits_that_count_are_counted", []store.Charge{counted, local, deny}, false, map[string]uint64{"local": 5, "counted": 4}},
		{"a_local_denial_outweighs_allow", []store.Charge{allow, local, spent}, false, map[string]uint64{"local": 5}},
		{
			"a_denied_request_gives_no_refund",
			[]store.Charge{hits(charge("local", 5), 3), hits(charge("local", 5), -3), deny},
			false,
			map[string]uint64{"local": 5},
		},
		{"a_quota_denied_of_two", []store.Charge{quota(deny, 0), quota(local, 1)}, true, map[string]uint64{"local": 4}},
		{"a_quota_allowed_of_two", []store.Charge{quota(allow, 0), quota(spent, 1), with(local, func(c *store.Charge) { c.Rule = 2 })}, true, map[string]uint64{"local": 4}},
		{"both_quotas_denied", []store.Charge{quota(deny, 0), quota(spent, 1), with(local, func(c *store.Charge) { c.Rule = 2 })}, false, map[string]uint64{"local": 5}},
		{"two_limits_of_one_quota_rule", []store.Charge{quota(deny, 0), quota(local, 0)}, false, map[string]uint64{"local": 5}},
		{
			"the_same_key_by_three_policies",
			[]store.Charge{policy(local, store.OnErrorAllow), local, with(policy(local, store.OnErrorDeny), func(c *store.Charge) { c.Mode = store.Shadow })},
			true,
			map[string]uint64{"local": 4},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubbleAway(t, setup{}, func(r *rig) {
				t := r.t
				admitted, err := store.Take(t.Context(), r, tt.charges, make([]algorithms.Decision, len(tt.charges)))
				if err != nil || admitted != tt.admitted {
					t.Errorf("Take = %v, %v; want %v", admitted, err, tt.admitted)
				}
				left := map[string]uint64{}
				for key := range tt.left {
					left[key] = r.left(charge(key, 5))
				}
				must.Match(t, "left in the local store", tt.left, left)
			})
		})
	}
}

// Without the remote store a key that learns tells no number: its decision has no ResetAfter. The
// charge is no decision by a policy, and the remote store is not charged later.
func TestAKeyThatLearnsTellsAndLearnsNothingWithoutTheRemoteStore(t *testing.T) {
	inBubbleAway(t, setup{}, func(r *rig) {
		lesson := store.Charge{
			Key: []byte("k/learned/"), Limit: algorithms.Learn(950), Hits: 7, Mode: store.Shadow, CountRejected: true, OnError: store.OnErrorAllow, Exact: true,
		}
		decisions, before := make([]algorithms.Decision, 2), r.Stats().Decided
		for _, charges := range [][]store.Charge{{lesson}, {charge("k", 3), lesson}} {
			admitted, err := store.Take(r.t.Context(), r, charges, decisions)
			if d := decisions[len(charges)-1]; err != nil || !admitted || !d.Allowed || d.ResetAfter != 0 {
				r.t.Errorf("%d charges: admitted %t (%v), %+v", len(charges), admitted, err, d)
			}
		}
		before.Local++
		if got := r.Stats().Decided; got != before {
			r.t.Errorf("decided %+v, want %+v", got, before)
		}
	})
}
