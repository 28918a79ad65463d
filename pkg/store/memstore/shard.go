package memstore

import (
	"sync"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// shard is a part of the store with a lock of its own. A transaction over several shards locks them in ascending order; a
// goroutine that makes room or sweeps holds one lock at a time. The fields of every charge stand first, to lie on one cache line. The size is
// a multiple of 64, so that the next shard's lock lies on another one.
type shard struct {
	mu         sync.Mutex // guards all below
	latest     algorithms.Instant
	epoch      int64 // of the clock that told the instants of the states
	table      table
	limits     limits
	logs       logs
	candidates candidates
}

// maxShardKeys is the bound of keys in a shard, so that each key can have a limit of its own. One number of limits stays free for the
// moment in which a key changes its limit.
const maxShardKeys = 1<<limitBits - 1

// roomLocked returns the number of new keys that the shard can number. mu must be held.
func (sh *shard) roomLocked() int { return maxShardKeys - int(sh.table.count) }

// view is a key's state within a transaction, with the charges so far.
type view struct {
	key    digest
	shard  *shard
	place  int              // in the shard's table, as long as nothing moved there
	found  bool             // the shard remembers the key
	denied deniedHits       // of the key
	limit  algorithms.Limit // of the state

	state   algorithms.State   // of every algorithm but sliding_window_log
	log     *algorithms.Log    // of sliding_window_log: the log of the key, or a new one; not nil
	pending algorithms.Pending // charges on top of log
}

// instantLocked returns the instant of a transaction: now, but never earlier than one before it. mu must be held.
func (sh *shard) instantLocked(s *Store) algorithms.Instant {
	return sh.instantOfLocked(s, s.clock.Load())
}

// instantOfLocked is instantLocked by a clock that was loaded while mu was held. mu must be held.
func (sh *shard) instantOfLocked(s *Store, c *clock) algorithms.Instant {
	if sh.epoch != c.epoch {
		sh.followLocked(s, c)
	}
	sh.latest = max(sh.latest, c.now())
	return sh.latest
}

// loadLocked returns the view of a key. limit is the limit of the first charge. mu must be held.
func (sh *shard) loadLocked(key digest, limit *algorithms.Limit) view {
	v := view{key: key, shard: sh, limit: *limit}
	v.place, v.found = sh.table.find(key)
	logs := limit.Algorithm == algorithms.SlidingWindowLog
	if !v.found {
		if logs {
			v.log = new(algorithms.Log)
		}
		return v
	}
	slot := &sh.table.slots[v.place]
	v.denied, v.limit = slot.denied(), *sh.limits.of(slot.limit())
	if logs {
		v.log = sh.logs.of(slot.state)
	} else {
		v.state = slot.state
	}
	return v
}

// takeKnownLocked applies the only charge of a request without a view. takeKnownLocked reports false and changes nothing unless this is
// the usual case: no refund, and a key that the shard remembers under the same limit. mu must be held.
func (sh *shard) takeKnownLocked(key digest, c *store.Charge, d *algorithms.Decision, now algorithms.Instant) bool {
	if c.Hits < 0 {
		return false
	}
	place, found := sh.table.find(key)
	if !found {
		return false
	}
	slot := &sh.table.slots[place]
	if *sh.limits.of(slot.limit()) != c.Limit {
		return false
	}
	if c.Limit.Algorithm == algorithms.SlidingWindowLog {
		log := sh.logs.of(slot.state)
		*d = log.Take(c.Limit, now, c.Hits, c.CountRejected)
		slot.state = logStateOf(slot.state).after(log, &c.Limit, *d)
	} else {
		slot.state, *d = algorithms.Take(c.Limit, slot.state, now, c.Hits, c.CountRejected)
	}
	if !d.Allowed || slot.denied() != 0 {
		sh.markLocked(place, c, d.Allowed, now)
	}
	return true
}

// markLocked keeps the denied hits of the key at that place after a charge. mu must be held.
func (sh *shard) markLocked(place int, c *store.Charge, allowed bool, now algorithms.Instant) {
	slot := &sh.table.slots[place]
	was := slot.denied()
	is := was.after(&c.Limit, c.Hits, allowed)
	if is == was {
		return
	}
	slot.setDenied(is)
	if sh.candidates.whole {
		sh.noteLocked(place, now)
	}
}

// take applies hits of the charge to the view and returns the decision.
func (v *view) take(c *store.Charge, hits int64, now algorithms.Instant, countRejected bool) (d algorithms.Decision) {
	if v.log != nil {
		v.limit = c.Limit
		v.pending, d = v.log.Decide(c.Limit, now, v.pending, hits, countRejected)
	} else {
		v.state, v.limit, d = algorithms.TakeAs(v.limit, c.Limit, v.state, now, hits, countRejected)
	}
	v.denied = v.denied.after(&c.Limit, hits, d.Allowed)
	return d
}

// used reports whether a new key must be remembered.
func (v *view) used() bool {
	if v.log != nil {
		return v.pending.Adds()
	}
	return !v.state.Unused()
}

// grows reports whether committing the view adds a key to the store.
func (v *view) grows() bool { return !v.found && v.used() }

// commitLocked makes the view the key's state. A new key takes one of the room's places. mu must be held.
func (sh *shard) commitLocked(s *Store, v *view, now algorithms.Instant, r *room) {
	if v.log != nil {
		v.log.Apply(v.limit, now, v.pending)
	}
	switch {
	case v.grows():
		sh.insertLocked(v, now)
		r.held--
	case !v.found:
	case v.unused():
		sh.forgetLocked(v.key)
		s.metrics.keys.Add(-1)
	default:
		sh.updateLocked(v, now)
	}
}

// unused reports whether the key of the committed view need not be remembered.
func (v *view) unused() bool {
	if v.log != nil {
		return v.log.Unused()
	}
	return v.state.Unused()
}

// insertLocked adds the key of the view. mu must be held.
func (sh *shard) insertLocked(v *view, now algorithms.Instant) {
	if v.log != nil {
		v.state = sh.logs.hold(v.log)
	}
	place, _ := sh.table.find(v.key)
	place = sh.table.insert(place, v.key, v.state, sh.limits.hold(v.limit), v.denied)
	if v.log != nil {
		sh.summarizeLocked(&sh.table.slots[place], now)
	}
	if len(sh.candidates.list) > 0 || sh.candidates.whole {
		sh.noteLocked(place, now)
	}
}

// updateLocked changes the state of the view's key. mu must be held.
func (sh *shard) updateLocked(v *view, now algorithms.Instant) {
	place := v.place
	if place >= len(sh.table.slots) || sh.table.slots[place].key() != v.key {
		place, _ = sh.table.find(v.key)
	}
	slot := &sh.table.slots[place]
	if number := slot.limit(); *sh.limits.of(number) != v.limit {
		slot.setLimit(sh.limits.hold(v.limit))
		sh.limits.release(number)
	}
	slot.setDenied(v.denied)
	if v.log != nil {
		sh.summarizeLocked(slot, now)
	} else {
		slot.state = v.state
	}
	if sh.candidates.whole {
		sh.noteLocked(place, now)
	}
}

// removeLocked forgets the key at that place of the table. mu must be held.
func (sh *shard) removeLocked(place int) {
	sh.releaseLocked(&sh.table.slots[place])
	sh.table.remove(place)
}

// releaseLocked gives up the numbers of a slot that goes. mu must be held.
func (sh *shard) releaseLocked(s *slot) {
	number := s.limit()
	if !sh.limits.of(number).Algorithm.HasState() {
		sh.logs.release(s.state)
	}
	sh.limits.release(number)
}

// forgetLocked forgets a key and reports whether it was there. mu must be held.
func (sh *shard) forgetLocked(key digest) bool {
	place, ok := sh.table.find(key)
	if ok {
		sh.removeLocked(place)
	}
	return ok
}
