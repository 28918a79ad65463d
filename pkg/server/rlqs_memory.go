package server

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/internal/metrics"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/quota"
)

// memoryLimits are limits whose counts this process has in memory. Each division has the whole
// limit, and requests of RLS as one more client.
type memoryLimits struct{ of *quotas }

func (*memoryLimits) begin() {}

func (*memoryLimits) end() {}

func (*memoryLimits) work(time.Duration) {}

func (*memoryLimits) collect(metrics.Scrape) {}

func (*memoryLimits) refuses(*descriptors.Rule) error { return nil }

func (*memoryLimits) ready(*divided, time.Duration) bool { return true }

// divide pays for the division with the hits that the counts have left.
func (m *memoryLimits) divide(s *quotaStream, of *limiter.Dividend, limit quota.Limit, now time.Duration) *divided {
	q := m.of
	r := &rlsClient{domain: s.domain, entries: slices.Clone(s.entries), limits: of.Limits, base: of.Base}
	counts, ok := r.left(q)
	if !ok {
		return nil
	}
	if r.start, ok = quota.Begin(limit, counts); !ok || !q.limiter.Spend(r.domain, r.entries, r.start.Spend) {
		return nil
	}
	r.until, r.back = now+r.start.Until, now+quota.Settle
	d := newDivided(of)
	d.rls = r
	d.Division, r.client = quota.NewBeside(r.start, now, r)
	q.stepOne(d, now) // before anybody joins, so that the part is there at once
	return d
}

func (*memoryLimits) change(d *divided, limit quota.Limit, now time.Duration) {
	if first := &d.rls.start.First; now < d.rls.until {
		limit.Rate, limit.Burst = min(limit.Rate, first.Rate), min(limit.Burst, first.Burst)
	}
	if limit != d.Limit() {
		d.SetLimit(limit, now)
		d.due = now
	}
}

func (m *memoryLimits) tend(d *divided, now time.Duration) {
	r := d.rls
	asked := r.part.Asked()
	if d.Asked(r.client, asked-r.asked, now) {
		d.due = now
	}
	r.asked = asked
	if r.back == 0 || now < r.back {
		return
	}
	r.back = 0
	back := make([]int64, len(r.limits))
	for i := range back {
		if r.limits[i].Algorithm == algorithms.TokenBucket || now < r.until {
			back[i] = -r.start.Spend[i]
		}
	}
	m.of.limiter.Spend(r.domain, r.entries, back)
}

// ends ends a division that only requests of RLS have: the counts go on alone. False: that must be
// tried again.
func (m *memoryLimits) ends(d *divided, now time.Duration) bool {
	q, r := m.of, d.rls
	if !d.Full(now) || r.back > 0 {
		return false
	}
	// After a change of the rules the counts may be others, which begin anew.
	if counts, ok := r.left(q); ok && !q.limiter.Spend(r.domain, r.entries, d.End(counts, now)) {
		return false
	}
	q.limiter.EndPart(r.base)
	return true
}
