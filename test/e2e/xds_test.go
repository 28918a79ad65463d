package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weirproxy/weir/test/parts"
)

// perHour is a resource: so many requests of each user per hour in a domain; 0 makes it bad.
func perHour(name, domain string, requests uint32) *confv3.RateLimitConfig {
	policy := &confv3.RateLimitPolicy{Unit: confv3.RateLimitUnit_HOUR, RequestsPerUnit: requests}
	if requests == 0 {
		policy.Unit = confv3.RateLimitUnit_UNKNOWN
	}
	return &confv3.RateLimitConfig{Name: name, Domain: domain, Descriptors: []*confv3.RateLimitDescriptor{{Key: "user", RateLimit: policy}}}
}

// awaitText waits until a page has that code and all of the parts.
func (s *sidecar) awaitText(t *testing.T, path string, code int, parts ...string) {
	t.Helper()
	eventually(t, func() string {
		got, body := s.page(t, path)
		if got != code || !containsAll(body, parts) {
			return fmt.Sprintf("%s: got %d %q; want %d and %q", path, got, body, code, parts)
		}
		return ""
	})
}

// health returns the answer of gRPC's health service for the rate limit service.
func (c client) health(t *testing.T) healthgrpc.HealthCheckResponse_ServingStatus {
	t.Helper()
	answer, err := healthgrpc.NewHealthClient(c.connection).Check(deadline(t), &healthgrpc.HealthCheckRequest{
		Service: ratelimitv3.RateLimitService_ServiceDesc.ServiceName,
	})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetStatus()
}

func TestRulesComeByXDS(t *testing.T) {
	t.Parallel()
	for _, delta := range []bool{false, true} {
		t.Run(fmt.Sprintf("delta=%t", delta), func(t *testing.T) {
			p, err := parts.StartControlPlane(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { p.Stop() }()
			set := func(version string, all ...*confv3.RateLimitConfig) {
				t.Helper()
				if err := p.Set("edge-1", version, all...); err != nil {
					t.Fatal(err)
				}
			}
			process, err := parts.StartSidecar(deadline(t), os.Getenv(sidecarVariable),
				"--grpc-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--admin-address=127.0.0.1:0",
				"--xds-address="+p.Address, "--xds-node-id=edge-1", fmt.Sprintf("--xds-delta=%t", delta))
			if err != nil {
				t.Fatal(err)
			}
			s := &sidecar{Sidecar: process}
			t.Cleanup(func() { s.end(t) })
			c := dial(t, s.GRPC)
			// Nobody has told it anything.
			s.awaitText(t, "/readyz", http.StatusServiceUnavailable, "no configuration from xds server "+p.Address+" yet")
			if got := c.health(t); got != healthgrpc.HealthCheckResponse_NOT_SERVING {
				t.Errorf("health before the first configuration: got %v", got)
			}
			// Two domains, one of which limits.
			set("1", perHour("r1", "e2e", 2), perHour("r2", "other", 9))
			s.awaitText(t, "/readyz", http.StatusOK)
			if got := c.health(t); got != healthgrpc.HealthCheckResponse_SERVING {
				t.Errorf("health with a configuration: got %v", got)
			}
			want := []ratelimitv3.RateLimitResponse_Code{1, 1, 2}
			for i, code := range want {
				if got := c.ask(t, 1, "user", "ann"); got.GetCode() != code || got.GetCurrentLimit().GetRequestsPerUnit() != 2 {
					t.Errorf("request %d: got %v, want %v of 2", i+1, got, code)
				}
			}
			s.awaitText(t, "/rules", http.StatusOK, `"file": "xds:r1"`, `"file": "xds:r2"`, `"errors": []`, `"xds:`+p.Address+`"`)
			// One of them turns bad: it stays as it is, the other changes, and the control plane is told.
			set("2", perHour("r1", "e2e", 0), perHour("r2", "other", 8))
			s.awaitText(t, "/rules", http.StatusOK, `"requests_per_unit": 8`, `"requests_per_unit": 2`, `xds:r1: descriptors[0].rate_limit.unit`)
			eventually(t, func() string {
				for _, r := range p.Requests() {
					if r.Refused && strings.HasPrefix(r.Refusal, "xds:r1: descriptors[0].rate_limit.unit: ") {
						return ""
					}
				}
				return "the control plane heard of no mistake"
			})
			if got := s.metric(t, "weir_xds_resources_bad"); got != 1 {
				t.Errorf("weir_xds_resources_bad: got %d, want 1", got)
			}
			if got := c.ask(t, 0, "user", "ann"); got.GetCurrentLimit().GetRequestsPerUnit() != 2 {
				t.Errorf("limit after a bad change: got %v, want that of before", got)
			}
			// The control plane goes and comes back with something else. Counts go on.
			p.Stop()
			s.awaitText(t, "/metrics", http.StatusOK, "weir_xds_connected 0\n")
			s.awaitText(t, "/readyz", http.StatusOK)
			set("3", perHour("r1", "e2e", 3))
			if err := p.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() string {
				if got := c.ask(t, 0, "user", "ann").GetCurrentLimit().GetRequestsPerUnit(); got != 3 {
					return fmt.Sprintf("limit: got %d, want 3", got)
				}
				return ""
			})
			if _, body := s.page(t, "/rules"); strings.Contains(body, "other") {
				t.Errorf("rules: a domain that is gone is still there: %s", body)
			}
			s.terminate(t)
			s.awaitExit(t)
		})
	}
}
