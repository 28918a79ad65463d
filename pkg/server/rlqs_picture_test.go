package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/metadata"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/quota"
)

// named is an Envoy that gives itself a name.
func (f *fixture) named(ctx context.Context, t *testing.T, name string) *quotaClient {
	t.Helper()
	ctx = metadata.AppendToOutgoingContext(ctx, nameHeader, name)
	return &quotaClient{must.Get(rlqsv3.NewRateLimitQuotaServiceClient(f.conn).StreamRateLimitQuotas(ctx))(t), t}
}

// usage reports allowed and denied hits of one bucket.
func (c *quotaClient) usage(allowed, denied uint64, id *rlqsv3.BucketId) {
	c.t.Helper()
	err := c.Send(&rlqsv3.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{
		{BucketId: id, NumRequestsAllowed: allowed, NumRequestsDenied: denied},
	}})
	if err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

// only returns the only limit of a picture.
func only(t *testing.T, p quota.Picture) quota.Divided {
	t.Helper()
	if len(p.Limits) != 1 {
		t.Fatalf("got %d limits", len(p.Limits))
	}
	return p.Limits[0]
}

func TestAPictureHasTheReportsAndTheAssignments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startQuotas(t)
		ctx, leave := context.WithCancel(t.Context())
		first, second := f.named(ctx, t, "edge-1"), f.named(t.Context(), t, strings.Repeat("n", 200))
		first.usage(1, 0, bucketID("tenant", "acme"))
		second.usage(0, 1, bucketID("tenant", "acme"))
		time.Sleep(5 * time.Second)
		first.usage(400, 50, bucketID("tenant", "acme"))
		second.usage(10, 0, bucketID("tenant", "acme"))
		time.Sleep(2 * time.Second)
		p := f.server.Quotas()
		if p.Streams != 2 || p.Buckets != 2 || p.Off != "" || len(p.Others) != 0 {
			t.Errorf("got %+v", p)
		}
		l := only(t, p)
		if l.Rule.Path != "tenant" || l.Limit.Rate != 100e9 || l.Rate <= 0 || l.Rate > 100e9 || len(l.Parts) != 2 {
			t.Errorf("got %+v", l)
		}
		hot, cold := l.Parts[0], l.Parts[1]
		if hot.Name != "edge-1" || hot.Peer == "" || len(cold.Name) != maxEnvoyName || fmt.Sprint(hot.Entries) != "[{tenant acme}]" || hot.Domain != "edge" {
			t.Errorf("got %+v and %+v", hot, cold)
		}
		if hot.Report != (quota.Report{Allowed: 400, Denied: 50, Span: 5 * time.Second, Age: 2 * time.Second}) || hot.Demand != 90e9 {
			t.Errorf("got the report %+v, demand %d", hot.Report, hot.Demand)
		}
		if hot.Early != 1 || cold.Early != 0 || !hot.Received || hot.Expired || hot.Gone || hot.Against || hot.Bucket.Max == 0 {
			t.Errorf("got %+v and %+v", hot, cold)
		}
		if hot.Bucket.Fill/hot.Bucket.Interval <= 2*cold.Bucket.Fill/cold.Bucket.Interval {
			t.Errorf("the hot Envoy has %+v, the cold one %+v", hot.Bucket, cold.Bucket)
		}
		leave()
		synctest.Wait()
		if l := only(t, f.server.Quotas()); !l.Parts[0].Gone || l.Parts[0].Name != "edge-1" || l.Parts[1].Gone {
			t.Errorf("after the end of a stream got %+v", l.Parts)
		}
	})
}

func TestAPictureNamesAnEnvoyThatRunsItsFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startQuotas(t)
		c := f.named(t.Context(), t, "")
		c.usage(3, 0, bucketID("unknown", "x"))
		c.usage(1, 0, bucketID("free", "y"))
		p := f.server.Quotas()
		if len(p.Others) != 2 || len(p.Limits) != 0 || p.Refused["no rule has all these keys"] != 1 {
			t.Fatalf("got %+v", p)
		}
		open := slices.IndexFunc(p.Others, func(p quota.Part) bool { return p.Open })
		if open < 0 || p.Others[open].Why != "" || p.Others[open].Early != 0 || p.Others[1-open].Why != "no rule has all these keys" || p.Others[1-open].Early != 3 {
			t.Errorf("got %+v", p.Others)
		}
		f.limiter.SetRules(load(t, strings.ReplaceAll(quotaRulesPlain, "requests_per_unit: 1", "algorithm: token_bucket, requests_per_unit: 0")))
		c.usage(0, 1, bucketID("tenant", "acme"))
		for range 3 {
			time.Sleep(5 * time.Second)
			c.usage(0, 9, bucketID("tenant", "acme"))
		}
		if l := only(t, f.server.Quotas()); l.Parts[0].Against || l.Parts[0].Bucket.Max != 0 {
			t.Errorf("got %+v", l.Parts[0])
		}
		time.Sleep(5 * time.Second)
		c.usage(7, 0, bucketID("tenant", "acme"))
		if l := only(t, f.server.Quotas()); !l.Parts[0].Against {
			t.Errorf("allowed hits against DENY_ALL got %+v", l.Parts[0])
		}
	})
}

func TestRequestsOfRLSAreAPartOfThePicture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startQuotas(t)
		c := f.named(t.Context(), t, "edge-1")
		c.usage(1, 0, bucketID("tenant", "acme"))
		if l := only(t, f.server.Quotas()); len(l.Parts) != 1 {
			t.Errorf("without requests of RLS got %+v", l.Parts)
		}
		f.ask(t, descriptor("tenant", "acme"))
		time.Sleep(2 * time.Second)
		l := only(t, f.server.Quotas())
		rls := slices.IndexFunc(l.Parts, func(p quota.Part) bool { return p.Name == "RLS" })
		if len(l.Parts) != 2 || rls < 0 || l.Parts[rls].Domain != "edge" || fmt.Sprint(l.Parts[rls].Entries) != "[{tenant acme}]" || !l.Parts[rls].Received {
			t.Errorf("got %+v", l.Parts)
		}
	})
}

// The time of a picture is the time for which reports wait.
func BenchmarkPicture(b *testing.B) {
	q := newQuotas(&Options{})
	for s := range 10 {
		stream := &quotaStream{of: q, members: make(map[string]*member), domain: "edge", name: "edge"}
		q.streams[uint64(s)] = stream
		for i := range maxStreamBucket {
			key := fmt.Sprint("tenant-", i)
			d := q.divisions[key]
			if d == nil {
				d = &divided{Division: quota.New(quota.Limit{Rate: 1e12, Burst: 1e11}, 0)}
				q.divisions[key] = d
			}
			m := &member{stream: stream, division: d}
			m.client = d.Join(0, m)
			stream.members[key] = m
		}
	}
	for b.Loop() {
		if p := q.picture(); len(p.Limits) != maxStreamBucket {
			b.Fatal(len(p.Limits))
		}
	}
}

func TestAnObserverSeesReportsAndAssignmentsThatDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startQuotas(t)
		var all []string
		remove := f.server.ObserveQuotas(func(e *quota.Event) {
			text := fmt.Sprintf("gets %d", e.Bucket.Max)
			switch {
			case e.Reported:
				text = fmt.Sprintf("reports %d+%d in %v %s", e.Report.Allowed, e.Report.Denied, e.Report.Span, e.Why)
			case e.Open:
				text = "is open"
			}
			all = append(all, fmt.Sprintf("%s %s %s %v", e.Name, e.Domain, e.Entries[0].Key, text))
		})
		c := f.named(t.Context(), t, "edge-1")
		c.usage(1, 0, bucketID("tenant", "acme"))
		c.usage(0, 2, bucketID("unknown", "x"))
		c.usage(0, 3, bucketID("free", "x"))
		time.Sleep(11 * time.Second)
		c.usage(4, 0, bucketID("tenant", "acme"))
		want := []string{
			"edge-1 edge tenant reports 1+0 in 0s ", "edge-1 edge tenant gets 26", "edge-1 edge unknown reports 0+2 in 0s no rule has all these keys",
			"edge-1 edge free is open", "edge-1 edge free reports 0+3 in 0s ", "edge-1 edge tenant reports 4+0 in 11s ",
		}
		if fmt.Sprint(all) != fmt.Sprint(want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(all, "\n"), strings.Join(want, "\n"))
		}
		remove()
		c.usage(5, 0, bucketID("tenant", "acme"))
		if len(all) != len(want) {
			t.Errorf("after the removal got %q", all[len(want):])
		}
	})
}
