package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/test/parts"
)

// manyRules let everybody pass, and are counted.
const manyRules = `
domain: e2e
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 4000000000, unit: year}
`

// healthFlags returns Envoy's health flags of the members of cluster rls, by address; a healthy
// member has no flags.
func (e *envoy) healthFlags(t *testing.T) map[string][]string {
	t.Helper()
	body, err := e.Get(parts.Soon(t), "/clusters?format=json")
	if err != nil {
		t.Fatal(err)
	}
	var page struct {
		Clusters []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Address struct {
					Socket struct {
						Address string `json:"address"`
						Port    int    `json:"port_value"`
					} `json:"socket_address"`
				} `json:"address"`
				Health map[string]any `json:"health_status"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if err := json.Unmarshal([]byte(body), &page); err != nil {
		t.Fatal(err)
	}
	flags := map[string][]string{}
	for _, cluster := range page.Clusters {
		if cluster.Name != "rls" {
			continue
		}
		for _, host := range cluster.Hosts {
			address := fmt.Sprintf("%s:%d", host.Address.Socket.Address, host.Address.Socket.Port)
			flags[address] = []string{}
			for flag, value := range host.Health {
				if value == true {
					flags[address] = append(flags[address], flag)
				}
			}
		}
	}
	return flags
}

func TestEnvoysHealthCheckSeesServingAndThenDraining(t *testing.T) {
	t.Parallel()
	s := startSidecar(t, manyRules, "--drain-timeout=60s")
	e := startEnvoy(t, envoyConfig{RateLimits: byUser, Endpoints: []string{tcpAddress(t, s.GRPC)}, HealthChecked: true})
	if diff := cmp.Diff(map[string][]string{s.GRPC: {}}, e.healthFlags(t)); diff != "" {
		t.Errorf("while serving, what Envoy holds against the sidecar (-want +got):\n%s", diff)
	}
	if n := e.stat(t, "cluster.rls.health_check.success"); n == 0 {
		t.Error("Envoy counts no successful health check")
	}

	// Questions keep coming, as from an Envoy that has not looked yet, so the sidecar keeps serving
	// while it drains.
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	direct := dial(t, s.GRPC)
	go func() { asked <- askUntil(ctx, direct) }()
	s.terminate(t)
	parts.Eventually(t, func() string {
		if flags := e.healthFlags(t)[s.GRPC]; !slices.Contains(flags, "failed_active_health_check") {
			return fmt.Sprintf("draining, what Envoy holds against the sidecar: %v", flags)
		}
		return ""
	})
	// Envoy got that news from the sidecar: the sidecar was there to answer.
	if n := e.stat(t, "cluster.rls.health_check.network_failure"); n != 0 {
		t.Errorf("health checks without an answer: got %d, want 0", n)
	}
	cancel()
	if err := <-asked; err != nil {
		t.Errorf("a question to the draining sidecar failed: %v", err)
	}
	s.awaitExit(t)
}

// askUntil asks over and over until ctx is done, and returns the first error.
func askUntil(ctx context.Context, c client) error {
	for ctx.Err() == nil {
		if _, err := c.service.ShouldRateLimit(ctx, request(1, "user", "alice")); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func TestWithWeirStoppedFailureModeDenyDecides(t *testing.T) {
	t.Parallel()
	const rules = `
domain: e2e
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 1, unit: year}
`
	tests := []struct {
		name  string
		deny  bool
		code  int
		stats map[string]int
	}{
		{"false lets all requests pass", false, http.StatusOK, map[string]int{"ok": 1, "over_limit": 1, "error": 3, "failure_mode_allowed": 3}},
		{"true refuses all requests", true, http.StatusInternalServerError, map[string]int{"ok": 1, "over_limit": 1, "error": 3}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := startSidecar(t, rules)
			e := startEnvoy(t, envoyConfig{RateLimits: byUser, Endpoints: []string{tcpAddress(t, s.GRPC)}, FailureModeDeny: test.deny})
			if diff := cmp.Diff([]int{200, 429}, e.codes(t, 2, "/", "x-user: alice")); diff != "" {
				t.Fatalf("while Weir runs (-want +got):\n%s", diff)
			}
			s.terminate(t)
			s.awaitExit(t)
			if diff := cmp.Diff(repeat(3, test.code), e.codes(t, 3, "/", "x-user: alice")); diff != "" {
				t.Errorf("with Weir stopped (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.stats, e.rateLimitStats(t)); diff != "" {
				t.Errorf("Envoy's counters (-want +got):\n%s", diff)
			}
		})
	}
}
