package memstore

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Continue implements [store.Local]. A new key takes a place as in Take, but only its own shard
// forgets a key for it. Without room the key is not remembered. Continue allocates nothing for a
// known key.
func (s *Store) Continue(charges []store.Charge, states []store.State, decisions []algorithms.Decision) {
	for i := range charges {
		if c := &charges[i]; states[i].Now != 0 && c.Limit.Algorithm == algorithms.Escalation {
			s.blocks.continueFrom(s, c, &states[i])
		} else if states[i].Now != 0 && (c.Limit.Algorithm.HasState() || c.Limit.Requests > 0) {
			s.continueOne(c, &states[i], &decisions[i]) // the denial of a ban says nothing about a log
			if c.Before != nil {
				s.knows(c)
			}
		}
	}
}

// continueOne puts the state of one key, or the most that its decision can mean, in place of the
// own state.
func (s *Store) continueOne(c *store.Charge, to *store.State, d *algorithms.Decision) {
	slots := c.Limit.Algorithm == algorithms.Concurrency
	var r room
	if slots {
		defer s.giveBack(&r)
		if !s.claimHolds(&r, 1) {
			s.makeRoomForHolds(&r, 1)
		}
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
	if slots {
		s.continueSlotsLocked(&v, c, d, now, age, &r)
		return
	}
	v.denied = v.denied.after(&c.Limit, c.Hits, d.Allowed)
	if v.log != nil {
		s.continueLogLocked(&v, c, to, d, now, age)
		return
	}
	state := algorithms.Realign(to.Limit, to.State, to.Now, time.Duration(now-to.Now))
	if age == same && v.found {
		_, told := algorithms.Take(c.Limit, state, now, 0, false)
		if _, own := algorithms.Take(c.Limit, v.state, now, 0, false); told.Remaining > own.Remaining {
			return
		}
	}
	v.state = state
	if to.Limit.Requests > 0 || v.limit.Requests == 0 {
		v.limit = to.Limit // a ban says nothing about the state
	}
	switch {
	case v.unused():
		s.metrics.places.Add(-int64(sh.forgetLocked(key)))
	case v.found:
		sh.updateLocked(&v, now)
	default:
		s.rememberLocked(&v, 1, now)
	}
}

// continueLogLocked makes the log of the view go on from the decision. A log without a free place
// for the hits of this process does without these. The view's shard must be locked.
func (s *Store) continueLogLocked(v *view, c *store.Charge, to *store.State, d *algorithms.Decision, now algorithms.Instant, age age) {
	own := to.Own()
	used := c.Limit.Capacity() - min(d.Remaining, c.Limit.Capacity())
	if !d.Allowed && (c.CountRejected || c.Hits == 0) {
		used++ // the key is past its limit
	}
	left := *d
	if age == same && v.found {
		if _, mine := v.log.Decide(c.Limit, now, algorithms.Pending{}, 0, false); d.Remaining > mine.Remaining {
			if own.Hits == 0 {
				return
			}
			if left, used = mine, c.Limit.Capacity()-mine.Remaining; !mine.Allowed {
				used++
			}
		}
	}
	before := v.log.Size()
	var r room
	defer s.giveBack(&r)
	if !v.found || !s.claim(&r, placesOf(v.log.SizeAfterContinue())-placesOf(before)) {
		own = algorithms.OwnHits{}
	}
	v.limit = c.Limit
	newest := now - algorithms.Instant(c.Limit.Period-min(left.ResetAfter, c.Limit.Period))
	v.log.Continue(c.Limit, algorithms.LogEntry{At: newest, Hits: used}, own, now)
	switch {
	case !v.found && !v.log.Unused():
		s.rememberLocked(v, 1+placesOf(v.log.Size()), now)
	case !v.found:
	default:
		if more := placesOf(v.log.Size()) - placesOf(before); more > 0 && r.held >= more {
			r.held -= more
		} else {
			s.metrics.places.Add(int64(more))
		}
		if v.log.Unused() {
			s.metrics.places.Add(-int64(v.shard.forgetLocked(v.key)))
		} else {
			v.shard.updateLocked(v, now)
		}
	}
}

// rememberLocked adds the key of the view, if its shard has room or can forget a key. The view's
// shard must be locked.
func (s *Store) rememberLocked(v *view, places int, now algorithms.Instant) {
	var r room
	r.refuseLarger(s, places, true)
	if !r.full && s.claimLocked(&r, want{key: v.key, places: places, adds: true}, now) && !r.full {
		r.held -= v.shard.insertLocked(v, now)
	}
	s.giveBack(&r)
}

// heard is the instant of the newest answer about a key, by the clock of the other store.
type heard struct {
	hi  uint64 // of the key's digest; 0: no key
	now algorithms.Instant
}

// age says how an answer stands to the answers about the same key that a shard remembers.
type age uint8

const (
	newer age = iota // or the shard remembers no other
	same             // of the same instant: the answer that leaves less counts
	older
)

const (
	heards = 16 // remembered in each shard
	// overtakes is the longest time by which an answer can overtake another one. If the clock of the
	// other store goes back by more, its answers count at once.
	overtakes = time.Second
)

// hearLocked notes an answer about a key. Answers of one connection wake several goroutines, so an
// older answer can come after a newer one. mu must be held.
func (sh *shard) hearLocked(key digest, now algorithms.Instant) age {
	if sh.heard == nil {
		sh.heard = make([]heard, heards)
	}
	h := &sh.heard[key.hi%heards]
	if h.hi == key.hi {
		switch {
		case now == h.now:
			return same
		case now < h.now && h.now.Sub(now) < overtakes:
			return older
		}
	}
	*h = heard{key.hi, now}
	return newer
}

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
	used, until := c.Limit.Requests-uint32(min(d.Remaining, uint64(c.Limit.Requests))), now.Add(d.ResetAfter)
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
