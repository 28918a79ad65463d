package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReloadUnderTrafficFailsNoRequestAndTheNewLimitHolds(t *testing.T) {
	t.Parallel()
	rules := func(requests int) string {
		return fmt.Sprintf(`
domain: e2e
descriptors:
  - key: user
    rate_limit: {requests_per_unit: %d, unit: year}
  - key: user
    value: traffic
    rate_limit: {requests_per_unit: 4000000000, unit: year}
`, requests)
	}
	s := startSidecar(t, rules(1000))
	e := startEnvoy(t, envoyConfig{RateLimits: byUser, Endpoints: []string{tcpAddress(t, s.GRPC)}})
	tr := e.startTraffic(t, 2, "/", "x-user: traffic")
	tr.awaitMore(t, 50)

	limitOf := func(user string) string {
		return e.get(t, "/", "x-user: "+user).header.Get("x-ratelimit-limit")
	}
	if got, want := limitOf("before"), "1000, 1000;w=31536000"; got != want {
		t.Errorf("before: got %q, want %q", got, want)
	}
	for round, limit := range []int{900, 2, 800, 3} {
		s.reload(t, rules(limit), "rules loaded")
		tr.awaitMore(t, 20)
		user := fmt.Sprintf("round-%d", round)
		if got, want := limitOf(user), fmt.Sprintf("%d, %[1]d;w=31536000", limit); got != want {
			t.Errorf("round %d: got %q, want %q", round, got, want)
		}
	}

	// The new limit holds for new users, and for users with earlier hits: one request each so far.
	if diff := cmp.Diff([]int{200, 200, 200, 429}, e.codes(t, 4, "/", "x-user: new")); diff != "" {
		t.Errorf("a new user (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{200, 200, 429}, e.codes(t, 3, "/", "x-user: before")); diff != "" {
		t.Errorf("a user counted under the old limit (-want +got):\n%s", diff)
	}

	// Rules with a mistake change nothing.
	s.reload(t, "domain: e2e\ndescriptors:\n  - key: user\n    rate_limit: {requests_per_unit: 9, unit: fortnight}\n", "rules refused")
	tr.awaitMore(t, 20)
	if got, want := limitOf("after"), "3, 3;w=31536000"; got != want {
		t.Errorf("after rules with a mistake: got %q, want %q", got, want)
	}

	outcomes := tr.stop()
	if codes := keys(outcomes); !slices.Equal(codes, []string{strconv.Itoa(200)}) {
		t.Errorf("outcomes of the traffic: got %v, want 200 only", outcomes)
	}
	if stats := e.rateLimitStats(t); stats["error"] != 0 || stats["failure_mode_allowed"] != 0 {
		t.Errorf("Envoy's counters: got %v, want no error", stats)
	}
}

// keys returns the keys of m in order.
func keys(m map[string]int) []string {
	var all []string
	for key := range m {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}
