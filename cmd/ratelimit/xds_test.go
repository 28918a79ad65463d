package main

import (
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/test/parts"
)

func perHour(domain string, requests uint32) *ratelimitv3.RateLimitConfig {
	return &ratelimitv3.RateLimitConfig{Name: "of-" + domain, Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Key: "k", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_HOUR, RequestsPerUnit: requests}},
	}}
}

// sets makes resources all that a control plane has for the node "default".
func sets(t *testing.T, p *parts.ControlPlane, version string, all ...*ratelimitv3.RateLimitConfig) {
	t.Helper()
	must.Do(t, p.Set("default", version, all...))
}

// wantAnswer wants one field after the other of the answer to a request, which must be as show
// writes it.
func (r *running) wantAnswer(t *testing.T, request, want string) {
	t.Helper()
	answer, err := r.ask(t, parseRequest(t, request))
	if got := show(t, answer, err); got != want {
		t.Errorf("%s\n got %s\nwant %s", request, got, want)
	}
}

// awaitRefusal waits until a control plane has received a refusal, and returns it.
func awaitRefusal(t *testing.T, p *parts.ControlPlane) parts.XDSRequest {
	t.Helper()
	var refusal parts.XDSRequest
	eventually(t, within, func() string {
		for _, r := range p.Requests() {
			if r.Refused {
				refusal = r
				return ""
			}
		}
		return "the control plane heard of no mistake"
	})
	return refusal
}
