package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/test/parts"
)

// freeOnlyAfter waits until a user has both slots again, and holds that the slots were not free
// earlier than a time after begun. begun is before the first of the requests that held the slots.
func freeOnlyAfter(t *testing.T, c client, user string, begun time.Time, atMost time.Duration) {
	t.Helper()
	held := 0
	parts.Eventually(t, func() string {
		got := c.left(t, "e2e", user)
		if got > 0 && time.Since(begun) < atMost {
			t.Fatalf("a slot is free %s after the begin, want %s at least", time.Since(begun), atMost)
		}
		if got == 0 {
			held++
		}
		if got < 2 {
			return fmt.Sprintf("%d slots are free, want 2", got)
		}
		return ""
	})
	if held == 0 {
		t.Error("the slots were never seen held")
	}
}

func TestSlotsOfAnEnvoyThatDiedAreFreeAfterAtMostAndNotBefore(t *testing.T) {
	t.Parallel()
	for store, start := range stores() {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			args := start(t)
			const atMost = 4 * time.Second
			backend := parts.BackendFor(t)
			s := startWith(t, slots(2, atMost), args...)
			config := envoyConfig{RateLimits: beginAndEnd, Endpoints: []string{tcpAddress(t, s.GRPC)}}
			dying, other := startEnvoyTo(t, backend.Address(), config), startEnvoyTo(t, backend.Address(), config)
			begun := time.Now()
			c := crowd{e: dying, backend: backend, gate: "slow", path: gated("slow"), headers: []string{"x-user: alice"}}
			if _, outcomes := c.sendAll(t, 2); !cmp.Equal(outcomes, times(2, "held")) {
				t.Fatalf("two requests for two slots: got %v", outcomes)
			}
			dying.Kill()
			c.e = other
			if _, outcome := c.send(t); outcome != "429" && time.Since(begun) < atMost {
				t.Errorf("right after Envoy died: got %s, want 429", outcome)
			}
			freeOnlyAfter(t, dial(t, s.GRPC), "alice", begun, atMost)
			if _, outcomes := c.sendAll(t, 2); !cmp.Equal(outcomes, times(2, "held")) {
				t.Errorf("two requests through another Envoy: got %v, want that both pass", outcomes)
			}
		})
	}
}

// A client that leaves while Envoy waits for Weir: Envoy then tells no end.
func TestSlotsOfClientsThatLeaveDuringTheCallAreFreeAfterAtMost(t *testing.T) {
	t.Parallel()
	for store, start := range stores() {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			args := start(t)
			const atMost = 4 * time.Second
			backend := parts.BackendFor(t)
			s := startWith(t, slots(2, atMost), args...)
			slow := parts.ProxyFor(t, s.GRPC)
			e := startEnvoyTo(t, backend.Address(), envoyConfig{RateLimits: beginAndEnd, Endpoints: []string{tcpAddress(t, slow.Address())}})
			asked := dial(t, s.GRPC)
			slow.Mute()
			begun := time.Now()
			for range 2 {
				f := e.fly(t, "/", "x-user: alice")
				defer f.leave()
			}
			awaitLeft(t, asked, "e2e", "alice", 0)
			f := e.fly(t, "/", "x-user: alice") // denied, and gone before the answer
			f.leave()
			freeOnlyAfter(t, asked, "alice", begun, atMost)
		})
	}
}

// A request that passes because Weir does not answer holds nothing. The end of such a request
// changes no slots, and is charged whole under a rate limit.
func TestEndsOfRequestsThatFailedOpen(t *testing.T) {
	t.Parallel()
	const tokens = `
domain: e2e
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1000, hold: {begin: request, end: request_done, at_most: 1h}}
`
	costs := strings.Replace(strings.TrimSpace(beginAndEnd)+"\n  hits_addend: { number: 30 }\n",
		"descriptor_key: request }\n", "descriptor_key: request }\n  hits_addend: { number: 100 }\n", 1)
	tests := []struct {
		name, rules, limits string
		left                int
	}{
		{"slots", slots(2, long), beginAndEnd, 2},
		{"tokens", tokens, costs, 1000 - 30},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			backend := parts.BackendFor(t)
			s := startSidecar(t, test.rules)
			way := parts.ProxyFor(t, s.GRPC)
			e := startEnvoyTo(t, backend.Address(), envoyConfig{RateLimits: test.limits, Endpoints: []string{tcpAddress(t, way.Address())}})
			way.Down()
			f := e.fly(t, gated("slow"), "x-user: alice")
			awaitGate(t, backend, "slow", 1)
			if got := e.rateLimitStats(t)["failure_mode_allowed"]; got != 1 {
				t.Errorf("requests that failed open: got %d, want 1", got)
			}
			if err := way.Up(); err != nil {
				t.Fatal(err)
			}
			backend.Open("slow")
			f.land(t)
			parts.Eventually(t, func() string {
				if s.metric(t, "weir_requests_total") == 0 {
					return "Envoy has not told the end"
				}
				return ""
			})
			if got := dial(t, s.GRPC).left(t, "e2e", "alice"); got != test.left {
				t.Errorf("after the end: got %d left, want %d", got, test.left)
			}
		})
	}
}
