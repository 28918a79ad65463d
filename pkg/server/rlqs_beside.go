package server

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/quota"
)

// beside is the requests of RLS in a divided limit: one more client of the division. The bucket of
// that client is the limit of a part, so that the limiter decides the requests in place.
type beside struct {
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

// part makes a division of a limit. The hits that its counts have left pay for it. Nil: it must
// begin a moment later.
func (q *quotas) part(domain string, entries []limiter.Entry, of *limiter.Dividend, limit quota.Limit, now time.Duration) *divided {
	d := &divided{due: now, rule: countOfRule{of.Rule.Domain, of.Rule.Path}}
	d.beside = beside{domain: domain, entries: slices.Clone(entries), limits: of.Limits, base: of.Base}
	b := &d.beside
	counts, ok := q.left(b)
	if !ok {
		return nil
	}
	if b.start, ok = quota.Begin(limit, counts); !ok || !q.limiter.Spend(domain, b.entries, b.start.Spend) {
		return nil
	}
	b.until, b.back = now+b.start.Until, now+quota.Settle
	d.Division, b.client = quota.NewBeside(b.start, now, nil)
	q.stepOne(d, now) // before anybody joins, so that the part is there at once
	return d
}

// left returns the rests of the counts of requests of RLS. ok is false if the rules have other
// limits meanwhile.
func (q *quotas) left(b *beside) (counts []quota.Left, ok bool) {
	decisions, err := q.limiter.Left(b.domain, b.entries)
	if err != nil || len(decisions) != len(b.limits) {
		return nil, false
	}
	for i := range decisions {
		c := quota.Left{Hits: decisions[i].Remaining, Used: decisions[i].Remaining < b.limits[i].Capacity()}
		if b.limits[i].Algorithm == algorithms.FixedWindow {
			c.Window = max(decisions[i].ResetAfter, 1)
		}
		counts = append(counts, c)
	}
	return counts, true
}

// publish puts the bucket of an order for the requests of RLS in force.
func (q *quotas) publish(d *divided, o *quota.Order) {
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
	q.limiter.SetPart(&d.beside.part, d.beside.base, limit, o.Empty)
	d.Acknowledge(o.Client, o.Seq, q.now())
}

// account does the work that is due for the requests of RLS in a division.
func (q *quotas) account(d *divided, now time.Duration) {
	b := &d.beside
	asked := b.part.Asked()
	if d.Asked(b.client, asked-b.asked, now) {
		d.due = now
	}
	b.asked = asked
	if b.back == 0 || now < b.back {
		return
	}
	b.back = 0
	back := make([]int64, len(b.limits))
	for i := range back {
		if b.limits[i].Algorithm == algorithms.TokenBucket || now < b.until {
			back[i] = -b.start.Spend[i]
		}
	}
	q.limiter.Spend(b.domain, b.entries, back)
}

// unite ends a division: the counts of requests of RLS go on alone. unite is false if that must be
// tried again.
func (q *quotas) unite(d *divided, now time.Duration) bool {
	b := &d.beside
	if b.back > 0 {
		return false
	}
	// After a change of the rules the counts may be others, which begin anew.
	if counts, ok := q.left(b); ok && !q.limiter.Spend(b.domain, b.entries, d.End(counts, now)) {
		return false
	}
	q.limiter.EndPart(b.base)
	return true
}
