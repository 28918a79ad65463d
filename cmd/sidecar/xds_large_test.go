package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	servicev3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/testing/race"
)

// perYear is a resource with a limit per year on each user.
func perYear(domain string, requests uint32) *ratelimitv3.RateLimitConfig {
	return &ratelimitv3.RateLimitConfig{Name: "of-" + domain, Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Key: "user", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: 6, RequestsPerUnit: requests}},
	}}
}

// A snapshot of 10 MiB: all of it counts, a small change beside it works, and when one of its rules
// is bad all of it stays. Each rule has 1 KiB: internal/rules/xds has the test with as many short
// rules as 10 MiB can hold.
func TestAConfigurationOfTenMiBComesByXDS(t *testing.T) {
	race.Without(t)
	users := uint32(race.Scale(10_400))
	user := func(i uint32) string { return fmt.Sprintf("%06d-%s", i, strings.Repeat("x", 1000)) }
	large := perYear("large", 1)
	for i := range users {
		large.Descriptors = append(large.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Key: "user", Value: user(i), RateLimit: &ratelimitv3.RateLimitPolicy{Unit: 6, RequestsPerUnit: i + 1},
		})
	}
	if n := proto.Size(large); n < race.Scale(10<<20) {
		t.Fatalf("the resource has %d bytes, want 10 MiB", n)
	}
	bad := proto.CloneOf(large)
	bad.Descriptors[0].RateLimit.RequestsPerUnit = 9
	bad.Descriptors[users].RateLimit.Unit = ratelimitv3.RateLimitUnit_UNKNOWN
	for _, delta := range []bool{true, false} {
		t.Run(fmt.Sprintf("delta=%t", delta), func(t *testing.T) {
			p := controlPlane(t)
			set := func(version string, all ...*ratelimitv3.RateLimitConfig) {
				t.Helper()
				if err := p.Set("default", version, all...); err != nil {
					t.Fatal(err)
				}
			}
			s := start(t, "--xds-address="+p.Address, fmt.Sprintf("--xds-delta=%t", delta))
			client := servicev3.NewRateLimitServiceClient(s.dial(t, s.address["grpc tcp"]))
			// left asks once and returns limit and rest.
			left := func(domain, user string, hits uint32) [2]uint32 {
				t.Helper()
				q := requestFor(user)
				q.Domain, q.HitsAddend = domain, hits
				ctx, cancel := context.WithTimeout(t.Context(), within)
				defer cancel()
				answer, err := client.ShouldRateLimit(ctx, q)
				if err != nil {
					return [2]uint32{} // there are no rules yet
				}
				status := answer.GetStatuses()[0]
				return [2]uint32{status.GetCurrentLimit().GetRequestsPerUnit(), status.GetLimitRemaining()}
			}
			// Loading takes seconds with the race detector on a busy machine.
			await := func(what string, done func() bool) {
				t.Helper()
				tick := time.NewTicker(5 * time.Millisecond)
				defer tick.Stop()
				for deadline := time.Now().Add(2 * within); !done(); <-tick.C {
					if time.Now().After(deadline) {
						t.Fatalf("still not %s", what)
					}
				}
			}
			small := func(limit uint32) func() bool {
				return func() bool { return left("small", fmt.Sprint("asks for ", limit), 1)[0] == limit }
			}
			set("1", large, perYear("small", 5))
			await("the first configuration", small(5))
			s.awaitPage(t, "/readyz", http.StatusOK, "OK")
			if got, want := left("large", user(users-1), 1), [2]uint32{users, users - 1}; got != want {
				t.Errorf("the last rule: got %d, want %d", got, want)
			}
			set("2", large, perYear("small", 7))
			await("the second configuration", small(7))
			set("3", bad, perYear("small", 3))
			await("the good part of the third configuration", small(3))
			want := fmt.Sprintf(`xds:of-large: descriptors[%d].rate_limit.unit: "UNKNOWN" is not a unit, must be second, minute, hour, day, week, month or year`, users)
			refusal := ""
			await("a refusal", func() bool {
				for _, r := range p.Requests() {
					refusal += r.Refusal
				}
				return refusal != ""
			})
			if !strings.HasPrefix(refusal, want) {
				t.Errorf("the control plane heard %q, want %q", refusal, want)
			}
			if got, want := left("large", user(users-1), 1), [2]uint32{users, users - 2}; got != want {
				t.Errorf("the last rule after a bad change: got %d, want %d", got, want)
			}
			s.awaitPage(t, "/readyz", http.StatusOK, "OK")
			set("4", perYear("small", 2))
			await("the last configuration", small(2))
			if got := left("large", user(0), 1); got != [2]uint32{} {
				t.Errorf("a rule that is gone: got %d", got)
			}
		})
	}
}
