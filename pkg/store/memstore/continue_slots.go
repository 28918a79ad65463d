package memstore

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// continueSlotsLocked replaces the holders of a key of concurrency. The zero Holder, which no name
// has, holds all slots that the decision leaves used, until the last of these runs out. An end does
// not free such a slot. So the key has at most as many slots left as the other store says. The room
// has the place of a holder, if there is one. The view's shard must be locked.
func (s *Store) continueSlotsLocked(v *view, c *store.Charge, d *algorithms.Decision, now algorithms.Instant, age age, r *room) {
	if age == same && d.Remaining > v.slots.Decide(c.Limit, now, 0, 0).Remaining {
		return
	}
	sh := v.shard
	v.limit = c.Limit
	if v.found {
		slot := &sh.table.slots[v.place]
		l := lineOf(slot.state)
		sh.holders.leaveAll(&l)
		slot.state, v.state = l.state(), l.state()
		sh.updateLocked(v, now)
	}
	used, until := c.Limit.Requests-min(d.Remaining, c.Limit.Requests), now.Add(d.ResetAfter)
	if used == 0 || until <= now {
		return
	}
	if !v.found {
		v.slots = algorithms.Slots{}
		v.addSlots(used, until)
		s.rememberLocked(v, 1, now)
	}
	hold := algorithms.Hold{Status: algorithms.HoldHeld, Hits: used, At: now, Until: until}
	if s.claimHoldsLocked(r, 1, sh, now) && sh.joinLineLocked(v.key, &store.Holder{}, hold) {
		r.holds--
	}
}
