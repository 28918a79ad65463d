package memstore

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// takeHoldKnownLocked applies the only charge of a request, which has a holder, without a view. takeHoldKnownLocked reports false and changes
// nothing unless this is the usual case. Then the shard remembers the key under the same limit, without a log, and the store has room for the
// holder. mu must be held.
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
		return false
	}
}

// holdHitsLocked is takeHoldKnownLocked for a rate limit. mu must be held.
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
	hold.Was, *d, slot.state = was, decided, state
	switch {
	case next == was:
	case n == 0:
		sh.holders.remember(key.tag(), &hold.Holder, next)
	default:
		sh.holders.change(n, next, now)
	}
	switch {
	case e.Hits < 0 && sh.candidates.whole:
		sh.noteLocked(place, now)
	case hits > 0 && !e.Forced && (!d.Allowed || slot.denied() != 0):
		sh.markLocked(place, c, d.Allowed, now)
	}
	return true
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
	hold.Was, *d = was, decided
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
