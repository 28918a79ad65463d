package memstore

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// continueSlots replaces the holders of a key of concurrency. The zero Holder, which no name has, holds all slots that the decision leaves
// used, until the last of these runs out. An end does not free such a slot. So the key has at most as many slots left as the other store
// says.
func (s *Store) continueSlots(c *store.Charge, to *store.State, d *algorithms.Decision) {
	var r room
	defer s.giveBack(&r)
	if !s.claimHolds(&r, 1) {
		s.makeRoomForHolds(&r, 1)
	}
	key := s.digest(c)
	sh := s.shardOf(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := sh.instantLocked(s)
	age := sh.hearLocked(key, to.Now)
	if age == older {
		return
	}
	v := sh.loadLocked(key, &c.Limit, now)
	if age == same && d.Remaining > v.slots.Decide(c.Limit, now, 0, 0).Remaining {
		return
	}
	v.limit = c.Limit
	if v.found {
		slot := &sh.table.slots[v.place]
		l := lineOf(slot.state)
		sh.holders.leaveAll(&l)
		slot.state, v.state = l.state(), l.state()
		sh.updateLocked(&v, now)
	}
	used, until := c.Limit.Requests-min(d.Remaining, c.Limit.Requests), now.Add(d.ResetAfter)
	if used == 0 || until <= now {
		return
	}
	if !v.found {
		v.slots = algorithms.Slots{}
		v.addSlots(used, until)
		s.rememberLocked(&v, 1, now)
	}
	hold := algorithms.Hold{Status: algorithms.HoldHeld, Hits: used, At: now, Until: until}
	if s.claimHoldsLocked(&r, 1, sh, now) && sh.joinLineLocked(key, &store.Holder{}, hold) {
		r.holds--
	}
}
