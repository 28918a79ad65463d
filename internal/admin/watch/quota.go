package watch

import (
	"math/rand/v2"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weirproxy/weir/pkg/quota"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// observeQuota gives a report or an assignment of RLQS to the watchers that choose it.
func (h *Hub) observeQuota(q *quota.Event) {
	now := int64(q.At.Sub(h.begun))
	var copied *event
	for _, w := range *h.all.Load() {
		switch {
		case !w.filter.choosesQuota(q) || w.oneIn > 1 && rand.Uint32N(w.oneIn) != 0:
			continue
		case !w.pace.due(now):
			w.leftOut.Add(1)
			continue
		}
		if copied == nil {
			copied = newQuotaEvent(q)
		}
		if w.reserve(int64(copied.size)) {
			w.put(copied)
		}
	}
}

// quotaOutcome returns the outcome by which an event goes.
func quotaOutcome(q *quota.Event) adminv1.Outcome {
	if q.Reported {
		return adminv1.Outcome_OUTCOME_REPORTED
	}
	return adminv1.Outcome_OUTCOME_ASSIGNED
}

// choosesQuota reports whether all filters choose a report or an assignment.
func (f *filter) choosesQuota(q *quota.Event) bool {
	return f.quotas && (f.domain == "" || f.domain == q.Domain) && (f.rule == "" || q.Rule != nil && q.Rule.Path == f.rule) &&
		(f.outcomes == 0 || f.outcomes&(1<<quotaOutcome(q)) != 0) && f.choosesEntries(q.Entries)
}

// newQuotaEvent returns an event of its own. The texts of q never change.
func newQuotaEvent(q *quota.Event) *event {
	all := new(small)
	own := *q
	e := &all.event
	e.begun, e.domain, e.quota = q.At, q.Domain, &own
	e.descriptors = append(all.descriptors[:0], descriptor{
		entries: q.Entries, hits: int64(q.Report.Allowed + q.Report.Denied), outcome: quotaOutcome(q), rule: q.Rule,
	})
	e.size = 2*eventBytes + len(q.Domain) + len(q.Name) + len(q.Peer)
	for i := range q.Entries {
		e.size += entryBytes + len(q.Entries[i].Key) + len(q.Entries[i].Value)
	}
	return e
}

func quotaMessage(q *quota.Event) *adminv1.WatchedQuota {
	out := &adminv1.WatchedQuota{
		Name: valid(q.Name), Peer: q.Peer, Allowed: q.Report.Allowed, Denied: q.Report.Denied, Why: valid(q.Why), Tokens: q.Bucket.Max,
	}
	if q.Report.Span > 0 {
		out.Span = durationpb.New(q.Report.Span)
	}
	switch {
	case q.Reported && q.Why != "":
		out.State = adminv1.QuotaState_QUOTA_STATE_NONE
	case q.Reported:
	case q.Abandon:
		out.State = adminv1.QuotaState_QUOTA_STATE_LEAVING
	case q.Open:
		out.State = adminv1.QuotaState_QUOTA_STATE_ALLOW_ALL
	case q.Bucket.Max == 0:
		out.State = adminv1.QuotaState_QUOTA_STATE_DENY_ALL
	default:
		out.State, out.Rate = adminv1.QuotaState_QUOTA_STATE_BUCKET, float64(q.Bucket.Fill)/float64(q.Bucket.Interval)
	}
	return out
}
