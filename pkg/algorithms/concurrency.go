package algorithms

import "time"

// Concurrency admits at most Requests hits that are held at the same time, each from the begin of
// its holder to the end of it. A limit of Concurrency has neither Period nor Burst.
const Concurrency Algorithm = 6

// Slots is the state of concurrency for one key: a summary of the holders that have not run out.
// The zero value is a key never used. A store keeps the holders themselves, and removes a holder
// from the summary when the holder ends or runs out.
type Slots struct {
	Used  uint64  // hits of all holders
	First Instant // at which the first of the holders runs out; no meaning without holders
	Last  Instant // at which the last of the holders runs out; no meaning without holders
}

// Decide returns the decision on hits at instant now, for a holder that would run out after atMost.
// 0 hits are a probe, which is allowed unless more is held than the limit allows. The summary must
// have no holder that has run out. Remaining and ResetAfter tell the slots after the hits if these
// are allowed. RetryAfter is the wait until the first holder runs out, as an upper bound: a holder
// may end sooner. Of more hits than the limit has, RetryAfter is the wait until the last holder
// runs out.
func (s Slots) Decide(l Limit, now Instant, hits uint32, atMost time.Duration) Decision {
	limit := uint64(l.Requests)
	d := Decision{Allowed: s.Used <= limit && uint64(hits) <= limit-s.Used}
	last := s.Last
	if s.Used == 0 {
		last = now
	}
	if d.Allowed && hits > 0 {
		s.Used += uint64(hits)
		last = max(last, now.Add(atMost))
	}
	if s.Used < limit {
		d.Remaining = limit - s.Used
	}
	d.ResetAfter = last.Sub(now)
	switch {
	case d.Allowed:
	case s.Used == 0:
		d.RetryAfter = atMost
	case uint64(hits) > limit:
		d.RetryAfter = d.ResetAfter
	default:
		d.RetryAfter = s.First.Sub(now)
	}
	return d
}
