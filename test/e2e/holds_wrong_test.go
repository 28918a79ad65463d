package e2e

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/test/parts"
)

// The wiring that docs/envoy-howto.md warns of: a hit at the start of a request, and a refund of
// that hit at the end.
func TestRefundAtTheEndOfDeniedRequestsFreesSlotsThatOthersHold(t *testing.T) {
	t.Parallel()
	backend := parts.BackendFor(t)
	s := startSidecar(t, `
domain: e2e
descriptors:
  - key: user
    rate_limit: {algorithm: token_bucket, requests_per_unit: 2, unit: year}
`)
	e := startEnvoyTo(t, backend.Address(), envoyConfig{
		RateLimits: `
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
  hits_addend: {number: 1, is_negative_hits: true}
  apply_on_stream_done: true
`,
		Endpoints: []string{tcpAddress(t, s.GRPC)},
	})
	c := crowd{e: e, backend: backend, gate: "slow", path: gated("slow"), headers: []string{"x-user: alice"}}
	if _, outcomes := c.sendAll(t, 2); !cmp.Equal(outcomes, times(2, "held")) {
		t.Fatalf("two requests for two slots: got %v", outcomes)
	}
	questions := s.metric(t, "weir_requests_total")
	passed := []string{}
	for range 8 {
		_, outcome := c.send(t)
		passed = append(passed, outcome)
		questions++
		if outcome == "429" {
			questions++ // Envoy tells the end of a denied request too
		}
		parts.Eventually(t, func() string {
			if got := s.metric(t, "weir_requests_total"); got < questions {
				return fmt.Sprintf("Envoy has asked %d times, want %d", got, questions)
			}
			return ""
		})
	}
	if diff := cmp.Diff([]string{"429", "held", "429", "held", "429", "held", "429", "held"}, passed); diff != "" {
		t.Errorf("eight more, while two hold both slots (-want +got):\n%s", diff)
	}
}
