package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/test/parts"
)

func TestHitsAddendFromAHeaderIsWhatARequestCosts(t *testing.T) {
	t.Parallel()
	const rules = `
domain: e2e
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 10, unit: year, count_rejected: false}
`
	tests := []struct {
		name   string
		config envoyConfig
	}{
		{"of the descriptor", envoyConfig{RateLimits: `
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
  hits_addend: {format: "%REQ(x-cost)%"}
`}},
		{"of the request", envoyConfig{RateLimits: byUser, Filters: `
- name: envoy.filters.http.set_filter_state
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config
    on_request_headers:
    - object_key: envoy.ratelimit.hits_addend
      format_string: { text_format_source: { inline_string: "%REQ(x-cost)%" } }
`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := startSidecar(t, rules)
			test.config.Endpoints = []string{tcpAddress(t, s.GRPC)}
			e := startEnvoy(t, test.config)
			got := []string{}
			for _, cost := range []string{"4", "4", "4", "2", "1"} {
				a := e.get(t, "/", "x-user: alice", "x-cost: "+cost)
				got = append(got, fmt.Sprintf("cost %s: %d, %s left", cost, a.code, a.header.Get("x-ratelimit-remaining")))
			}
			want := []string{
				"cost 4: 200, 6 left",
				"cost 4: 200, 2 left",
				"cost 4: 429, 2 left", // whole or not at all
				"cost 2: 200, 0 left",
				"cost 1: 429, 0 left",
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestCostKnownAtStreamEndIsChargedThen(t *testing.T) {
	t.Parallel()
	s := startSidecar(t, `
domain: e2e
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 10, unit: year}
`)
	e := startEnvoy(t, envoyConfig{
		RateLimits: `
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
  hits_addend: {number: 0}
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
  hits_addend: {format: "%RESP(x-cost)%"}
  apply_on_stream_done: true
`,
		Endpoints: []string{tcpAddress(t, s.GRPC)},
	})
	client := dial(t, s.GRPC)

	// Each request asks for nothing before it goes to the backend, which answers that it cost 4.
	for i, left := range []uint32{6, 2, 0} {
		a := e.get(t, "/?cost=4", "x-user: alice")
		if got, want := a.header.Get("x-ratelimit-remaining"), []string{"10", "6", "2"}[i]; a.code != http.StatusOK || got != want {
			t.Errorf("request %d: got %d with %s left, want 200 with %s left: nothing is charged before the answer", i+1, a.code, got, want)
		}
		// Envoy charges when the stream is done, a moment after the client has its answer.
		parts.Eventually(t, func() string {
			got := client.ask(t, 0, "user", "alice").GetLimitRemaining()
			if got == left {
				return ""
			}
			return fmt.Sprintf("after request %d: %d left, want %d", i+1, got, left)
		})
	}
	// The third charge took the count to 12 of 10: the account is overdrawn, and even asking is
	// refused.
	parts.Eventually(t, func() string {
		if code := e.get(t, "/?cost=4", "x-user: alice").code; code != http.StatusTooManyRequests {
			return "overdrawn: got " + strconv.Itoa(code) + ", want 429"
		}
		return ""
	})
	if code := e.get(t, "/?cost=4", "x-user: bob").code; code != http.StatusOK {
		t.Errorf("bob, who has spent nothing: got %d, want 200", code)
	}
}

func TestRefundGivesHitsBack(t *testing.T) {
	t.Parallel()
	s := startSidecar(t, `
domain: e2e
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 3, unit: year, count_rejected: false}
`)
	e := startEnvoy(t, envoyConfig{
		RateLimits: `
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
- actions: [{request_headers: {header_name: x-refund, descriptor_key: user}}]
  hits_addend: {number: 2, is_negative_hits: true}
`,
		Endpoints: []string{tcpAddress(t, s.GRPC)},
	})
	steps := []struct {
		header string
		want   int
	}{
		{"x-user: alice", 200},
		{"x-user: alice", 200},
		{"x-user: alice", 200},
		{"x-user: alice", 429},
		{"x-refund: alice", 200}, // 2 of 3 back
		{"x-user: alice", 200},
		{"x-user: alice", 200},
		{"x-user: alice", 429},
		{"x-refund: bob", 200}, // nothing used, nothing to give back: still 3, not 5
		{"x-user: bob", 200},
		{"x-user: bob", 200},
		{"x-user: bob", 200},
		{"x-user: bob", 429},
	}
	for i, step := range steps {
		if got := e.get(t, "/", step.header).code; got != step.want {
			t.Errorf("step %d, %s: got %d, want %d", i+1, step.header, got, step.want)
		}
	}
}

func TestMetadataOverridesTheLimitOfTheRule(t *testing.T) {
	t.Parallel()
	s := startSidecar(t, `
domain: e2e
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 1000, unit: hour}
`)
	e := startEnvoy(t, envoyConfig{
		Filters: `
- name: envoy.filters.http.set_metadata
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
    metadata:
    - metadata_namespace: e2e.limits
      value: { limit: { requests_per_unit: 2, unit: YEAR } }
`,
		RateLimits: `
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
  limit:
    dynamic_metadata:
      metadata_key: { key: e2e.limits, path: [ { key: limit } ] }
`,
		Endpoints: []string{tcpAddress(t, s.GRPC)},
	})
	a := e.get(t, "/", "x-user: alice")
	if got, want := a.header.Get("x-ratelimit-limit"), "2, 2;w=31536000"; got != want {
		t.Errorf("x-ratelimit-limit: got %q, want %q, the override's", got, want)
	}
	if diff := cmp.Diff([]int{200, 429}, e.codes(t, 2, "/", "x-user: alice")); diff != "" {
		t.Errorf("the second and third request (-want +got):\n%s", diff)
	}
}
