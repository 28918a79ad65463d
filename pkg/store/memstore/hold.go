package memstore

import (
	"cmp"
	"context"
	"slices"

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
	now, pair := sh.instantLocked(s), pairOf(c)
	sh.resolveLocked(key, c, pair, now)
	switch {
	case sh.takeHoldKnownLocked(s, key, c, d, now):
		sh.mu.Unlock()
	case !c.Hold.Phase.Begins():
		s.endLocked(sh, key, c, d, now)
		sh.mu.Unlock()
	default:
		sh.mu.Unlock()
		s.beginHold(sh, key, c, d, pair)
	}
}

// beginHold applies a transaction of one charge that begins a holder.
func (s *Store) beginHold(sh *shard, key digest, c *store.Charge, d *algorithms.Decision, pair cost) {
	var r room
	for {
		sh.mu.Lock()
		now := sh.instantLocked(s)
		if sh.resolveLocked(key, c, pair, now); !c.Hold.Phase.Begins() {
			s.endLocked(sh, key, c, d, now)
			sh.mu.Unlock()
			break
		}
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
			s.full(c, d, now)
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
	e := b.was.Effect(c.Hold.Phase, c.Limit, c.Hits)
	b.hits = e.Hits
	b.refused = b.refused && b.record == 0 && !b.again && (e.Hits > 0 || c.IsPair())
	switch {
	case !b.refused:
		d := v.take(c, e.Hits, now, algorithms.Counting(c.CountRejected))
		if e.Forced {
			d.Allowed, d.RetryAfter = true, 0
		}
		return d
	case s.onFull == Deny:
		b.hits, c.Hold.Now = 0, 0
		c.TellNoRoom()
		return algorithms.Decision{RetryAfter: c.Hold.AtMost, ResetAfter: c.Hold.AtMost}
	default: // the hits are not charged: under a rate limit the end charges the true cost
		b.hits, c.Hold.Now = 0, 0
		probe := *v
		return probe.take(c, e.Hits, now, algorithms.Refuse)
	}
}

// adds reports whether the charge makes a record.
func (b *begin) adds(c *store.Charge, passed bool, now algorithms.Instant) bool {
	return b.record == 0 && !b.again && !b.refused &&
		b.was.After(c.Hold.Phase, c.Limit, now, c.Hits, c.Hold.AtMost, passed) != algorithms.Hold{}
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
	next := b.was.After(c.Hold.Phase, c.Limit, now, c.Hits, c.Hold.AtMost, passed)
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
		if r := sh.holders.of(n); r.until <= now && sh.holders.returns(n) { // more than mostReturns have run out
			s.returnHitsLocked(sh, key, r)
		}
		sh.holders.change(n, hold, now)
		sh.returnLocked(n, key, c)
		return
	}
	if r.holds == 0 && !s.claimHoldsLocked(r, 1, sh, now) {
		return
	}
	if slots && !sh.joinLineLocked(key, &c.Hold.Holder, hold) {
		return
	}
	if !slots {
		sh.returnLocked(sh.holders.remember(key.tag(), &c.Hold.Holder, hold), key, c)
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

// pairOf returns the cost of a charge, which is the only one of a transaction. The number of the
// charge is -1 unless it is of HoldPair.
func pairOf(c *store.Charge) cost {
	if !c.IsPair() {
		return cost{charge: -1}
	}
	return cost{hits: c.Hits}
}

// resolveLocked makes a charge of HoldPair an end or a begin, as the holder is now. mu must be
// held.
func (sh *shard) resolveLocked(key digest, c *store.Charge, pair cost, now algorithms.Instant) {
	if pair.charge == 0 {
		c.Hits = pair.hits
		c.Pair(sh.holdsLocked(key, c, now))
	}
}

// holdsLocked reports whether the holder of a charge holds. mu must be held.
func (sh *shard) holdsLocked(key digest, c *store.Charge, now algorithms.Instant) bool {
	_, hold := sh.holders.lookup(key.tag(), &c.Hold.Holder, now)
	return hold.Status == algorithms.HoldHeld
}

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
func (s *Store) endSlotsLocked(
	v *view, n uint32, c *store.Charge, e algorithms.Effect, next algorithms.Hold, now algorithms.Instant, r *room,
) {
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
	d := v.take(c, hits, now, algorithms.Owe)
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
	c.Pair(was.Status == algorithms.HoldHeld)
	e := was.Effect(c.Hold.Phase, c.Limit, c.Hits)
	slots := c.Limit.Algorithm == algorithms.Concurrency
	switch {
	case c.Hold.Phase.Begins() && !e.Forced:
		return v.take(c, e.Hits, now, algorithms.Counting(c.CountRejected))
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
	case sh.nextReturn != 0 && sh.nextReturn <= now:
		return false // perhaps the hits of the holder have yet to come back
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
	state, decided := algorithms.Charge(c.Limit, state, now, hits, e.Excess(c.CountRejected))
	if e.Forced {
		decided.Allowed, decided.RetryAfter = true, 0
	}
	next := was.After(hold.Phase, c.Limit, now, c.Hits, hold.AtMost, decided.Allowed)
	if next != was && n == 0 && !s.claimHold() {
		return false
	}
	hold.Was, hold.Now, *d, slot.state = was, now, decided, state
	if next != was {
		sh.returnLocked(sh.holders.set(key.tag(), n, &hold.Holder, next, now), key, c)
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
	p, decided := log.Decide(c.Limit, now, algorithms.Pending{}, max(e.Hits, 0), c.CountRejected || !hold.Phase.Begins())
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
		sh.returnLocked(sh.holders.set(key.tag(), n, &hold.Holder, next, now), key, c)
	}
	sh.notedLocked(place, c, e, decided.Allowed, now)
	return true
}

// notedLocked keeps the denied hits of the key at that place after a charge with a holder. mu must
// be held.
func (sh *shard) notedLocked(place int, c *store.Charge, e algorithms.Effect, allowed bool, now algorithms.Instant) {
	switch {
	case e.Hits < 0 && sh.candidates.whole():
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
		if sh.candidates.whole() {
			sh.noteLocked(place, now)
		}
	}
	return true
}

// Holders implements [store.Store], for every algorithm. For a rate limit it looks at all holders
// of the key's shard. Holders fails only when ctx has ended.
func (s *Store) Holders(ctx context.Context, charge *store.Charge, most int) (held []store.Held, all int, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	key := s.digest(charge)
	sh := s.shardOf(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := sh.instantLocked(s)
	if charge.Limit.Algorithm != algorithms.Concurrency {
		held, all = sh.holders.list(key.tag(), most, now)
		return held, all, nil
	}
	place, found := sh.table.find(key)
	if !found {
		return nil, 0, nil
	}
	l := sh.expireLocked(place, now)
	for n := l.first; n != 0 && len(held) < most; n = sh.holders.of(n).after {
		held = append(held, sh.holders.of(n).held())
	}
	return held, int(l.count), nil
}

func (r *holderRecord) held() store.Held {
	return store.Held{Holder: r.holder, Hits: r.hits, At: r.at, Until: r.until}
}

// list returns the holders of a rate limit's state that hold at now, the next one to run out first.
// There are at most that many; all is the number without that bound.
func (h *holders) list(t stateTag, most int, now algorithms.Instant) (held []store.Held, all int) {
	trim := func() {
		slices.SortFunc(held, func(a, b store.Held) int {
			return cmp.Or(cmp.Compare(a.Until, b.Until), slices.Compare(a.Holder[:], b.Holder[:]))
		})
		held = held[:min(len(held), max(most, 0))]
	}
	for n := range h.rates(0, len(h.chunks)) {
		r := h.of(n)
		if r.tag() != t || r.kind() != kindHeld || r.until <= now {
			continue
		}
		all++
		if most <= 0 {
			continue
		}
		if len(held) >= 2*most+1024 {
			trim()
		}
		held = append(held, r.held())
	}
	trim()
	return held, all
}

// claimHolds claims places of holders until r has n, or reports false if the store has too few.
func (s *Store) claimHolds(r *room, n int) bool {
	if r.holds >= n {
		return true
	}
	if !reserve(&s.metrics.holds, int64(n-r.holds), s.maxHolds) {
		return false
	}
	r.holds = n
	return true
}

// claimHold claims the place of one holder without a room, or reports false.
func (s *Store) claimHold() bool { return reserve(&s.metrics.holds, 1, s.maxHolds) }

// claimHoldsLocked is claimHolds that forgets holders of a locked shard if the store has too few
// places.
func (s *Store) claimHoldsLocked(r *room, n int, sh *shard, now algorithms.Instant) bool {
	for !s.claimHolds(r, n) {
		if !sh.holders.makeRoom(now) {
			return false
		}
	}
	return true
}

// makeRoomForHolds forgets denied and ended holders of any shard until r has n places of holders.
// If there are too few, r is full for holders. No shard may be locked.
func (s *Store) makeRoomForHolds(r *room, n int) {
	start := int(s.turn.Add(1))
	for i := range s.shards {
		shard := (start + i) & (len(s.shards) - 1)
		if !s.spent[shard].Load() {
			continue
		}
		sh := &s.shards[shard]
		sh.mu.Lock()
		claimed := s.claimHoldsLocked(r, n, sh, sh.instantLocked(s))
		sh.mu.Unlock()
		if claimed {
			return
		}
	}
	r.holdFull = !s.claimHolds(r, n)
}
