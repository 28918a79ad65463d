package shared

import (
	"hash/fnv"
	"math"
	"math/bits"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// The share of this process. While the remote store cannot be asked, a hit costs more in the local
// store: the smaller the share in the limit, the more. So if all processes have seen the same
// states and are cut off together, they admit at most the hits that were left. A process that has
// not seen the hits of others can admit its share of these again.
//
// The remote store tells the share: an arc of a circle. The hits of a limit are points at equal
// distances on the circle, from a point on that belongs to the key. The points in the arc are the
// share. So of a limit of fewer hits than there are processes, each key has processes that have a
// hit, and others that deny.
//
// The local store counts in units, several for each hit, so that costs are rounded up by little.

// mostUnits is the most units of a hit: a cost is at most a 256th of a hit too large.
const mostUnits = 256

// isLocal reports whether the local store decides the charge while the remote store cannot be
// asked.
func isLocal(c *store.Charge) bool {
	return c.OnError != store.OnErrorAllow && c.OnError != store.OnErrorDeny
}

// units returns the units of a hit under a limit. All numbers of the limit fit in units. A bucket
// in whole tokens gains whole hits, and a sliding count counts whole hits of a denied request. So
// their costs are rounded up to whole hits. So are costs under a calendar, as the numbers of its
// states are not only hits, and under a limit above algorithms.MaxHits.
func units(l algorithms.Limit) uint32 {
	switch l.Algorithm {
	case algorithms.TokenBucketInteger, algorithms.SlidingWindowCounter, algorithms.CalendarWindow, algorithms.CalendarCounter,
		algorithms.Escalation:
		return 1
	default:
	}
	return uint32(max(1, min(mostUnits, 1<<31/max(1, l.PerPeriod(), uint64(l.Burst)))))
}

// inUnits returns the limit for the local store.
func inUnits(l algorithms.Limit) algorithms.Limit {
	if n := units(l); n > 1 { // and the limit is small
		l.Requests *= n
		l.Burst *= n
	}
	return l
}

// own returns the hits of a full key that are the share of a process.
func own(c *store.Charge, share store.Share) uint64 {
	all := c.Limit.Capacity()
	h := fnv.New64a() // the same in each process
	_, _ = h.Write(c.Key)
	first := h.Sum64() % store.Circle
	before := func(end uint32) uint64 { // points before the end of an arc, on a circle that is longer by all
		high, low := bits.Mul64(uint64(end), all)
		if high == 0 && low <= first {
			return 0
		}
		low, borrow := bits.Sub64(low, first, 0)
		low, carry := bits.Add64(low, store.Circle-1, 0)
		quotient, _ := bits.Div64(high-borrow+carry, low, store.Circle)
		return quotient
	}
	return before(share.To) - before(share.From)
}

// price is units of the local store for hits.
type price struct{ units, hits uint64 }

// priceOf returns the price of the hits of a charge: units for one hit, rounded up. A limit above
// algorithms.MaxHits has charges of many hits, so its price is exact. Without a share a hit costs
// more than the limit.
func priceOf(c *store.Charge, share store.Share) price {
	by, mine := uint64(units(c.Limit)), own(c, share)
	switch all := c.Limit.Capacity() * by; {
	case all == 0:
		return price{by, 1}
	case mine == 0:
		return price{all + 1, 1}
	case c.Limit.More > 0:
		return price{all, mine}
	default:
		return price{(all + mine - 1) / mine, 1}
	}
}

// of returns the units that hits cost, rounded up, at most algorithms.MaxCount.
func (p price) of(hits uint64) uint64 {
	high, low := bits.Mul64(hits, p.units)
	low, carry := bits.Add64(low, p.hits-1, 0)
	if high += carry; high >= p.hits {
		return algorithms.MaxCount
	}
	cost, _ := bits.Div64(high, low, p.hits)
	return min(cost, algorithms.MaxCount)
}

// buys returns the hits that units buy, rounded down.
func (p price) buys(units uint64) uint64 {
	high, low := bits.Mul64(units, p.hits)
	hits, _ := bits.Div64(high, low, p.units) // high is less, as units are below 2^54, and a hit costs a unit at least
	return hits
}

// cost returns the units that a charge costs, at most algorithms.MaxCount. A refund returns its own
// hits only.
func cost(c *store.Charge, share store.Share) int64 {
	if c.Hits <= 0 {
		return max(-algorithms.MaxHits, c.Hits*int64(units(c.Limit)))
	}
	return int64(priceOf(c, share).of(uint64(c.Hits)))
}

// partOf returns the part of the limit that the local store has given to a charge. at is the
// instant of the decision by the remote store's clock. The wait until the key is full shows when it
// would be full without the charge.
func partOf(c *store.Charge, d *algorithms.Decision, at algorithms.Instant, share store.Share) store.Part {
	if c.Limit.Requests == 0 || !isLocal(c) {
		return store.Part{}
	}
	took := scale(c.Limit.Period, uint64(max(0, cost(c, share))), inUnits(c.Limit).PerPeriod())
	return store.Part{Full: at.Add(d.ResetAfter) - algorithms.Instant(took), Mine: units(c.Limit), Of: uint32(min(priceOf(c, share).of(1), math.MaxUint32))}
}

// unseenPart is the part of the hits left that a process leaves to the hits of others that an
// answer does not show. Others may use these after the answer, and before an outage.
const unseenPart = 64

// leaveUnseen counts the unseen part as used, in the state that goes on in the local store. For an
// algorithm without a state the decision has it.
func leaveUnseen(c *store.Charge, told *store.State, d *algorithms.Decision) {
	unseen := d.Remaining / unseenPart
	switch {
	case unseen == 0 || told.Now == 0:
	case c.Limit.Algorithm.HasState():
		told.Take(c.Limit, told.Now, int64(unseen), true)
	default:
		d.Remaining -= unseen
	}
}

// ownOf returns the hits that a charge has put into the log of its key. In an outage each of these
// makes room for another hit of this process when it expires. So a log that is full at the begin
// stays in use.
//
// Why does the fleet stay within the limit? Each process admits at most its share of the hits left,
// and its own hits that have expired. When the newest hit has expired, each admits its share of the
// limit. After a refund nothing is known, as that takes the newest hits, of any process. If denied
// hits count, the log of a denied key may have any number of them.
func ownOf(c *store.Charge, d *algorithms.Decision, admitted bool, share store.Share) (own algorithms.OwnHits) {
	hits, p := applied(c, d, admitted), priceOf(c, share)
	if hits < 0 || c.CountRejected && !d.Allowed {
		return own
	}
	return algorithms.OwnHits{Hits: p.of(uint64(hits)), Price: uint32(min(p.of(1), math.MaxUint32))}
}

// toUnits makes a charge, the state that the remote store told and the decision fit for the local
// store.
func toUnits(c *store.Charge, told *store.State, d *algorithms.Decision) {
	n := units(c.Limit)
	last, a, b := told.State.Parts()
	switch by := uint64(n); told.Limit.Algorithm {
	case algorithms.TokenBucket:
		high, low := bits.Mul64(b, by)
		a, b = a*by+high, low
	default: // of algorithms with one unit by is 1
		a, b = a*by, b*by
	}
	told.State = algorithms.StateOf(last, a, b)
	told.Limit.Burst = uint32(min(uint64(told.Limit.Burst)*uint64(n), math.MaxUint32)) // the limit may be of other rules
	told.Limit.SetPerPeriod(min(told.Limit.PerPeriod()*uint64(n), told.Limit.Algorithm.MostPerPeriod()))
	c.Limit, c.Hits, d.Remaining = inUnits(c.Limit), c.Hits*int64(n), d.Remaining*uint64(n)
}

// applied returns the hits of a charge without a holder that a request without the remote store has
// applied. As package store says, these are all or none.
func applied(c *store.Charge, d *algorithms.Decision, admitted bool) int64 {
	if c.Hold == nil && (c.CountRejected || admitted && d.Allowed) {
		return c.Hits
	}
	return 0
}

// share returns the share of this process in each limit.
func (b *breaker) share() store.Share {
	h := b.Remote.Health(0)
	if h.Share.To == 0 {
		h.Share.To = uint32(store.Circle / max(1, h.Fleet))
	}
	return h.Share
}
