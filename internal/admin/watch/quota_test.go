package watch

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/quota"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

func TestAWatcherOfQuotasSeesReportsAndAssignments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var see func(*quota.Event)
		f.hub.options.ObserveQuotas = func(to func(*quota.Event)) func() {
			see = to
			return func() { see = nil }
		}
		rule := &descriptors.Rule{Domain: "edge", Path: "tenant", File: "r.yaml", Line: 3}
		entries := []descriptors.Entry{{Key: "tenant", Value: "a\xff"}}
		happen := func() {
			event := func(e quota.Event) {
				e.At, e.Domain, e.Entries, e.Envoy = time.Now(), "edge", entries, quota.Envoy{Name: "n", Peer: "p"}
				see(&e)
			}
			event(quota.Event{Reported: true, Why: "no rule", Report: quota.Report{Allowed: 1}})
			event(quota.Event{Reported: true, Rule: rule, Report: quota.Report{Allowed: 4, Denied: 2, Span: 5 * time.Second}})
			event(quota.Event{Rule: rule, Bucket: quota.Bucket{Max: 3, Fill: 15, Interval: 10}})
			event(quota.Event{Rule: rule})
			event(quota.Event{Open: true})
			event(quota.Event{Abandon: true})
		}
		all, plain := f.watch(&adminv1.WatchRequest{Quotas: true}), f.watch(&adminv1.WatchRequest{})
		happen()
		want := []string{
			"REPORTED tenant=a\uFFFD  NONE 1+0 0s 0 0 no rule", "REPORTED tenant=a\uFFFD tenant UNSPECIFIED 4+2 5s 0 0 ",
			"ASSIGNED tenant=a\uFFFD tenant BUCKET 0+0 0s 3 1.5 ", "ASSIGNED tenant=a\uFFFD tenant DENY_ALL 0+0 0s 0 0 ",
			"ASSIGNED tenant=a\uFFFD  ALLOW_ALL 0+0 0s 0 0 ", "ASSIGNED tenant=a\uFFFD  LEAVING 0+0 0s 0 0 ",
		}
		if got := quotaTexts(next(t, all)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		f.ask("edge", "path=/cart")
		if m := next(t, plain); len(m.GetRequests()) != 1 || m.GetRequests()[0].GetQuota() != nil || m.GetLost()+m.GetLeftOut() != 0 {
			t.Errorf("a watcher of requests alone got %v", m)
		}
		for _, row := range []struct {
			in   *adminv1.WatchRequest
			want int
		}{
			{&adminv1.WatchRequest{Rule: "tenant"}, 3},
			{&adminv1.WatchRequest{Outcomes: []adminv1.Outcome{adminv1.Outcome_OUTCOME_ASSIGNED}}, 4},
			{&adminv1.WatchRequest{Domain: "edge", Entries: []*adminv1.Entry{{Key: "tenant"}}}, 6},
		} {
			row.in.Quotas = true
			w := f.watch(row.in)
			happen()
			if got := quotaTexts(next(t, w)); len(got) != row.want {
				t.Errorf("%v: got %q, want %d", row.in, got, row.want)
			}
		}
	})
}

func TestAWatcherOfQuotasThatReadsTooSlowlyLosesEvents(t *testing.T) {
	f := newFixture(t)
	w := f.watch(&adminv1.WatchRequest{Quotas: true, MaxPerSecond: maxPerSecond})
	e := &quota.Event{At: time.Now(), Entries: []descriptors.Entry{{Key: "k", Value: strings.Repeat("v", 1000)}}}
	for range 10_000 {
		e.At = e.At.Add(time.Millisecond)
		f.hub.observeQuota(e)
	}
	if held := w.waiting.Load(); held > f.hub.share.Load() || w.lost.Load() == 0 {
		t.Errorf("a watcher that does not read holds %d bytes, and lost %d events", held, w.lost.Load())
	}
}

// quotaTexts returns the quotas of a message as text.
func quotaTexts(m *adminv1.WatchResponse) (all []string) {
	for _, r := range m.GetRequests() {
		d, q := r.GetDescriptors()[0], r.GetQuota()
		all = append(all, fmt.Sprintf("%s %s=%s %s %s %d+%d %v %d %v %s", strings.TrimPrefix(d.GetOutcome().String(), "OUTCOME_"),
			d.GetEntries()[0].GetKey(), d.GetEntries()[0].GetValue(), d.GetRule(), strings.TrimPrefix(q.GetState().String(), "QUOTA_STATE_"),
			q.GetAllowed(), q.GetDenied(), q.GetSpan().AsDuration(), q.GetTokens(), q.GetRate(), q.GetWhy()))
	}
	return all
}
