package memstore

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// takeSlots applies hits of the charge to the view of a key of concurrency. A charge without a
// holder is a probe.
func (v *view) takeSlots(c *store.Charge, hits int64, now algorithms.Instant) algorithms.Decision {
	if c.Hold == nil {
		return v.slots.Decide(c.Limit, now, 0, 0)
	}
	asked := uint32(max(hits, 0))
	d := v.slots.Decide(c.Limit, now, asked, c.Hold.AtMost)
	if d.Allowed && asked > 0 {
		v.addSlots(asked, now.Add(c.Hold.AtMost))
	}
	return d
}

// addSlots adds a holder to the summary of the view.
func (v *view) addSlots(hits uint32, until algorithms.Instant) {
	if v.slots.Used == 0 {
		v.slots = algorithms.Slots{First: until, Last: until}
	}
	v.slots.Used += uint64(hits)
	v.slots.First, v.slots.Last = min(v.slots.First, until), max(v.slots.Last, until)
}

// joinLineLocked adds a holder to the line of a key. joinLineLocked reports false if the table has
// no slot of the key. mu must be held.
func (sh *shard) joinLineLocked(key digest, holder *store.Holder, hold algorithms.Hold) bool {
	place, found := sh.table.find(key)
	if !found {
		return false
	}
	slot := &sh.table.slots[place]
	l := lineOf(slot.state)
	sh.holders.join(&l, key.tag(), holder, hold)
	slot.state = l.state()
	return true
}

// leaveLocked removes a holder from the line of a key. A key without holders stays until a sweep.
// mu must be held.
func (sh *shard) leaveLocked(key digest, n uint32) {
	place, found := sh.table.find(key)
	if !found {
		return
	}
	slot := &sh.table.slots[place]
	l := lineOf(slot.state)
	sh.holders.leave(&l, n)
	slot.state = l.state()
	if sh.candidates.whole {
		sh.noteLocked(place, sh.latest)
	}
}

// expireLocked removes the holders that have run out from the line of the key at that place, and
// returns the line. mu must be held.
func (sh *shard) expireLocked(place int, now algorithms.Instant) line {
	slot := &sh.table.slots[place]
	l := lineOf(slot.state)
	if sh.holders.expire(&l, now) {
		slot.state = l.state()
	}
	return l
}

// forgetHoldersLocked forgets the holders of a key. mu must be held.
func (sh *shard) forgetHoldersLocked(key digest, l *algorithms.Limit) {
	if l.Algorithm != algorithms.Concurrency { // the line of a key goes with its slot
		sh.holders.forgetState(key.tag())
	}
}
