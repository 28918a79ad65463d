package server

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/internal/metrics"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/quota"
)

// memoryLimits are limits whose counts this process has in memory. Each division has the whole
// limit, and requests of RLS as one more client.
type memoryLimits struct{ of *quotas }

// rlsClient is the requests of RLS in a divided limit. The bucket of that client is the limit of a
// part, so that the limiter decides the requests in place.
type rlsClient struct {
	domain  string
	entries []limiter.Entry // in the order of the rules
	limits  []algorithms.Limit
	base    string
	part    limiter.Part
	client  *quota.Client
	asked   uint64 // that the division has seen
	start   quota.Start
	until   time.Duration // then start.First ends, and the spent hits of a window are of the past
	back    time.Duration // when the counts get the spent hits back; 0: they have them
}

func (*memoryLimits) begin() {}

func (*memoryLimits) end() {}

func (*memoryLimits) work(time.Duration) {}

func (*memoryLimits) collect(metrics.Scrape) {}

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

// left returns the rests of the counts of requests of RLS. ok is false if the rules have other
// limits meanwhile.
func (r *rlsClient) left(q *quotas) (counts []quota.Left, ok bool) {
	decisions, err := q.limiter.Left(r.domain, r.entries)
	if err != nil || len(decisions) != len(r.limits) {
		return nil, false
	}
	for i := range decisions {
		c := quota.Left{Hits: decisions[i].Remaining, Used: decisions[i].Remaining < r.limits[i].Capacity()}
		if r.limits[i].Algorithm == algorithms.FixedWindow {
			c.Window = max(decisions[i].ResetAfter, 1)
		}
		counts = append(counts, c)
	}
	return counts, true
}

// publish puts the bucket of an order for the requests of RLS in force.
func (r *rlsClient) publish(q *quotas, o *quota.Order) {
	limit := algorithms.Limit{Algorithm: algorithms.TokenBucket, Period: time.Second}
	if b := o.Bucket; b.Max > 0 {
		limit.Requests, limit.Burst, limit.Period = b.Fill, b.Max, time.Duration(b.Interval)*time.Second
		for limit.Period > algorithms.MaxPeriod {
			limit.Requests, limit.Period = limit.Requests/10, limit.Period/10
		}
		if limit.Requests == 0 {
			limit.Burst = 0
		}
	}
	q.limiter.SetPart(&r.part, r.base, limit, o.Empty)
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
