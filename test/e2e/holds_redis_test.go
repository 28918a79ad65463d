package e2e

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/test/parts"
)

func TestHoldsOutliveARestartOfWeirOnRedis(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	args := []string{"--store=redis", "--redis-url=" + urlOf(r.Address()), "--redis-timeout=10s"}
	backend := parts.BackendFor(t)
	first := startWith(t, slots(2, long), args...)
	e := startEnvoyTo(t, backend.Address(), envoyConfig{
		RateLimits: beginAndEnd, Endpoints: []string{tcpAddress(t, first.GRPC)}, HealthChecked: true, FailureModeDeny: true,
	})
	c := crowd{e: e, backend: backend, gate: "slow", path: gated("slow"), headers: []string{"x-user: alice"}}
	if _, outcomes := c.sendAll(t, 2); !cmp.Equal(outcomes, times(2, "held")) {
		t.Fatalf("two requests for two slots: got %v", outcomes)
	}
	first.stopped = true
	first.Kill()
	second := startSidecarOn(t, first.rules, append(args, "--grpc-address="+first.GRPC)...)
	second.awaitCounts(t, args)
	// Until Envoy has found the second Weir it has no answer, and fails closed.
	parts.Eventually(t, func() string {
		if code := e.get(t, "/", "x-user: somebody").code; code != 200 {
			return fmt.Sprintf("Envoy answers %d", code)
		}
		return ""
	})
	if _, outcomes := c.sendAll(t, 8); !cmp.Equal(outcomes, times(8, "429")) {
		t.Errorf("eight requests after the restart: got %v, want eight times 429", outcomes)
	}
	backend.Open("slow")
	awaitLeft(t, dial(t, second.GRPC), "e2e", "alice", 2)
}

func TestTwoEnvoysWithTwoSidecarsShareTheSlotsExactly(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	args := []string{"--store=redis", "--redis-url=" + urlOf(r.Address()), "--redis-timeout=10s"}
	backend := parts.BackendFor(t)
	const n = 10
	var envoys []*envoy
	var asked []client
	for range 2 {
		s := startWith(t, slots(n, long), args...)
		envoys = append(envoys, startEnvoyTo(t, backend.Address(), envoyConfig{RateLimits: beginAndEnd, Endpoints: []string{tcpAddress(t, s.GRPC)}}))
		asked = append(asked, dial(t, s.GRPC))
	}
	for round := range 3 {
		gate := fmt.Sprintf("round%d", round)
		var flights []*flight
		for i := range 6 * n {
			flights = append(flights, envoys[i%2].fly(t, gated(gate), "x-user: alice"))
		}
		denied := settled(t, backend, gate, flights)
		if arrived, _ := backend.At(gate); arrived != n || denied != 5*n {
			t.Errorf("round %d, %d requests at once: got %d at the backend and %d answered, want %d and %d", round, 6*n, arrived, denied, n, 5*n)
		}
		for _, f := range flights {
			select {
			case <-f.ended:
				if f.code != 429 {
					t.Errorf("round %d: got %d (%v), want 429", round, f.code, f.err)
				}
			default:
			}
		}
		backend.Open(gate)
		var ends sync.WaitGroup
		for _, f := range flights {
			ends.Go(func() { <-f.ended })
		}
		ends.Wait()
		for _, c := range asked {
			awaitLeft(t, c, "e2e", "alice", n)
		}
	}
}

func TestEndsOfRequestsReachARedisThatWasAway(t *testing.T) {
	t.Parallel()
	r := startRedis(t, parts.RedisOptions{})
	args := []string{"--store=redis", "--redis-url=" + urlOf(r.Address()), "--redis-timeout=" + fleetTimeout.String()}
	backend := parts.BackendFor(t)
	s := startWith(t, slots(2, long), args...)
	e := startEnvoyTo(t, backend.Address(), envoyConfig{RateLimits: beginAndEnd, Endpoints: []string{tcpAddress(t, s.GRPC)}})
	c := crowd{e: e, backend: backend, gate: "slow", path: gated("slow"), headers: []string{"x-user: alice"}}
	two, outcomes := c.sendAll(t, 2)
	if diff := cmp.Diff(times(2, "held"), outcomes); diff != "" {
		t.Fatalf("two requests for two slots (-want +got):\n%s", diff)
	}
	begun := s.metric(t, "weir_requests_total")
	if err := r.Pause(parts.Soon(t)); err != nil {
		t.Fatal(err)
	}
	backend.Open("slow")
	for _, f := range two {
		if code := f.land(t).code; code != 200 {
			t.Errorf("a request that ends while Redis is away: got %d, want 200", code)
		}
	}
	parts.Eventually(t, func() string {
		if got := s.metric(t, "weir_requests_total"); got < begun+2 {
			return fmt.Sprintf("Envoy has asked %d times, want %d: two ends", got, begun+2)
		}
		return ""
	})
	if err := r.Continue(); err != nil {
		t.Fatal(err)
	}
	awaitLeft(t, dial(t, s.GRPC), "e2e", "alice", 2)
	c.gate, c.path = "then", gated("then")
	if _, outcomes = c.sendAll(t, 3); !cmp.Equal(outcomes, []string{"held", "held", "429"}) {
		t.Errorf("three requests after that: got %v, want held, held, 429", outcomes)
	}
}
