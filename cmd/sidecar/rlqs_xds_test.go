package main

import (
	"fmt"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/test/parts"
)

// serveSecond makes a limit of so many requests a second all that a control plane has.
func serveSecond(t *testing.T, p *parts.ControlPlane, requests uint32) {
	t.Helper()
	err := p.Set("default", fmt.Sprint(requests), &ratelimitv3.RateLimitConfig{
		Name: "limits", Domain: "edge", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
			Key: "tenant", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_SECOND, RequestsPerUnit: requests},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The client reports once. So each later assignment follows the rules alone.
func TestRulesByXDSChangeTheAssignmentsOfAnOpenStream(t *testing.T) {
	p := controlPlane(t)
	serveSecond(t, p, 800)
	s := start(t, "--xds-address="+p.Address)
	stream, err := rlqsv3.NewRateLimitQuotaServiceClient(s.dial(t, s.address["grpc tcp"])).StreamRateLimitQuotas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&rlqsv3.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{{
		BucketId: &rlqsv3.BucketId{Bucket: map[string]string{"tenant": "acme"}}, TimeElapsed: durationpb.New(time.Millisecond), NumRequestsDenied: 1,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, requests := range []uint32{800, 80, 8000} {
		serveSecond(t, p, requests)
		rate, begun := 0., time.Now()
		for rate < 0.8*float64(requests) || rate > float64(requests) {
			if time.Since(begun) > 8*time.Second {
				t.Fatalf("a limit of %d/s: the Envoy has %.1f/s", requests, rate)
			}
			answer, err := stream.Recv() // assignments are renewed every few seconds
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range answer.GetBucketAction() {
				b := a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket()
				rate = float64(b.GetTokensPerFill().GetValue()) / max(b.GetFillInterval().AsDuration().Seconds(), 1)
			}
		}
		t.Logf("%d/s: %.1f/s after %v", requests, rate, time.Since(begun))
	}
}
