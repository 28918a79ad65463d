package memstore

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// endLocked applies a charge whose holder ends, or has begun elsewhere. A new key, a log that grows
// and a new holder get room in their own shard or none. mu of the shard must be held.
func (s *Store) endLocked(sh *shard, key digest, c *store.Charge, d *algorithms.Decision, now algorithms.Instant) {
	v := sh.loadLocked(key, &c.Limit, now)
	n, was := sh.holders.lookup(key.tag(), &c.Hold.Holder, now)
	c.Hold.Was = was
	e := was.Effect(c.Hold.Phase, c.Limit, c.Hits)
	next := was.After(c.Hold.Phase, c.Limit, now, c.Hits, c.Hold.AtMost, true)
	var r room
	defer s.giveBack(&r)
	if c.Limit.Algorithm == algorithms.Concurrency {
		s.endSlotsLocked(&v, n, c, e, next, now, &r)
		*d = v.force(c, 0, now)
		return
	}
	if e.Hits >= 0 {
		*d = v.force(c, e.Hits, now)
	} else {
		before := v.heldLocked()
		v.giveBack(c, e, now)
		s.metrics.places.Add(int64(v.heldLocked() - before)) // of a log that has shrunk
		*d = v.force(c, 0, now)
	}
	s.commitEndLocked(&v, now, &r)
	if next != was {
		s.setHoldLocked(sh, key, n, c, next, now, &r)
	}
}

// endSlotsLocked is the part of endLocked for a key of concurrency. The view then shows the key
// afterwards.
func (s *Store) endSlotsLocked(v *view, n uint32, c *store.Charge, e algorithms.Effect, next algorithms.Hold, now algorithms.Instant, r *room) {
	sh := v.shard
	switch {
	case e.Hits < 0:
		sh.leaveLocked(v.key, n)
	case e.Hits > 0:
		v.limit = c.Limit
		v.addSlots(uint32(e.Hits), next.Until)
		if s.commitEndLocked(v, now, r) {
			s.setHoldLocked(sh, v.key, n, c, next, now, r)
		}
	default:
		return
	}
	*v = sh.loadLocked(v.key, &c.Limit, now)
}

// commitEndLocked commits the view, with room in its own shard or none, and reports whether the
// store then has the key.
func (s *Store) commitEndLocked(v *view, now algorithms.Instant, r *room) bool {
	if w := r.wantLocked(s, v, now); w.places > 0 && !s.claimLocked(r, w, now) {
		r.refuse(w.adds)
	}
	if v.grows() && r.full {
		s.metrics.allowed.Add(1)
		return false
	}
	v.shard.commitLocked(s, v, now, r)
	return true
}

// giveBack gives the hits of the effect back to the view. The log of the view, which must have no
// pending hits, changes at once.
func (v *view) giveBack(c *store.Charge, e algorithms.Effect, now algorithms.Instant) {
	was, hits := v.limit, uint32(-e.Hits)
	if v.log != nil {
		v.limit = c.Limit
		v.log.GiveBack(c.Limit, now, e.Charged, hits)
	} else {
		v.state, v.limit = algorithms.GiveBack(was, c.Limit, v.state, e.Charged, now, hits)
	}
	if c.Limit.Requests == 0 && was.Requests > 0 {
		v.limit = was // as in take
	}
}

// force applies hits even beyond the limit. The hits are allowed, and say nothing about hits that
// ask.
func (v *view) force(c *store.Charge, hits int64, now algorithms.Instant) algorithms.Decision {
	denied := v.denied
	d := v.take(c, hits, now, true)
	v.denied = denied
	d.Allowed, d.RetryAfter = true, 0
	return d
}

// peekHoldLocked returns the decision that a charge with a holder would get alone. The view's shard
// must be locked.
func (v *view) peekHoldLocked(c *store.Charge, now algorithms.Instant) algorithms.Decision {
	h := &v.shard.holders
	n, was := h.lookup(v.key.tag(), &c.Hold.Holder, now)
	c.Hold.Was = was
	e := was.Effect(c.Hold.Phase, c.Limit, c.Hits)
	slots := c.Limit.Algorithm == algorithms.Concurrency
	switch {
	case c.Hold.Phase == algorithms.HoldBegin && !e.Forced:
		return v.take(c, e.Hits, now, c.CountRejected)
	case e.Hits < 0 && slots:
		l := lineOf(v.state)
		v.slots = h.slotsWithout(&l, n)
	case e.Hits > 0 && slots:
		v.addSlots(uint32(e.Hits), now.Add(c.Hold.AtMost))
	case e.Hits < 0:
		v.cloneLog(c, now)
		v.giveBack(c, e, now)
	case e.Hits > 0:
		return v.force(c, e.Hits, now)
	}
	return v.force(c, 0, now)
}

// cloneLog gives the view a log of its own.
func (v *view) cloneLog(c *store.Charge, now algorithms.Instant) {
	if v.log == nil {
		return
	}
	clone := new(algorithms.Log)
	for _, e := range v.log.AppendEntries(nil) {
		clone.Restore(c.Limit, e, now)
	}
	v.log = clone
}
