package redisstore

import (
	"math/bits"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// deferred is hits of one state that Redis does not know of. With windows these are the hits of one
// window. Without windows hits to charge are one deferred, and hits to give back are one for each
// instant.
//
// Hits older than a lifetime do not matter. A bucket that gets all hits of the last lifetime at
// their newest instant is never fuller than with each hit at its own instant. Before these hits its
// deficit was at most the gain of a lifetime. So the hits lie in slots of time, and the oldest
// slots drop out. A bucket gets back the hits less the gain since their own instant: a later
// instant would give back too much.
type deferred struct {
	charge  store.Charge // Key and Limit
	counter bool         // instants are of this process's clock
	back    bool         // hits to give back, of an algorithm without windows
	at      algorithms.Instant
	slots   [deferredSlots]int64 // hits: by time, the newest in slot 0; of a window, and to give back, all in slot 0
	under   int64                // hits to charge that are on the way, or of a request whose outcome is open
}

const (
	deferredSlots   = 9            // eight are a lifetime
	deferredMost    = 1<<40 - 1    // hits of a slot, as in a value of Redis
	deferredOverdue = farthestBack // of an end: two clocks differ
)

// windowed reports whether all hits of a window matter alike.
func windowed(a algorithms.Algorithm) bool {
	return a == algorithms.FixedWindow || a == algorithms.SlidingWindowCounter
}

// lifetime returns how long hits matter: from the start of their window, or without windows from
// their instant. A bucket in debt fills in two times the time of an empty one.
func lifetime(l algorithms.Limit) time.Duration {
	life := uint64(l.Period)
	switch {
	case l.Algorithm == algorithms.SlidingWindowCounter || l.Algorithm == algorithms.TokenBucketInteger:
		life *= 2
	case l.Algorithm == algorithms.TokenBucket && l.Requests > 0:
		high, low := bits.Mul64(life, 2*uint64(l.Capacity()))
		if high >= uint64(l.Requests) {
			return algorithms.MaxPeriod
		}
		life, _ = bits.Div64(high, low, uint64(l.Requests))
	}
	return time.Duration(min(life, uint64(algorithms.MaxPeriod)))
}

// over reports whether hits at an instant do not matter any more.
func over(l algorithms.Limit, at, now algorithms.Instant) bool { return now >= ends(l, at) }

// ends returns the instant from which hits at an instant do not matter.
func ends(l algorithms.Limit, at algorithms.Instant) algorithms.Instant {
	if windowed(l.Algorithm) {
		at = window(l.Period, at)
	}
	return at.Add(lifetime(l))
}

// newDeferred returns the deferred of hits of a charge, without the hits.
func newDeferred(s *Store, c *store.Charge, at algorithms.Instant) *deferred {
	d := &deferred{
		charge: store.Charge{Key: slices.Clone(c.Key), Limit: c.Limit, CountRejected: true, Mode: store.Shadow},
		back:   c.Hits < 0 && !windowed(c.Limit.Algorithm), at: at,
	}
	d.counter = s.isCounter(c)
	return d
}

// takes reports whether hits of a charge belong here.
func (d *deferred) takes(c *store.Charge, at algorithms.Instant) bool {
	l := c.Limit
	switch {
	case d.charge.Limit.Algorithm != l.Algorithm || d.charge.Limit.Period != l.Period:
		return false
	case windowed(l.Algorithm):
		return window(l.Period, d.at) == window(l.Period, at)
	case c.Hits < 0:
		return d.back && d.at == at
	}
	return !d.back
}

// width returns the nanoseconds of a slot.
func (d *deferred) width() int64 {
	return max(int64(lifetime(d.charge.Limit))/(deferredSlots-1), int64(Granularity))
}

// add adds the hits of a charge that takes has accepted.
func (d *deferred) add(c *store.Charge, at algorithms.Instant) {
	if d.charge.Limit != c.Limit { // the slots of the new limit may have another width
		d.slots = [deferredSlots]int64{d.waiting()}
		d.charge.Limit = c.Limit
	}
	slot := int64(0)
	if windowed(c.Limit.Algorithm) {
		d.at = max(d.at, at)
	} else if !d.back {
		newer := int64(at)/d.width() - int64(d.at)/d.width()
		if newer > 0 {
			newer = min(newer, deferredSlots)
			copy(d.slots[newer:], d.slots[:])
			clear(d.slots[:newer])
		}
		d.at, slot = max(d.at, at), max(-newer, 0)
	}
	if slot < deferredSlots {
		d.slots[slot] = max(min(d.slots[slot]+c.Hits, deferredMost), -deferredMost)
	}
}

// waiting returns the hits that wait to be sent.
func (d *deferred) waiting() (hits int64) {
	for _, n := range d.slots {
		hits += n
	}
	return hits
}

// call returns a call of the waiting hits, which are then under way; nil without hits.
func (d *deferred) call(s *Store) *call {
	c := newCall()
	c.set(correct, s.locate(&d.charge, d.at), d.at, nil)
	sum := d.waiting()
	if d.charge.Limit.Algorithm != algorithms.SlidingWindowLog || d.back {
		c.late(d, sum, d.at)
	} else {
		first := int64(d.at) / d.width()
		for n := int64(deferredSlots - 1); n >= 0; n-- { // each hit of a log counts until the end of its slot's time, at least
			c.late(d, d.slots[n], min(algorithms.Instant((first-n+1)*d.width()-1), d.at))
		}
	}
	d.slots = [deferredSlots]int64{}
	if len(c.charges) == 0 {
		return nil
	}
	c.own()
	c.deferred = d
	d.under += c.positive()
	return c
}

// late adds hits of an earlier instant to a call.
func (c *call) late(d *deferred, hits int64, at algorithms.Instant) {
	for hits != 0 {
		charge := d.charge
		charge.Hits = max(min(hits, algorithms.MaxHits), -algorithms.MaxHits)
		hits -= charge.Hits
		c.add(&charge)
		c.corrections = append(c.corrections, &correction{at: int64(at) / int64(Granularity), left: noValue})
	}
}

// positive returns the sum of the call's hits to charge.
func (c *call) positive() (hits int64) {
	for i := range c.charges {
		hits += max(c.charges[i].Hits, 0)
	}
	return hits
}
