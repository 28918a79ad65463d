package server

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/quota"
)

const quotaRules = `
domain: edge
descriptors:
  - key: tenant
    rate_limit: {algorithm: token_bucket, requests_per_unit: 100, unit: second, burst: 80}
  - key: free
    rate_limit: {unlimited: true}
  - key: wide
    value: all-*
    share_threshold: true
    rate_limit: {algorithm: token_bucket, requests_per_unit: 1000000, unit: second}
  - key: log
    rate_limit: {algorithm: sliding_window_log, requests_per_unit: 1, unit: second}
`

// quotaClient is an Envoy on one stream.
type quotaClient struct {
	rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasClient
	t *testing.T
}

func startQuotas(t *testing.T) *fixture {
	t.Helper()
	once(t)
	return start(t, quotaRules, func(o *Options) { o.GRPCGo = false })
}

func (f *fixture) quotas(t *testing.T) *quotaClient {
	t.Helper()
	return &quotaClient{must.Get(rlqsv3.NewRateLimitQuotaServiceClient(f.conn).StreamRateLimitQuotas(t.Context()))(t), t}
}

func bucketID(pairs ...string) *rlqsv3.BucketId {
	id := &rlqsv3.BucketId{Bucket: make(map[string]string)}
	for i := 0; i < len(pairs); i += 2 {
		id.Bucket[pairs[i]] = pairs[i+1]
	}
	return id
}

func (c *quotaClient) report(domain string, allowed uint64, ids ...*rlqsv3.BucketId) {
	c.t.Helper()
	in := &rlqsv3.RateLimitQuotaUsageReports{Domain: domain}
	for _, id := range ids {
		in.BucketQuotaUsages = append(in.BucketQuotaUsages, usagesOf([]*rlqsv3.BucketId{id})...)
		in.BucketQuotaUsages[len(in.BucketQuotaUsages)-1].NumRequestsAllowed = allowed
	}
	if err := c.Send(in); err != nil {
		c.t.Fatal(err)
	}
}

// next returns the next assignments as text.
func (c *quotaClient) next() (all []string) {
	c.t.Helper()
	for _, a := range must.Get(c.Recv())(c.t).GetBucketAction() {
		text := "abandon"
		if q := a.GetQuotaAssignmentAction(); q != nil {
			if ttl := q.GetAssignmentTimeToLive().AsDuration(); ttl != 20*time.Second {
				c.t.Errorf("time to live %v", ttl)
			}
			switch s := q.GetRateLimitStrategy(); s.GetStrategy().(type) {
			case *typev3.RateLimitStrategy_TokenBucket:
				b := s.GetTokenBucket()
				text = fmt.Sprintf("%d, %d per %v", b.GetMaxTokens(), b.GetTokensPerFill().GetValue(), b.GetFillInterval().AsDuration())
			default:
				text = s.GetBlanketRule().String()
			}
		}
		all = append(all, fmt.Sprint(a.GetBucketId().GetBucket(), " ", text))
	}
	return all
}

func (c *quotaClient) expect(want ...string) {
	c.t.Helper()
	if got := c.next(); fmt.Sprint(got) != fmt.Sprint(want) {
		c.t.Errorf("got %v, want %v", got, want)
	}
}

func TestQuotasAreAssignedAtOnceAndFollowTheRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startQuotas(t)
		first, second := f.quotas(t), f.quotas(t)
		first.report("edge", 1, bucketID("tenant", "acme"), bucketID("free", "x"))
		first.expect("map[free:x] ALLOW_ALL", "map[tenant:acme] 26, 96 per 1s")
		second.report("edge", 1, bucketID("tenant", "acme"))
		second.expect("map[tenant:acme] 6, 346 per 16m40s") // the rate comes when the first stream has less
		first.expect("map[tenant:acme] 13, 481 per 10s")
		second.expect("map[tenant:acme] 13, 481 per 10s")
		f.limiter.SetRules(load(t, strings.ReplaceAll(quotaRulesPlain, "requests_per_unit: 1", "algorithm: token_bucket, requests_per_unit: 0")))
		first.expect("map[free:x] abandon", "map[tenant:acme] DENY_ALL")
		second.expect("map[tenant:acme] DENY_ALL")
		f.limiter.SetRules(load(t, "domain: edge\ndescriptors:\n  - {key: tenant, rate_limit: {unlimited: true}}\n"))
		first.expect("map[tenant:acme] ALLOW_ALL")
		second.expect("map[tenant:acme] ALLOW_ALL")
		time.Sleep(6 * time.Second)
		first.expect("map[tenant:acme] ALLOW_ALL") // before the time to live is over
	})
}

func TestAnIdleBucketIsAbandonedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startQuotas(t).quotas(t)
		c.report("edge", 1, bucketID("tenant", "acme"))
		c.expect("map[tenant:acme] 26, 96 per 1s")
		renewed := 0
		for ; fmt.Sprint(c.next()) != "[map[tenant:acme] abandon]"; renewed++ {
		}
		if renewed < 100 || renewed > 120 {
			t.Errorf("renewed %d times in %v", renewed, quota.Idle)
		}
		c.report("edge", 1, bucketID("tenant", "acme"))
		c.expect("map[tenant:acme] 26, 96 per 1s")
	})
}

func TestAHostileClientOfQuotasGetsAClearError(t *testing.T) {
	for name, row := range map[string]struct {
		do   func(c *quotaClient)
		code codes.Code
		text string
	}{
		"no domain": {
			func(c *quotaClient) { c.report("", 1, bucketID("tenant", "a")) },
			codes.InvalidArgument, "domain: must not be empty in the first report",
		},
		"domain changes": {
			func(c *quotaClient) { c.report("edge", 1); c.report("other", 1) },
			codes.InvalidArgument, "domain: must not change in a stream",
		},
		"flood of reports": {func(c *quotaClient) { flood(c) }, codes.ResourceExhausted, "more than 4000 usages of buckets in a second"},
		"never reads": {func(c *quotaClient) {
			for i := range 900 {
				id := bucketID("tenant", fmt.Sprintf("%d-%s", i, strings.Repeat("x", 400)))
				if c.Send(&rlqsv3.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: usagesOf([]*rlqsv3.BucketId{id})}) != nil {
					return // the end has come meanwhile
				}
			}
			time.Sleep(20 * time.Second)
		}, codes.Canceled, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startQuotas(t)
				hostile := f.quotas(t)
				row.do(hostile)
				var err error
				for err == nil {
					_, err = hostile.Recv()
				}
				if got := status.Convert(err); got.Code() != row.code || !strings.Contains(got.Message(), row.text) {
					t.Errorf("got %v", err)
				}
				other := f.quotas(t)
				other.report("edge", 1, bucketID("free", "y"))
				other.expect("map[free:y] ALLOW_ALL")
			})
		})
	}
}

func flood(c *quotaClient) {
	ids := make([]*rlqsv3.BucketId, 500)
	for i := range ids {
		ids[i] = bucketID("tenant", "a")
	}
	for range 9 {
		if c.Send(&rlqsv3.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: usagesOf(ids)}) != nil {
			return
		}
	}
}

func usagesOf(ids []*rlqsv3.BucketId) (all []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage) {
	for _, id := range ids {
		all = append(all, &rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: id})
	}
	return all
}

func TestABucketBeyondABoundLeavesTheOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startQuotas(t)
		c := f.quotas(t)
		many := bucketID()
		for i := range 3000 {
			many.Bucket[fmt.Sprintf("key-%d", i)] = "v"
		}
		c.report("edge", 1, many, bucketID(), bucketID("log", "x"), bucketID("unknown", "x"), bucketID("free", "y"))
		c.expect("map[free:y] ALLOW_ALL")
		for _, reason := range []string{
			"a bucket id of more than 16 keys or 1024 bytes", "a bucket id without keys", "no rule has all these keys",
			"only token_bucket and fixed_window can be divided among Envoys",
		} {
			if line := fmt.Sprintf("weir_rlqs_refused_total{reason=%q} 1\n", reason); !strings.Contains(scrape(t, f), line) {
				t.Errorf("the metrics lack %s", line)
			}
		}
	})
}

func TestALimitIsDividedAmongABoundedNumberOfBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startQuotas(t)
		for range 3 {
			c := f.quotas(t)
			ids := make([]*rlqsv3.BucketId, maxStreamBucket)
			for i := range ids {
				ids[i] = bucketID("wide", fmt.Sprintf("all-%d", i))
			}
			c.report("edge", 1, ids...)
			time.Sleep(time.Second)
		}
		const line = `weir_rlqs_refused_total{reason="more than 2000 buckets of Envoys share one limit"} 1000`
		if !strings.Contains(scrape(t, f), line) {
			t.Errorf("the metrics lack %s", line)
		}
	})
}

// A bucket of an Envoy counts until its last assignment has expired, also when the Envoy has gone.
func TestEnvoysThatHaveGoneKeepABoundedNumberOfBuckets(t *testing.T) {
	const large = "domain: edge\ndescriptors:\n  - {key: tenant, rate_limit: {algorithm: token_bucket, requests_per_unit: 1000000, unit: second}}\n"
	synctest.Test(t, func(t *testing.T) {
		once(t)
		f := start(t, large, func(o *Options) { o.GRPCGo = false })
		ids := make([]*rlqsv3.BucketId, maxStreamBucket)
		const streams, groups = 60, maxQuotaBuckets / maxStreamBucket
		for n := range streams {
			for i := range ids {
				ids[i] = bucketID("tenant", fmt.Sprint(n%groups, " ", i))
			}
			ctx, leave := context.WithCancel(t.Context())
			c := &quotaClient{must.Get(rlqsv3.NewRateLimitQuotaServiceClient(f.conn).StreamRateLimitQuotas(ctx))(t), t}
			c.report("edge", 1, ids...)
			time.Sleep(100 * time.Millisecond)
			leave()
			synctest.Wait()
		}
		kept := 0
		for _, l := range f.server.Quotas().Limits {
			kept += len(l.Parts)
		}
		if kept > maxQuotaKept || kept < maxQuotaKept/2 {
			t.Errorf("%d buckets of %d are kept; want at most %d, and many", kept, streams*maxStreamBucket, maxQuotaKept)
		}
		if want := fmt.Sprintf("more than %d buckets, also of Envoys that have gone", maxQuotaKept); !strings.Contains(scrape(t, f), want) {
			t.Errorf("the metrics lack the reason %q", want)
		}
		time.Sleep(time.Minute) // the assignments have expired
		c := f.quotas(t)
		c.report("edge", 1, ids[:1]...)
		if got := fmt.Sprint(c.next()); !strings.Contains(got, " per ") {
			t.Errorf("after that: got %s, want a bucket", got)
		}
	})
}

func TestQuotasAreRefusedByTheServerOfGRPC(t *testing.T) {
	once(t)
	_, err := start(t, quotaRulesPlain, func(o *Options) { o.GRPCGo = true }).quotas(t).Recv()
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
}

const quotaRulesPlain = "domain: edge\ndescriptors:\n  - {key: tenant, rate_limit: {requests_per_unit: 1, unit: second}}\n"

func scrape(t *testing.T, f *fixture) string {
	t.Helper()
	var text strings.Builder
	for _, family := range must.Get(f.registry.Gather())(t) {
		must.Get(expfmt.MetricFamilyToText(&text, family))(t)
	}
	return text.String()
}
