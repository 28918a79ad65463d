package memstore

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// begin is a charge that begins a holder, within a transaction.
type begin struct {
	charge  int             // the number of the charge in the transaction
	record  uint32          // of the holder; 0: the store has none
	was     algorithms.Hold // the live hold that the charge found
	hits    int64           // to take; 0 of a holder that holds already
	refused bool            // there is no room for the holder: Options.OnFull decides
	again   bool            // the transaction has begun the same holder before
	below   int32           // the begin before of the same bucket of the transaction's names, plus one
}

// takeHold applies a transaction of one charge with a holder, under one lock.
func (s *Store) takeHold(c *store.Charge, d *algorithms.Decision) {
	key := s.digest(c)
	sh := s.shardOf(key)
	sh.mu.Lock()
	now := sh.instantLocked(s)
	switch {
	case sh.takeHoldKnownLocked(s, key, c, d, now):
		sh.mu.Unlock()
	case c.Hold.Phase != algorithms.HoldBegin:
		s.endLocked(sh, key, c, d, now)
		sh.mu.Unlock()
	default:
		sh.mu.Unlock()
		s.beginHold(sh, key, c, d)
	}
}

// beginHold applies a transaction of one charge that begins a holder.
func (s *Store) beginHold(sh *shard, key digest, c *store.Charge, d *algorithms.Decision) {
	var r room
	for {
		sh.mu.Lock()
		now := sh.instantLocked(s)
		v := sh.loadLocked(key, &c.Limit, now)
		b := begin{refused: r.holdFull}
		b.record, b.was = sh.holders.lookup(key.tag(), &c.Hold.Holder, now)
		*d = s.decideBegin(&v, &b, c, now)
		if want := r.wantLocked(s, &v, now); want.places > 0 && !s.claimLocked(&r, want, now) {
			sh.mu.Unlock()
			s.makeRoom(&r, want)
			continue
		}
		if b.adds(c, d.Allowed, now) && !s.claimHoldsLocked(&r, 1, sh, now) {
			sh.mu.Unlock()
			s.makeRoomForHolds(&r, 1)
			continue
		}
		if v.grows() && r.full {
			s.full(d, now)
		} else {
			sh.commitLocked(s, &v, now, &r)
		}
		s.rememberHolderLocked(&v, &b, c, d.Allowed, now, &r)
		sh.mu.Unlock()
		break
	}
	s.giveBack(&r)
}

// decideBegin evaluates the begin of a holder on top of the view.
func (s *Store) decideBegin(v *view, b *begin, c *store.Charge, now algorithms.Instant) algorithms.Decision {
	c.Hold.Was, c.Hold.Now = b.was, now
	e := b.was.Effect(algorithms.HoldBegin, c.Limit, c.Hits)
	b.hits = e.Hits
	b.refused = b.refused && b.record == 0 && !b.again && e.Hits > 0
	switch {
	case !b.refused:
		d := v.take(c, e.Hits, now, c.CountRejected)
		if e.Forced {
			d.Allowed, d.RetryAfter = true, 0
		}
		return d
	case s.onFull == Deny:
		b.hits, c.Hold.Now = 0, 0
		return algorithms.Decision{RetryAfter: c.Hold.AtMost, ResetAfter: c.Hold.AtMost}
	default: // the hits are not charged: under a rate limit the end charges the true cost
		b.hits, c.Hold.Now = 0, 0
		probe := *v
		return probe.take(c, e.Hits, now, false)
	}
}

// adds reports whether the charge makes a record.
func (b *begin) adds(c *store.Charge, passed bool, now algorithms.Instant) bool {
	return b.record == 0 && !b.again && !b.refused &&
		b.was.After(algorithms.HoldBegin, c.Limit, now, c.Hits, c.Hold.AtMost, passed) != algorithms.Hold{}
}

// rememberHolderLocked remembers the holder of a begin after its view was committed. passed says
// that the charge was allowed and the request admitted. The view's shard must be locked.
func (s *Store) rememberHolderLocked(v *view, b *begin, c *store.Charge, passed bool, now algorithms.Instant, r *room) {
	switch {
	case b.refused && s.onFull == Deny:
		s.metrics.holdsDenied.Add(1)
		return
	case b.refused:
		s.metrics.holdsAllowed.Add(1)
		return
	case passed && v.grows() && r.full:
		return // the key is not remembered
	}
	next := b.was.After(algorithms.HoldBegin, c.Limit, now, c.Hits, c.Hold.AtMost, passed)
	if next != b.was {
		s.setHoldLocked(v.shard, v.key, b.record, c, next, now, r)
	}
}

// setHoldLocked makes a hold the hold of the charge's holder, in record n if this is not 0. A new
// record takes a place of the room, or else of the store. Without a place the holder is not
// remembered. mu of the shard must be held.
func (s *Store) setHoldLocked(sh *shard, key digest, n uint32, c *store.Charge, hold algorithms.Hold, now algorithms.Instant, r *room) {
	slots := c.Limit.Algorithm == algorithms.Concurrency
	if n != 0 && !slots {
		sh.holders.change(n, hold, now)
		return
	}
	if r.holds == 0 && !s.claimHoldsLocked(r, 1, sh, now) {
		return
	}
	if slots && !sh.joinLineLocked(key, &c.Hold.Holder, hold) {
		return
	}
	if !slots {
		sh.holders.remember(key.tag(), &c.Hold.Holder, hold)
	}
	r.holds--
}

// lookup returns the record of a holder and the live hold; 0 and no hold if the store has no
// record.
func (h *holders) lookup(t stateTag, holder *store.Holder, now algorithms.Instant) (n uint32, hold algorithms.Hold) {
	if n = h.find(t, holder); n != 0 {
		hold = h.of(n).hold().Live(now)
	}
	return n, hold
}
