package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const learningRules = `domain: models
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 9000, unit: hour, hold: {begin: request, end: done, at_most: 1h, estimate: {learned: {ceiling: 2000}}}}
`

func TestMatchShowsTheLearnedEstimate(t *testing.T) {
	file := rulesFile(t, learningRules)
	r := start(t, "--rules", file)
	client := ratelimitv3.NewRateLimitServiceClient(r.dial(t, r.address["grpc tcp"]))
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	match := func(args ...string) string {
		t.Helper()
		var out strings.Builder
		if err := run(t.Context(), append([]string{"match"}, args...), strings.NewReader(""), &out, &out); err != nil {
			t.Fatalf("match %v: %v", args, err)
		}
		return out.String()
	}
	wants := func(got, want string) {
		t.Helper()
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %q", got, want)
		}
	}
	const limit = "limit   9000 per 1h, fixed_window, held at most 1h, estimate: learned, covers 95%, at most 2000\n"
	wants(match(file, "models", "user=a,request=1"), limit)
	server := []string{"--server", r.address["admin tcp"], "models", "user=a,usage=1/0/0/2/m,request=1"}
	got := match(server...)
	wants(got, limit)
	wants(got, "learned nothing yet, so the estimate is as sent\n")
	for i := range 20 {
		_, err := client.ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{Domain: "models", Descriptors: []*commonv3.RateLimitDescriptor{{
			Entries: []*commonv3.RateLimitDescriptor_Entry{
				{Key: "user", Value: "a"}, {Key: "usage", Value: "1/0/0/2/m"}, {Key: "done", Value: fmt.Sprint("id-", i)},
			},
			HitsAddend: wrapperspb.UInt64(uint64(100 + i)),
		}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	got = match(server...)
	wants(got, "learned a begin holds 119\n")
	wants(got, "now     allowed, 6691 left after that") // 9000 less 100 + … + 119, less 119
	wants(match(append(server, "--output=json")...), `"learned_estimate": 119`)
}
