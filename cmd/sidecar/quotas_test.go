package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	grpcmetadata "google.golang.org/grpc/metadata"
)

const quotaRules = `domain: edge
descriptors:
  - {key: tenant, rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 100, burst: 80}}
`

func TestQuotasShowsEachEnvoyAndItsPart(t *testing.T) {
	r := start(t, "--rules", rulesFile(t, quotaRules))
	ctx, cancel := context.WithTimeout(grpcmetadata.AppendToOutgoingContext(t.Context(), "x-weir-envoy", "edge-1"), within)
	defer cancel()
	stream, err := rlqsv3.NewRateLimitQuotaServiceClient(r.dial(t, r.address["grpc tcp"])).StreamRateLimitQuotas(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"tenant", "unknown"} {
		err := stream.Send(&rlqsv3.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{
			{BucketId: &rlqsv3.BucketId{Bucket: map[string]string{value: "\x1b[2J"}}, NumRequestsAllowed: 1},
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	quotas := func(args ...string) string {
		t.Helper()
		out.Reset()
		if err := run(ctx, append([]string{"quotas", "--server", r.address["admin tcp"]}, args...), nil, &out, &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for text := ""; !strings.Contains(text, `unknown="\x1b[2J"`); text = quotas() { // the second report is under way
		if ctx.Err() != nil {
			t.Fatal("the bucket without a rule does not show")
		}
	}
	text := quotas()
	for _, want := range []string{
		"limits and buckets without one: 2; buckets of Envoys: 2; streams: 1\n", "\nedge unknown=\"\\x1b[2J\"  no limit is divided\nENVOY  ",
		"  none, no_assignment_behavior of Envoy decides: no rule has all these keys\n",
		"\nedge tenant=\"\\x1b[2J\"  100 per second, burst 80 (", "\nedge-1 127.0.0.1:", "allowed 1 before its first assignment",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("got\n%s\nwant %q", text, want)
		}
	}
	var all struct {
		Quotas []struct {
			Rule   string
			Rate   float64
			Shares []struct{ Name string }
		}
	}
	if err := json.Unmarshal([]byte(quotas("edge", "tenant", "--rule=tenant", "--output=json")), &all); err != nil || len(all.Quotas) != 1 ||
		all.Quotas[0].Rule != "tenant" || all.Quotas[0].Rate != 100 || all.Quotas[0].Shares[0].Name != "edge-1" {
		t.Errorf("as JSON got %+v, %v", all, err)
	}
	if text := quotas("elsewhere"); strings.Contains(text, "ENVOY") || !strings.HasPrefix(text, "limits and buckets without one: 0;") {
		t.Errorf("of another domain got\n%s", text)
	}
	for want, args := range map[string][]string{
		"most: 1001: must be from 1 to 1000, or 0 for 20": {"--most=1001"},
		`--output: "xml": must be text or json`:           {"--output=xml"},
		"the key of an entry must not be empty":           {"edge", "=x"},
	} {
		err := run(ctx, append([]string{"quotas", "--server", r.address["admin tcp"]}, args...), nil, &out, &out)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %s", args, err, want)
		}
	}
}
