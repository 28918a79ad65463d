package limiter_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
)

const pairRules = `domain: edge
descriptors:
  - key: tokens
    rate_limit: {algorithm: token_bucket, requests_per_unit: 100, unit: hour, hold: {pair: id, at_most: 10m}}
  - key: minute
    rate_limit: {algorithm: token_bucket, requests_per_unit: 100, unit: minute, hold: {pair: id, at_most: 10m}}
  - key: both
    rate_limits:
      - {algorithm: concurrency, max_in_flight: 2, hold: {pair: id, at_most: 10m}}
      - {requests_per_unit: 100, unit: day, hold: {pair: id, at_most: 10m}}
  - key: slots
    rate_limit: {algorithm: concurrency, max_in_flight: 2, hold: {pair: id, at_most: 10m}}
  - key: counted
    rate_limit: {requests_per_unit: 100, unit: day, count_rejected: true, hold: {pair: id, at_most: 10m}}
  - key: shadow
    shadow_mode: true
    rate_limit: {requests_per_unit: 10, unit: day, hold: {pair: id, at_most: 10m}}
  - {key: banned, rate_limit: {unit: day, requests_per_unit: 0}}
`

func TestAPairThroughTheStore(t *testing.T) {
	one := func(text, want string) step { return step{[]string{text}, want} }
	wait := func(text string) step { return step{[]string{"wait " + text}, ""} }
	for name, steps := range map[string][]step{
		"an estimate, then the cost": {
			one("tokens=a,id=1 hits=60", "OK ok:40/100"), one("tokens=a,id=2 hits=60", "OVER over:40/100"),
			one("tokens=a,id=1 hits=10", "OK ok:90/100"), one("tokens=a,id=2 hits=60", "OK ok:30/100"),
			one("tokens=a,id=2 hits=95", "OK ok:0/100"), one("tokens=a,id=3 hits=0", "OVER over:0/100"),
		},
		"no hits, then the cost": {
			one("tokens=a,id=1 hits=0", "OK ok:100/100"), one("tokens=a,id=2 hits=0", "OK ok:100/100"),
			one("tokens=a,id=1 hits=70", "OK ok:30/100"), one("tokens=a,id=2 hits=70", "OK ok:0/100"), one("tokens=a,id=3 hits=0", "OVER over:0/100"),
		},
		"after the end the name begins again": {
			one("tokens=a,id=1 hits=50", "OK ok:50/100"), one("tokens=a,id=1 hits=20", "OK ok:80/100"), one("tokens=a,id=1 hits=81", "OVER over:80/100"),
			one("tokens=a,id=1 hits=80", "OK ok:0/100"), one("tokens=a,id=1 hits=0", "OK ok:80/100"),
		},
		"a first call that was lost": {
			one("tokens=a,id=1 hits=70", "OK ok:30/100"), wait("10m"), one("tokens=a,id=1 hits=5", "OK ok:41/100"), // 70 stay, 16 come back
		},
		"a request in flight has one slot, whatever its tokens": {
			one("both=a,id=1 hits=30", "OK ok:1/2"), one("both=a,id=2 hits=0", "OK ok:0/2"), one("both=a,id=3 hits=1", "OVER over:0/2"),
			one("both=a,id=1 hits=90", "OK ok:1/2"), one("both=a,id=3 hits=11", "OVER over:10/100"), one("both=a,id=3 hits=10", "OK ok:0/2"),
			one("both=a,id=2 hits=0", "OK ok:0/100"), one("both=a,id=3 hits=0", "OK ok:2/2"),
		},
		"an estimate above the limit is cut, and its cost is not": {
			one("minute=a,id=1 hits=5000", "OK ok:0/100"), wait("1m"), one("minute=a,id=2 hits=101", "OVER over:0/100"),
			one("minute=a,id=1 hits=150", "OK ok:50/100"), wait("30s"), one("minute=a,id=2 hits=101", "OK ok:0/100"), one("minute=a,id=2 hits=0", "OK ok:100/100"),
			one("minute=a,id=3 hits=0", "OK ok:100/100"), one("minute=a,id=3 hits=250", "OK ok:0/100"), wait("2m30s"), one("minute=a,id=4 hits=5000", "OK ok:0/100"),
		},
		"a denied call that counts": {
			one("counted=a,id=1 hits=60", "OK ok:40/100"), one("counted=a,id=2 hits=60", "OVER over:0/100"), one("counted=a,id=1 hits=0", "OK ok:40/100"),
		},
		"another descriptor denies": {
			{[]string{"both=a,id=1 hits=30", "banned=x"}, "OVER ok:2/2 over:0/0"},
			one("both=a,id=1 hits=30", "OK ok:1/2"),
			{[]string{"both=a,id=1 hits=30", "banned=x"}, "OVER ok:2/2 over:0/0"},
			one("slots=a,id=1", "OK ok:1/2"),
		},
		"descriptors of one request end together": {
			one("slots=a,id=1", "OK ok:1/2"), {[]string{"slots=a,id=1", "slots=b,id=1", "tokens=a,id=1 hits=130"}, "OK ok:2/2 ok:2/2 ok:0/100"},
		},
		"shadow mode holds nothing, and its end costs nothing": {
			one("shadow=a,id=0 hits=5", "OK ok:5/10"),
			{[]string{"tokens=a,id=1 hits=20", "shadow=a,id=1 hits=8"}, "OK ok:80/100 shadowed:5/10"},
			{[]string{"tokens=a,id=1 hits=30", "shadow=a,id=1 hits=9"}, "OK ok:70/100 ok:5/10"},
		},
		"without a name each call begins": {
			one("slots=a,id= hits=0", "OK ok:1/2"), one("slots=a,id= hits=9", "OK ok:0/2"), one("slots=a,id=", "OVER over:0/2"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				newFixture(t, pairRules).run(steps)
			})
		})
	}
}

// The first call of agentgateway has 0 hits. The begin holds the learned estimate.
func TestAPairHoldsWhatTheEndsBeforeHaveCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, `domain: edge
descriptors:
  - key: user
    rate_limit:
      {unit: hour, requests_per_unit: 1000, hold: {pair: id, at_most: 10m, estimate: {learned: {quantile: 0.95, ceiling: 300}}}}
`)
		ask := f.wants
		ask("user=a,id=1 hits=0", "OK ok:700/1000") // nobody has estimated: the ceiling
		ask("user=a,id=1 hits=10", "OK ok:990/1000")
		for i := range algorithms.LearnedFrom {
			f.check(request("edge", fmt.Sprintf("user=a,id=%d hits=0", i)))
			f.check(request("edge", fmt.Sprintf("user=a,id=%d hits=10", i)))
		}
		ask("user=a,id=next hits=0", "OK ok:780/1000")   // 210 are charged
		ask("user=a,id=next hits=500", "OK ok:290/1000") // the cost has no ceiling
		ask("user=a,id=other hits=0", "OK ok:280/1000")
		if got := holdTally(f, "user"); got.Ended != algorithms.LearnedFrom+2 || got.Cost != 710 {
			t.Errorf("holders: %+v", got)
		}
	})
}

func TestPairsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, pairRules)
		for _, r := range []string{"id=1 hits=0", "id=2 hits=30", "id=3 hits=90", "id=1 hits=25", "id=2 hits=20", "id=4 hits=101"} {
			f.check(request("edge", "tokens=a,"+r))
		}
		want := limiter.HoldTally{Begun: 2, Ended: 2, Estimate: 30, Cost: 45}
		if diff := cmp.Diff(want, holdTally(f, "tokens")); diff != "" {
			t.Errorf("holders (-want +got):\n%s", diff)
		}
		for c := range f.Counts() {
			if total := c.Counts.Total(); c.Path == "tokens" && (total.Hits[limiter.CodeOK] != 55 || total.Refunded != 10) {
				t.Errorf("hits: got %d charged and %d given back; want 55 and 10", total.Hits[limiter.CodeOK], total.Refunded)
			}
		}
	})
}
