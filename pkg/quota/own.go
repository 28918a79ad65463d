package quota

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Left is the rest of the count of a limit, for hits that this process counts itself.
type Left struct {
	Hits   uint64
	Used   bool          // hits are missing
	Window time.Duration // until the window of the count ends; 0: a bucket
}

// Start is the begin of a division of a limit that also counts hits in this process.
type Start struct {
	Spend []int64       // hits to charge to each count, all or none, before the division is made
	First Limit         // of the division
	Until time.Duration // from now on that First holds; 0: for ever

	level, taken int64
	used         bool
}

// Handover is the time in which a request that has begun before a division is counted.
const Handover = algorithms.MinDividedWindow / 2

// unseen is the part of a window that requests on their way may take while a division begins.
const unseen = 16

// Begin returns the begin of a division by the counts of its limits. ok is false in the last moment
// of a window: then the division must begin later. The division pays with the hits to spend, so
// that it holds also if requests that have begun before do not see it.
func Begin(l Limit, counts []Left) (s Start, ok bool) {
	s.First, s.level = l, l.Burst
	s.taken = min(scale(l.Rate, Handover, time.Second)+1, l.Burst)
	for _, c := range counts {
		hits := int64(min(c.Hits, MostHits))
		s.used = s.used || c.Used
		if c.Window > 0 {
			if c.Window <= Handover {
				return Start{}, false
			}
			hits -= (hits + unseen - 1) / unseen
			burst := (hits + 7) / 8 * token
			s.First.Burst = min(s.First.Burst, burst)
			s.First.Rate = min(s.First.Rate, scale(hits*token-burst, time.Second, c.Window))
			s.Until, s.taken = max(s.Until, c.Window), 0
		}
		s.Spend = append(s.Spend, hits)
		s.level = min(s.level, hits*token, s.First.Burst)
	}
	return s, true
}

// NewBeside returns a division beside hits that this process counts, and the client for these. The
// caller has spent the hits of s before. An order for the client is in force at once, so the caller
// acknowledges the order. The client does not leave, and no order for the client expires.
//
// The debits cover the client like the others: requests on their way may spend the bucket before
// beside the new one for at most [Settle].
func NewBeside(s Start, now time.Duration, tag any) (*Division, *Client) {
	d := New(s.First, now)
	c := d.Join(now, tag)
	c.here, c.own, c.taken, d.level = true, true, s.taken, s.level-s.taken
	d.tokens += c.taken
	if !s.used {
		c.demand = 0
	}
	return d, c
}

// JoinHere adds a client of this process, which has no bucket. An order for the client is in force
// at once, so the caller acknowledges the order. No order for the client expires.
func (d *Division) JoinHere(now time.Duration, tag any) *Client {
	c := d.Join(now, tag)
	c.here = true
	return c
}

// Deny says that a client of this process uses no bucket from now on. Requests on their way may use
// its last ones for at most [Settle].
func (d *Division) Deny(c *Client, now time.Duration) {
	d.advance(now)
	d.settle(now)
	if c.change { // both buckets may be in use
		last := given{Bucket{Max: c.bucket.Max + c.before.Max}, c.rate()}
		d.put(c, last, given{})
	}
	d.send(c, Bucket{}, now, nil)
	d.Acknowledge(c, c.seq, now)
}

// Asked takes hits for which a client of this process was asked, allowed or not. After a time
// without any, hits of an own client count as soon as they are half of the client's bucket. Then
// woken is true, and the caller calls Step now.
func (d *Division) Asked(c *Client, hits uint64, now time.Duration) (woken bool) {
	c.asked += min(hits, MostHits)
	switch {
	case c.idle() && c.asked > 0 && int64(min(c.asked, MostHits))*token >= c.bucket.tokens()/2:
		c.demand, c.reported, d.dirty, c.asked = -1, now, true, 0
		return true
	case now-c.reported >= time.Second:
		d.Report(c, c.asked, 0, now)
		c.asked = 0
	}
	return false
}

// End returns the hits to charge to each count, so that it goes on alone from now on. Only while
// [Division.Full] is true.
func (d *Division) End(counts []Left, now time.Duration) (spend []int64) {
	d.advance(now)
	for _, c := range counts {
		left := d.level + min(scale(d.limit.Rate, c.Window, time.Second), MostHits*token)
		spend = append(spend, max(int64(min(c.Hits, 2*MostHits))-left/token, 0))
	}
	return spend
}

// idle reports whether this is an own client without requests, with a small bucket or none.
func (c *Client) idle() bool { return c.own && c.demand == 0 }
