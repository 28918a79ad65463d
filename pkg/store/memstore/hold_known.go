package memstore

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// takeHoldKnownLocked applies the only charge of a request, which has a holder, without a view.
// takeHoldKnownLocked reports false and changes nothing unless this is the usual case. Then the
// shard remembers the key under the same limit, and keeps it, and has room for the charge. mu must
// be held.
func (sh *shard) takeHoldKnownLocked(s *Store, key digest, c *store.Charge, d *algorithms.Decision, now algorithms.Instant) bool {
	place, found := sh.table.find(key)
	if !found || *sh.limits.of(sh.table.slots[place].limit()) != c.Limit {
		return false
	}
	switch {
	case c.Limit.Algorithm.HasState():
		return sh.holdHitsLocked(s, key, place, c, d, now)
	case c.Limit.Algorithm == algorithms.Concurrency:
		return sh.holdSlotsLocked(s, key, place, c, d, now)
	default:
		return sh.holdLogLocked(s, key, place, c, d, now)
	}
}

// holdHitsLocked is takeHoldKnownLocked for a rate limit without a log. mu must be held.
func (sh *shard) holdHitsLocked(s *Store, key digest, place int, c *store.Charge, d *algorithms.Decision, now algorithms.Instant) bool {
	slot, hold := &sh.table.slots[place], c.Hold
	n, was := sh.holders.lookup(key.tag(), &hold.Holder, now)
	e := was.Effect(hold.Phase, c.Limit, c.Hits)
	state, hits := slot.state, e.Hits
	if hits < 0 {
		state, _ = algorithms.GiveBack(c.Limit, c.Limit, state, e.Charged, now, uint32(-hits))
		if state.Unused() {
			return false // the key goes
		}
		hits = 0
	}
	state, decided := algorithms.Take(c.Limit, state, now, hits, c.CountRejected || hold.Phase != algorithms.HoldBegin)
	if e.Forced {
		decided.Allowed, decided.RetryAfter = true, 0
	}
	next := was.After(hold.Phase, c.Limit, now, c.Hits, hold.AtMost, decided.Allowed)
	if next != was && n == 0 && !s.claimHold() {
		return false
	}
	hold.Was, hold.Now, *d, slot.state = was, now, decided, state
	if next != was {
		sh.holders.set(key.tag(), n, &hold.Holder, next, now)
	}
	sh.notedLocked(place, c, e, decided.Allowed, now)
	return true
}

// holdLogLocked is takeHoldKnownLocked for sliding_window_log. mu must be held.
func (sh *shard) holdLogLocked(s *Store, key digest, place int, c *store.Charge, d *algorithms.Decision, now algorithms.Instant) bool {
	slot, hold := &sh.table.slots[place], c.Hold
	n, was := sh.holders.lookup(key.tag(), &hold.Holder, now)
	e := was.Effect(hold.Phase, c.Limit, c.Hits)
	log := sh.logs.of(slot.state)
	before := log.Size()
	if e.Hits < 0 && log.Len() <= 1 {
		return false // the key may go
	}
	p, decided := log.Decide(c.Limit, now, algorithms.Pending{}, max(e.Hits, 0), c.CountRejected || hold.Phase != algorithms.HoldBegin)
	if log.SizeAfter(c.Limit, now, p) > before {
		return false
	}
	next := was.After(hold.Phase, c.Limit, now, c.Hits, hold.AtMost, decided.Allowed || e.Forced)
	if next != was && n == 0 && !s.claimHold() {
		return false
	}
	if e.Hits < 0 {
		log.GiveBack(c.Limit, now, e.Charged, uint32(-e.Hits))
		_, decided = log.Decide(c.Limit, now, algorithms.Pending{}, 0, false)
	} else {
		log.Apply(c.Limit, now, p)
	}
	if after := log.Size(); after < before {
		s.metrics.places.Add(int64(placesOf(after) - placesOf(before)))
	}
	slot.state = logStateOf(slot.state).after(log, &c.Limit, decided)
	if e.Forced {
		decided.Allowed, decided.RetryAfter = true, 0
	}
	hold.Was, hold.Now, *d = was, now, decided
	if next != was {
		sh.holders.set(key.tag(), n, &hold.Holder, next, now)
	}
	sh.notedLocked(place, c, e, decided.Allowed, now)
	return true
}

// notedLocked keeps the denied hits of the key at that place after a charge with a holder. mu must
// be held.
func (sh *shard) notedLocked(place int, c *store.Charge, e algorithms.Effect, allowed bool, now algorithms.Instant) {
	switch {
	case e.Hits < 0 && sh.candidates.whole:
		sh.noteLocked(place, now)
	case e.Hits > 0 && !e.Forced && (!allowed || sh.table.slots[place].denied() != 0):
		sh.markLocked(place, c, allowed, now)
	}
}

// holdSlotsLocked is takeHoldKnownLocked for concurrency. mu must be held.
func (sh *shard) holdSlotsLocked(s *Store, key digest, place int, c *store.Charge, d *algorithms.Decision, now algorithms.Instant) bool {
	hold := c.Hold
	if hold.Phase == algorithms.HoldBegun {
		return false
	}
	l := sh.expireLocked(place, now)
	n, was := sh.holders.lookup(key.tag(), &hold.Holder, now)
	e := was.Effect(hold.Phase, c.Limit, c.Hits)
	slots := sh.holders.slots(&l)
	if e.Hits < 0 {
		slots = sh.holders.slotsWithout(&l, n)
	}
	decided := slots.Decide(c.Limit, now, uint32(max(e.Hits, 0)), hold.AtMost)
	if e.Forced {
		decided.Allowed, decided.RetryAfter = true, 0
	}
	joins := e.Hits > 0 && decided.Allowed
	if joins && !s.claimHold() {
		return false
	}
	hold.Was, hold.Now, *d = was, now, decided
	switch {
	case joins:
		next := was.After(hold.Phase, c.Limit, now, c.Hits, hold.AtMost, true)
		sh.holders.join(&l, key.tag(), &hold.Holder, next)
		sh.table.slots[place].state = l.state()
	case e.Hits < 0:
		sh.holders.leave(&l, n)
		sh.table.slots[place].state = l.state()
		if sh.candidates.whole {
			sh.noteLocked(place, now)
		}
	}
	return true
}
