package e2e

import (
	"fmt"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/test/parts"
)

// slots returns rules with so many slots for each user, which a request holds for that time at
// most.
func slots(n int, atMost time.Duration) string {
	return fmt.Sprintf(`
domain: e2e
descriptors:
  - key: user
    rate_limit: {algorithm: concurrency, max_in_flight: %d, hold: {begin: request, end: request_done, at_most: %s}}
`, n, atMost)
}

// long is more time than a test takes.
const long = time.Hour

// left asks without hits, and returns the rest of the limit of a user.
func (c client) left(t *testing.T, domain, user string) int {
	t.Helper()
	return c.leftBy(t, domain, user, "request")
}

// leftBy is left by a descriptor with the entry key for a holder that nobody has begun.
func (c client) leftBy(t *testing.T, domain, user, key string) int {
	t.Helper()
	response, err := c.service.ShouldRateLimit(parts.Soon(t), &ratelimitv3.RateLimitRequest{
		Domain: domain,
		Descriptors: []*commonv3.RateLimitDescriptor{{
			Entries: []*commonv3.RateLimitDescriptor_Entry{
				{Key: "user", Value: user}, {Key: descriptors.UsageKey, Value: descriptors.NoUsage}, {Key: key, Value: "a question"},
			},
			HitsAddend: wrapperspb.UInt64(0),
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	status := response.GetStatuses()[0]
	if status.GetCurrentLimit() == nil {
		t.Fatalf("(user=%s, request) has no limit: %v", user, response)
	}
	return int(status.GetLimitRemaining())
}

// awaitLeft waits until so much is left. Envoy tells the end of a request a moment after the client
// has its answer.
func awaitLeft(t *testing.T, c client, domain, user string, want int) {
	t.Helper()
	parts.Eventually(t, func() string {
		if got := c.left(t, domain, user); got != want {
			return fmt.Sprintf("%s has %d left, want %d", user, got, want)
		}
		return ""
	})
}

// stores are the stores of tests with holders. Each starts its servers, and returns the arguments
// of a sidecar.
func stores() map[string]func(t *testing.T) []string {
	return map[string]func(t *testing.T) []string{
		"memory": func(*testing.T) []string { return nil },
		"Redis": func(t *testing.T) []string {
			t.Helper()
			r := startRedis(t, parts.RedisOptions{})
			return []string{"--store=redis", "--redis-url=" + urlOf(r.Address()), "--redis-timeout=10s"}
		},
	}
}

// startWith is startSidecar, and waits until the counts in Redis rule, if the sidecar has a Redis.
func startWith(t *testing.T, rules string, args ...string) *sidecar {
	t.Helper()
	s := startSidecar(t, rules, args...)
	s.awaitCounts(t, args)
	return s
}

// awaitCounts waits until the counts in Redis rule, if the sidecar has a Redis.
func (s *sidecar) awaitCounts(t *testing.T, args []string) {
	t.Helper()
	if len(args) == 0 {
		return
	}
	if err := s.AwaitStore(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}
}

func TestEightRequestsFindNoSlotWhileTwoHoldBothAndThenExactlyTwoPass(t *testing.T) {
	t.Parallel()
	for store, start := range stores() {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			args := start(t)
			backend := parts.BackendFor(t)
			s := startWith(t, slots(2, long), args...)
			e := startEnvoyTo(t, backend.Address(), envoyConfig{RateLimits: beginAndEnd, Endpoints: []string{tcpAddress(t, s.GRPC)}})
			asked := dial(t, s.GRPC)
			tests := []struct {
				name, path string
				end        func(gate string, two []*flight)
			}{
				{"the backend answers", "/?gate=%s", func(gate string, _ []*flight) { backend.Open(gate) }},
				{"the backend refuses", "/?status=503&gate=%s", func(gate string, _ []*flight) { backend.Open(gate) }},
				{"the backend breaks the connections", "/?reset=begin&gate=%s", func(gate string, _ []*flight) { backend.Open(gate) }},
				{"the backend breaks the streams", "/?reset=midway&stream=9&midway=%s", func(gate string, _ []*flight) { backend.Open(gate) }},
				{"the clients leave before the answer", "/?gate=%s", leave},
				{"the clients leave in the middle of a stream", "/?stream=9&midway=%s", leave},
			}
			for i, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					user := fmt.Sprintf("user%d", i)
					c := crowd{e: e, backend: backend, gate: user, path: fmt.Sprintf(test.path, user), headers: []string{"x-user: " + user}}
					two, outcomes := c.sendAll(t, 2)
					if diff := cmp.Diff(times(2, "held"), outcomes); diff != "" {
						t.Fatalf("two requests for two slots (-want +got):\n%s", diff)
					}
					if _, outcomes = c.sendAll(t, 8); !cmp.Equal(outcomes, times(8, "429")) {
						t.Errorf("eight more: got %v, want eight times 429", outcomes)
					}
					test.end(c.gate, two)
					awaitLeft(t, asked, "e2e", user, 2)
					c.gate, c.path = "then "+user, "/?gate=then+"+user
					if _, outcomes = c.sendAll(t, 3); !cmp.Equal(outcomes, []string{"held", "held", "429"}) {
						t.Errorf("three more, after the end of the two: got %v, want held, held, 429", outcomes)
					}
					backend.Open(c.gate)
					awaitLeft(t, asked, "e2e", user, 2)
				})
			}
			if stats := e.rateLimitStats(t); stats["error"] != 0 {
				t.Errorf("Envoy's counters: got %v, want no error", stats)
			}
		})
	}
}

// leave has all clients leave.
func leave(_ string, all []*flight) {
	for _, f := range all {
		f.leave()
	}
}

func TestRetriesAndHedgesOfEnvoyHoldOneSlot(t *testing.T) {
	t.Parallel()
	for store, start := range stores() {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			args := start(t)
			backend := parts.BackendFor(t)
			s := startWith(t, slots(2, long), args...)
			asked := dial(t, s.GRPC)
			tests := []struct{ name, route, path string }{
				{"retries", "retry_policy: { retry_on: gateway-error, num_retries: 2 }", "/?status=503&gate=%s"},
				{"hedges", "retry_policy: { retry_on: gateway-error, num_retries: 2, per_try_timeout: 0.1s }\nhedge_policy: { hedge_on_per_try_timeout: true }", "/?gate=%s"},
			}
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					e := startEnvoyTo(t, backend.Address(), envoyConfig{RateLimits: beginAndEnd, Endpoints: []string{tcpAddress(t, s.GRPC)}, Route: test.route})
					user := test.name
					path := fmt.Sprintf(test.path, user)
					for range 2 {
						e.fly(t, path, "x-user: "+user)
					}
					if test.name == "hedges" {
						awaitGate(t, backend, user, 6) // three tries each, all at the same time
					} else {
						awaitGate(t, backend, user, 2)
					}
					c := crowd{e: e, backend: backend, gate: user, path: path, headers: []string{"x-user: " + user}}
					if _, outcomes := c.sendAll(t, 8); !cmp.Equal(outcomes, times(8, "429")) {
						t.Errorf("eight more: got %v, want eight times 429", outcomes)
					}
					backend.Open(user)
					awaitLeft(t, asked, "e2e", user, 2)
					if arrived, _ := backend.At(user); arrived != 6 {
						t.Errorf("tries of two requests: got %d, want 6", arrived)
					}
				})
			}
		})
	}
}

func TestDeployedBoundsOnRequestsInFlight(t *testing.T) {
	t.Parallel()
	backend := parts.BackendFor(t)
	s := startSidecarOn(t, deployed(t, "concurrency", "rules"))
	e := startDeployed(t, "concurrency/envoy.yaml", backend, s.GRPC)
	alice := crowd{e: e, backend: backend, gate: "slow", path: gated("slow"), headers: []string{"x-user: alice"}}
	if _, outcomes := alice.sendAll(t, 6); !cmp.Equal(outcomes, append(times(5, "held"), "429")) {
		t.Errorf("six requests of a user: got %v, want that five pass", outcomes)
	}
	for i := range 9 {
		other := alice
		other.headers = []string{fmt.Sprintf("x-user: user%d", i)}
		if _, outcomes := other.sendAll(t, 5); !cmp.Equal(outcomes, times(5, "held")) {
			t.Fatalf("five requests of another user: got %v", outcomes)
		}
	}
	last := alice
	last.headers = []string{"x-user: last"}
	if _, outcome := last.send(t); outcome != "429" {
		t.Errorf("the 51st request of all users: got %s, want 429", outcome)
	}
	backend.Open("slow")
	awaitLeft(t, dial(t, s.GRPC), "concurrency", "alice", 5)
	if _, outcomes := last.sendAll(t, 2); !cmp.Equal(outcomes, times(2, "held")) {
		t.Errorf("after the end of all: got %v, want that two pass", outcomes)
	}
}
