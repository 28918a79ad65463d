package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/test/parts"
)

const blockRules = `
domain: e2e
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 1, unit: second, escalate: {after: 2, within: 1m, block: [15s, 1h], forget: 1d}}
`

// blocked asks until a key is blocked, and returns the instant at which the block ends, by the
// answer, which has whole seconds, rounded up.
func (c client) blocked(t *testing.T, user string, least time.Duration) (end time.Time) {
	t.Helper()
	parts.Eventually(t, func() string {
		asked := time.Now()
		status := c.ask(t, 1, "user", user)
		wait := status.GetDurationUntilReset().AsDuration()
		if end = asked.Add(wait); status.GetCode() == ratelimitv3.RateLimitResponse_OK || wait < least {
			return fmt.Sprintf("not blocked: %v", status)
		}
		return ""
	})
	return end
}

// passes asks until a key is free, and returns the instant.
func (c client) passes(t *testing.T, user string) time.Time {
	t.Helper()
	parts.Eventually(t, func() string {
		if status := c.ask(t, 1, "user", user); status.GetCode() != ratelimitv3.RateLimitResponse_OK {
			return fmt.Sprintf("denied: %v", status)
		}
		return ""
	})
	return time.Now()
}

func TestABlockGoesOnOverAFailoverAndARestartAndEndsByAReset(t *testing.T) {
	t.Parallel()
	s := startSentinels(t, parts.SentinelOptions{})
	url := "redis-sentinel://" + strings.Join(s.Addresses(), ",") + "/" + parts.SentinelName
	f := &fleet{}
	for range 2 {
		f.start(t, blockRules, url, "--fleet-size=2")
	}
	f.awaitState(t, "closed")
	end := f.clients[0].blocked(t, "bot", 14*time.Second)
	if other := f.clients[1].blocked(t, "bot", time.Second); other.Sub(end).Abs() > 1500*time.Millisecond {
		t.Errorf("the sidecars say that the block ends at %v and at %v", end, other)
	}
	old, err := s.Primary(parts.Soon(t))
	if err != nil {
		t.Fatal(err)
	}
	awaitCopies(t, old, slices.DeleteFunc(slices.Clone(s.Data), func(r *parts.Redis) bool { return r == old }))
	old.Kill()
	for i, c := range f.clients {
		if status := c.ask(t, 1, "user", "bot"); status.GetCode() == ratelimitv3.RateLimitResponse_OK && time.Now().Before(end) {
			t.Errorf("sidecar %d frees the key while Redis is away", i)
		}
	}
	if _, err := s.AwaitNewPrimary(parts.Soon(t), old); err != nil {
		t.Fatal(err)
	}
	if free := f.clients[1].passes(t, "bot"); free.Before(end.Add(-1100*time.Millisecond)) || free.After(end.Add(3*time.Second)) {
		t.Errorf("the key is free at %v, and the block ended at %v, or less than a second before", free, end)
	}

	f.clients[0].blocked(t, "bot", 50*time.Minute) // the second length
	first := f.sidecars[0]
	first.terminate(t)
	first.awaitExit(t)
	again := f.start(t, blockRules, url, "--fleet-size=2")
	f.clients[2].blocked(t, "bot", 50*time.Minute)
	if text := again.must(t, "match", "e2e", "user=bot"); !strings.Contains(text, "blocked until 20") {
		t.Errorf("match says\n%s", text)
	}
	again.must(t, "reset", "e2e", "user=bot")
	for _, c := range f.clients[1:] {
		c.passes(t, "bot")
	}
}

func TestABlockOutlivesARestartWithAStateDirectory(t *testing.T) {
	t.Parallel()
	state := "--state-dir=" + t.TempDir()
	s := startSidecar(t, blockRules, state)
	end := dial(t, s.GRPC).blocked(t, "bot", 14*time.Second)
	s.terminate(t)
	s.awaitExit(t)
	c := dial(t, startSidecarOn(t, s.rules, state).GRPC)
	if status := c.ask(t, 1, "user", "bot"); status.GetCode() == ratelimitv3.RateLimitResponse_OK && time.Now().Before(end.Add(-time.Second)) {
		t.Errorf("after the restart the key is free: %v", status)
	}
	if free := c.passes(t, "bot"); free.Before(end.Add(-1100*time.Millisecond)) || free.After(end.Add(3*time.Second)) {
		t.Errorf("the key is free at %v, and the block ended at %v, or less than a second before", free, end)
	}
	c.blocked(t, "bot", 50*time.Minute)
}
