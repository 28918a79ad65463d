package render

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/quota"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func TestQuotasSayWhoHasWhatAndWhoDecidesAlone(t *testing.T) {
	r := new(adminv1.ListQuotasResponse)
	if err := prototext.Unmarshal([]byte(`number: 4 streams: 2 buckets: 5 refused { key: "a bucket id without keys" value: 3 }
		quotas { domain: "edge" entries { key: "tenant" value: "acme" } rule: "tenant" file: "r.yaml" line: 3 rate: 1000 burst: 200 assigned: 968.75 demand: 1000.4 allowed: 912
			shares { name: "edge-1" peer: "10.0.0.1:5000" entries { key: "tenant" value: "acme" } state: QUOTA_STATE_BUCKET tokens: 30 rate: 900 demand: 910 allowed: 4500
				span { seconds: 5 } reported { seconds: 2 } sent { seconds: 2 } }
			shares { peer: "10.0.0.2:5000" entries { key: "tenant" value: "acme" } state: QUOTA_STATE_FIRST tokens: 30 rate: 0.25 demand: 0.333 unacknowledged: true
				reported { nanos: 300000000 } sent { nanos: 200000000 } remark: "allowed 1 before its first assignment of this stream" }
			shares { peer: "10.0.0.3:5000" entries { key: "tenant" value: "b" } state: QUOTA_STATE_GONE unsettled: true reported { seconds: 9 } } }
		quotas { domain: "edge" entries { key: "x" value: "\033[2J" } shares { peer: "10.0.0.2:5000" entries { key: "x" value: "\033[2J" } state: QUOTA_STATE_NONE
			reported { seconds: 1 } remark: "no rule\n" } }`), r); err != nil {
		t.Fatal(err)
	}
	want := `limits and buckets without one: 4; buckets of Envoys: 5; streams: 2

edge tenant=acme  1000 per second, burst 200 (r.yaml:3)
demand 1000, assigned 969, allowed 912
ENVOY                 DEMAND  SHARE  RATE  TOKENS  USED  REPORT     STATE
edge-1 10.0.0.1:5000  910     90%    900   30      100%  2s ago     bucket
10.0.0.2:5000         0.33    0%     0.25  30      -     300ms ago  first, unacknowledged for 200ms, allowed 1 before its first assignment of this stream
10.0.0.3:5000         ?       -      -     -       -     9s ago     gone, changing, of tenant=b

edge x="\x1b[2J"  no limit is divided
ENVOY          DEMAND  SHARE  RATE  TOKENS  USED  REPORT  STATE
10.0.0.2:5000  ?       -      -     -       -     1s ago  none, no rule\n

and 2 more: raise --most, or choose fewer

no assignment, since the start:
3 times: a bucket id without keys
`
	if got := QuotasText(r); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// bucketOf is a bucket of one Envoy with a state that Weir can see.
func bucketOf(domain, value string, change func(*quota.Part)) quota.Part {
	p := quota.Part{Domain: domain, Entries: []descriptors.Entry{{Key: "tenant", Value: value}}, Share: quota.Share{Ordered: true, Received: true, Last: true, Demand: -1}}
	change(&p)
	return p
}

func TestAnAnswerAboutQuotasHasABoundedNumberOfShares(t *testing.T) {
	limits := func(n, shares int) *quota.Picture {
		p := new(quota.Picture)
		for range n {
			p.Limits = append(p.Limits, quota.Divided{Parts: slices.Repeat([]quota.Part{bucketOf("edge", "v", func(*quota.Part) {})}, shares)})
		}
		return p
	}
	for _, c := range []struct{ limits, shares, want int }{{30, 1, 30}, {30, 100, mostShares / 100}, {3, 2 * mostShares, 1}} {
		got, err := Quotas(limits(c.limits, c.shares), &adminv1.ListQuotasRequest{Most: mostQuotas})
		if err != nil || len(got.GetQuotas()) != c.want || got.GetNumber() != uint64(c.limits) {
			t.Errorf("%d limits of %d shares: got %d of %d, %v; want %d", c.limits, c.shares, len(got.GetQuotas()), got.GetNumber(), err, c.want)
		}
	}
}

func TestQuotasPutAnEnvoyWithoutAnAssignmentFirst(t *testing.T) {
	rule := &descriptors.Rule{Domain: "edge", Path: "tenant", File: "r.yaml", Line: 3}
	limit := func(demand int64, change func(*quota.Part)) quota.Divided {
		return quota.Divided{Rule: rule, Limit: quota.Limit{Rate: 9e9, Burst: 9e9}, Parts: []quota.Part{
			bucketOf("edge", "quiet", func(*quota.Part) {}),
			bucketOf("edge", fmt.Sprint(demand), func(p *quota.Part) { p.Demand = demand * 1e9; change(p) }),
		}}
	}
	p := &quota.Picture{
		Limits: []quota.Divided{
			limit(1, func(p *quota.Part) { p.Early = 5 }),
			limit(9, func(p *quota.Part) { p.Bucket = quota.Bucket{Max: 4, Fill: 30, Interval: 10} }),
			limit(3, func(p *quota.Part) { p.Expired = true }),
			limit(2, func(p *quota.Part) { p.Against, p.Report = true, quota.Report{Allowed: 7, Span: time.Second} }),
		},
		Others: []quota.Part{
			bucketOf("other", "u", func(p *quota.Part) { p.Open, p.Ordered = true, false }),
			bucketOf("other", "n", func(p *quota.Part) { p.Why, p.Report = "no rule", quota.Report{Denied: 4, Span: 2 * time.Second} }),
			bucketOf("other", "n", func(p *quota.Part) { p.Why, p.Report = "no rule", quota.Report{Denied: 8, Span: 2 * time.Second} }),
		},
	}
	for _, row := range []struct {
		in   *adminv1.ListQuotasRequest
		want string
	}{
		{&adminv1.ListQuotasRequest{}, "n:6:none,none 3:3:expired,deny_all 2:2:deny_all,deny_all 9:9:bucket,deny_all 1:1:deny_all,deny_all u:0:allow_all of 6"},
		{&adminv1.ListQuotasRequest{Most: 2, Domain: "edge"}, "3:3:expired,deny_all 2:2:deny_all,deny_all of 4"},
		{&adminv1.ListQuotasRequest{Rule: "tenant", Entries: []*adminv1.Entry{{Key: "tenant", Value: "9"}}}, "9:9:bucket,deny_all of 1"},
		{&adminv1.ListQuotasRequest{Domain: "other", Entries: []*adminv1.Entry{{Key: "tenant"}}}, "n:6:none,none u:0:allow_all of 2"},
		{&adminv1.ListQuotasRequest{Entries: []*adminv1.Entry{{Key: "t"}}}, "of 0"},
	} {
		out, err := Quotas(p, row.in)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, q := range out.GetQuotas() {
			var states []string
			for _, s := range q.GetShares() {
				states = append(states, QuotaStateName(s.GetState()))
			}
			all = append(all, fmt.Sprintf("%s:%v:%s", q.GetShares()[0].GetEntries()[0].GetValue(), q.GetDemand(), strings.Join(states, ",")))
		}
		if got := strings.TrimSpace(fmt.Sprintf("%s of %d", strings.Join(all, " "), out.GetNumber())); got != row.want {
			t.Errorf("%v: got\n%s\nwant\n%s", row.in, got, row.want)
		}
	}
	for want, in := range map[string]*adminv1.ListQuotasRequest{
		"most: 1001: must be from 1 to 1000, or 0 for 20": {Most: 1001},
		"entries: 17 are given, must be at most 16":       {Entries: make([]*adminv1.Entry, 17)},
	} {
		if _, err := Quotas(p, in); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestAWatchedQuotaSaysWhoReportedAndWhoGetsWhat(t *testing.T) {
	for want, text := range map[string]string{
		"edge-1 p:1 allowed 4, denied 2 in 5s":               `name: "edge-1" peer: "p:1" allowed: 4 denied: 2 span { seconds: 5 }`,
		"p:1 allowed 1, denied 0, no assignment: no rule\\n": `peer: "p:1" allowed: 1 state: QUOTA_STATE_NONE why: "no rule\n"`,
		"p:1 gets 43.6 per second, 8 at once":                `peer: "p:1" state: QUOTA_STATE_BUCKET tokens: 8 rate: 43.6`,
		`"\x1b[2J" p:1 gets deny_all`:                        `name: "\033[2J" peer: "p:1" state: QUOTA_STATE_DENY_ALL`,
	} {
		q := new(adminv1.WatchedQuota)
		if err := prototext.Unmarshal([]byte(text), q); err != nil {
			t.Fatal(err)
		}
		w := new(Watched)
		r := &adminv1.WatchedRequest{Domain: "edge", Quota: q, Descriptors: []*adminv1.WatchedDescriptor{{
			Outcome: adminv1.Outcome_OUTCOME_REPORTED, Entries: []*adminv1.Entry{{Key: "tenant", Value: "a"}},
		}}}
		if got := w.Lines(r); !strings.HasSuffix(got, " "+want+"\n") || !strings.Contains(got, "reported") {
			t.Errorf("got %q, want %q", got, want)
		}
		s := new(WatchSummary)
		s.Add(r)
		if got := s.String(); !strings.HasPrefix(got, "0 requests, 0 over limit\n") || !strings.Contains(got, "reported 1") {
			t.Errorf("the summary is %q", got)
		}
	}
}
