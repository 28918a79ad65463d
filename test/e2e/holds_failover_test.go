package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/test/parts"
)

// A new primary knows the holders of the old one: their ends free slots, and a holder without an
// end goes at_most after its begin.
func TestSlotsOutliveAFailoverBySentinels(t *testing.T) {
	t.Parallel()
	const atMost = 15 * time.Second
	sentinels := startSentinels(t, parts.SentinelOptions{})
	c := &crowded{fleet: &fleet{}, t: t, domain: "e2e"}
	c.start(t, slots(3, atMost), "redis-sentinel://"+strings.Join(sentinels.Addresses(), ",")+"/"+parts.SentinelName)
	c.awaitState(t, "closed")
	begun := time.Now()
	holders := c.fill(0)
	if len(holders) != 3 {
		t.Fatalf("%d holders began, want 3", len(holders))
	}
	old, err := sentinels.Primary(parts.Soon(t))
	if err != nil {
		t.Fatal(err)
	}
	awaitCopies(t, old, slices.DeleteFunc(slices.Clone(sentinels.Data), func(r *parts.Redis) bool { return r == old }))
	breakers := c.opened(t)
	old.Kill()
	c.awaitAway(breakers)
	if _, err := sentinels.AwaitNewPrimary(parts.Soon(t), old); err != nil {
		t.Fatal(err)
	}
	c.awaitState(t, "closed")
	right := c.clients[0].left(t, "e2e", "alice")
	c.end(0, holders[0], 1)
	after := c.clients[0].left(t, "e2e", "alice")
	if time.Since(begun) < atMost && (right != 0 || after != 1) {
		t.Errorf("after the failover: %d slots are free, and %d after an end; want 0 and 1", right, after)
	}
	parts.Eventually(t, func() string {
		got := c.clients[0].left(t, "e2e", "alice")
		if now := time.Since(begun); got > 1 && now < atMost {
			t.Fatalf("%d slots are free %s after the begin, of which one has ended, want %s at least for the others", got, now, atMost)
		}
		if got < 3 {
			return fmt.Sprintf("%d slots are free, want 3", got)
		}
		return ""
	})
}

// A sidecar that dies takes the ends of its requests along: Envoy tells each end once.
func TestSlotsOfASidecarThatDiedAreFreeAfterAtMostAndNotBefore(t *testing.T) {
	t.Parallel()
	const atMost = 8 * time.Second
	r := startRedis(t, parts.RedisOptions{})
	args := []string{"--store=redis", "--redis-url=" + urlOf(r.Address()), "--redis-timeout=10s"}
	backend := parts.BackendFor(t)
	rules := slots(2, atMost)
	dying, other := startWith(t, rules, args...), startWith(t, rules, args...)
	e := startEnvoyTo(t, backend.Address(), envoyConfig{RateLimits: beginAndEnd, Endpoints: []string{tcpAddress(t, dying.GRPC)}})
	c := crowd{e: e, backend: backend, gate: "slow", path: gated("slow"), headers: []string{"x-user: alice"}}
	begun := time.Now()
	two, outcomes := c.sendAll(t, 2)
	if !cmp.Equal(outcomes, times(2, "held")) {
		t.Fatalf("two requests for two slots: got %v", outcomes)
	}
	dying.stopped = true
	dying.Kill()
	backend.Open("slow")
	for _, f := range two {
		if code := f.land(t).code; code != 200 {
			t.Errorf("a request that ends without Weir: got %d, want 200", code)
		}
	}
	freeOnlyAfter(t, dial(t, other.GRPC), "alice", begun, atMost)
}
