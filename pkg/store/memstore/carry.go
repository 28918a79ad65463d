package memstore

import (
	"math/bits"
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Hits that carry over from a limit to the one that replaced it, see store.Charge.Before. The mark
// of a key is an ordinary state of the key's shard, under a digest of both keys.

// carries reports whether hits carry over to a charge.
func carries(charges []store.Charge) bool {
	for i := range charges { // a function of slices would copy each charge
		if charges[i].Before != nil {
			return true
		}
	}
	return false
}

// former returns a charge of the same key under a former limit.
func former(f *store.Former) store.Charge { return store.Charge{Key: f.Key, Limit: f.Limit} }

// markOf returns the digest of the mark of a key, for a change to or from another key.
func markOf(key, other digest) digest {
	key.hi = max(bits.RotateLeft64(key.hi, 23)^other.hi*0x9e3779b97f4a7c15, 1)
	return key
}

// planFormers adds the shards of the former limits to the shards of the transaction.
func (t *transaction) planFormers(s *Store, charges []store.Charge) {
	for i := range charges {
		for n := range charges[i].Before {
			c := former(&charges[i].Before[n])
			t.shards = append(t.shards, s.shardNumber(s.digest(&c)))
		}
	}
	slices.Sort(t.shards)
	t.shards = slices.Compact(t.shards)
}

// carry carries hits over to charges that are then looked at.
func (s *Store) carry(charges []store.Charge) {
	s.whileLocked(charges, func(now algorithms.Instant) { s.carryLocked(charges, now, false) })
}

// whileLocked calls a function while the shards of the charges and of their former limits are
// locked.
func (s *Store) whileLocked(charges []store.Charge, do func(now algorithms.Instant)) {
	t, _ := s.scratch.Get().(*transaction)
	defer s.scratch.Put(t)
	t.plan(s, charges)
	t.planFormers(s, charges)
	now := t.lock(s)
	do(now)
	t.unlock(s)
}

// carryLocked carries hits over to the charges before their decision, in the order of Before. With
// back it carries hits over after the decision, in the other order. The shards of the charges and
// of the former limits must be locked.
func (s *Store) carryLocked(charges []store.Charge, now algorithms.Instant, back bool) {
	for i := range charges {
		c := &charges[i]
		for n := range c.Before {
			if back {
				n = len(c.Before) - 1 - n
			}
			f := &c.Before[n]
			if back && !f.Both {
				continue
			}
			from, to := former(f), taker(c, n)
			s.carryOneLocked(f, &from, &to, now)
		}
	}
}

// taker returns a charge of the key under the limit that takes the hits of former limit n.
func taker(c *store.Charge, n int) store.Charge {
	if at := c.Taker(n); at < len(c.Before) {
		return former(&c.Before[at])
	}
	return *c
}

// carryOneLocked carries hits over from one key to another. Both shards must be locked.
func (s *Store) carryOneLocked(f *store.Former, from, to *store.Charge, now algorithms.Instant) {
	if from.Limit.Algorithm == algorithms.Concurrency || to.Limit.Algorithm == algorithms.Concurrency {
		return
	}
	a, b := s.sideLocked(from, to, now), s.sideLocked(to, from, now)
	a.side.Parts, b.side.Parts = uint64(f.Parts), uint64(f.To)
	algorithms.Carry(&a.side, &b.side, now, f.Both)
	if !b.key.found {
		b.key.denied = a.key.denied
	}
	s.keepBothLocked(&a, &b, now)
}

// keepBothLocked puts two sides back into the store. The shards of both must be locked.
func (s *Store) keepBothLocked(a, b *carried, now algorithms.Instant) {
	s.keepLocked(a, now)
	s.keepLocked(b, now)
	s.addLocked(b, now)
	s.addLocked(a, now)
}

// carried is one side of a carry in the store, with the views of the key and of its mark.
type carried struct {
	side      algorithms.Side
	key, mark view
	places    [2]int // of the logs of key and mark, before
}

// sideLocked returns the side of a charge's key. The shard of the key must be locked.
func (s *Store) sideLocked(c, other *store.Charge, now algorithms.Instant) (a carried) {
	key := s.digest(c)
	sh := s.shardOf(key)
	a.key.loadLocked(sh, key, &c.Limit, now)
	a.mark.loadLocked(sh, markOf(key, s.digest(other)), &c.Limit, now)
	a.side.Limit = c.Limit
	if a.key.log != nil {
		a.side.Log, a.side.MarkLog = a.key.log, a.mark.log
		a.places = [2]int{a.key.heldLocked(), a.mark.heldLocked()}
		return a
	}
	if a.key.found {
		a.side.State, a.side.Was = a.key.state, a.key.limit
	}
	if a.mark.found {
		a.side.Mark, a.side.MarkWas = a.mark.state, a.mark.limit
	}
	return a
}

// keepLocked puts the states of a side that the store has back into the store. The shard of the key
// must be locked.
func (s *Store) keepLocked(a *carried, now algorithms.Instant) {
	if a.key.log == nil {
		a.key.change(a.side.State, a.side.Was)
		a.mark.change(a.side.Mark, a.side.MarkWas)
	}
	s.keepOneLocked(&a.key, a.places[0], now)
	s.keepOneLocked(&a.mark, a.places[1], now)
}

// change makes a state the state of the view.
func (v *view) change(state algorithms.State, limit algorithms.Limit) {
	if v.state = state; !state.Unused() {
		v.limit = limit
	}
}

// keepOneLocked keeps the view of a key that took some places before. The view's shard must be
// locked.
func (s *Store) keepOneLocked(v *view, before int, now algorithms.Instant) {
	if !v.found {
		return
	}
	if v.log != nil {
		s.metrics.places.Add(int64(v.heldLocked() - before))
	}
	if v.unused() {
		s.metrics.places.Add(-int64(v.shard.forgetLocked(v.key)))
	} else {
		v.shard.updateLocked(v, now)
	}
}

// addLocked adds the new states of a side. A state without room is not remembered. Call addLocked
// after keepLocked of both sides: room for a new state can take the place of another one. The shard
// of the key must be locked.
func (s *Store) addLocked(a *carried, now algorithms.Instant) {
	for _, v := range []*view{&a.key, &a.mark} {
		switch {
		case v.found || v.unused():
		case v.log != nil:
			s.rememberLocked(v, 1+placesOf(v.log.Size()), now)
		default:
			s.rememberLocked(v, 1, now)
		}
	}
}

// knows notes that the state of a charge has all hits of its former limits.
func (s *Store) knows(c *store.Charge) {
	s.whileLocked([]store.Charge{*c}, func(now algorithms.Instant) {
		for n := len(c.Before) - 1; n >= 0; n-- {
			from, to := former(&c.Before[n]), taker(c, n)
			a, b := s.sideLocked(&from, &to, now), s.sideLocked(&to, &from, now)
			a.side.Know(now)
			b.side.Know(now)
			s.keepBothLocked(&a, &b, now)
		}
	})
}
