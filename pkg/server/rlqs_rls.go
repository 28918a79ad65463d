package server

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/quota"
)

// rlsClient is the requests of RLS in a divided limit. The bucket of that client is the limit of a
// part, so that the limiter decides the requests in place.
type rlsClient struct {
	domain  string
	entries []limiter.Entry // in the order of the rules
	base    string
	part    limiter.Part
	client  *quota.Client
	asked   uint64 // that the division has seen

	// With Redis.
	last    time.Duration // when there was a request
	looked  time.Duration // when the limit was looked up
	refused time.Duration // since when the rules have no such limit; 0: they have it

	// With counts in memory.
	limits []algorithms.Limit
	start  quota.Start
	until  time.Duration // then start.First ends, and the spent hits of a window are of the past
	back   time.Duration // when the counts get the spent hits back; 0: they have them
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
