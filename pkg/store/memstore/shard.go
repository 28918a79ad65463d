package memstore

import (
	"sync"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// shard is a part of the store with a lock of its own. A transaction over several shards locks them in ascending order; a
// goroutine that makes room or sweeps holds one lock at a time. The fields of every charge stand first, to lie on one cache line.
type shard struct {
	mu      sync.Mutex // guards all below
	latest  algorithms.Instant
	table   table
	limits  limits
	nearest nearest
	logs    map[digest]*logState
	offer   *offer // set once in New

	_ [shardPad]byte // keeps the next shard's lock off this shard's cache lines
}

// shardPad makes the size of a shard a multiple of 64.
const shardPad = 16

// logState is the state of a sliding_window_log key.
type logState struct {
	log   algorithms.Log
	limit algorithms.Limit // of the last charge
}

// view is a key's state within a transaction, with the charges so far.
type view struct {
	key   digest
	shard *shard
	place int              // in the shard's table, as long as nothing moved there
	found bool             // the shard remembers the key
	limit algorithms.Limit // of the state

	state   algorithms.State   // of every algorithm but sliding_window_log
	log     *logState          // of sliding_window_log: the log of the key, or a new one; not nil
	pending algorithms.Pending // charges on top of log
}

// instantLocked returns the instant of a transaction: now, but never earlier than one before it. mu must be held.
func (sh *shard) instantLocked(now algorithms.Instant) algorithms.Instant {
	sh.latest = max(sh.latest, now)
	return sh.latest
}

// loadLocked returns the view of a key. limit is the limit of the first charge. mu must be held.
func (sh *shard) loadLocked(key digest, limit *algorithms.Limit) view {
	v := view{key: key, shard: sh, limit: *limit}
	if limit.Algorithm == algorithms.SlidingWindowLog {
		if v.log, v.found = sh.logs[key]; !v.found {
			v.log = new(logState)
		}
		return v
	}
	v.place, v.found = sh.table.find(key)
	if v.found {
		slot := &sh.table.slots[v.place]
		v.state, v.limit = slot.state, *sh.limits.of(slot.limit())
	}
	return v
}

// takeKnownLocked applies the only charge of a request without a view. It reports false and changes nothing unless this is the usual
// case: no refund, and a key that the shard remembers under the same limit. mu must be held.
func (sh *shard) takeKnownLocked(key digest, c *store.Charge, d *algorithms.Decision, now algorithms.Instant) bool {
	if sh.nearest.kept || c.Hits < 0 {
		return false
	}
	if c.Limit.Algorithm == algorithms.SlidingWindowLog {
		state := sh.logs[key]
		if state == nil {
			return false
		}
		state.limit = c.Limit
		*d = state.log.Take(c.Limit, now, c.Hits, c.CountRejected)
		return true
	}
	place, found := sh.table.find(key)
	if !found {
		return false
	}
	slot := &sh.table.slots[place]
	if *sh.limits.of(slot.limit()) != c.Limit {
		return false
	}
	slot.state, *d = algorithms.Take(c.Limit, slot.state, now, c.Hits, c.CountRejected)
	return true
}

// take applies hits of the charge to the view and returns the decision.
func (v *view) take(c *store.Charge, hits int64, now algorithms.Instant, countRejected bool) (d algorithms.Decision) {
	if v.log != nil {
		v.limit = c.Limit
		v.pending, d = v.log.log.Decide(c.Limit, now, v.pending, hits, countRejected)
		return d
	}
	v.state, v.limit, d = algorithms.TakeAs(v.limit, c.Limit, v.state, now, hits, countRejected)
	return d
}

// used reports whether the key must be remembered.
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
		sh.commitLogLocked(s, v, now, r)
		return
	}
	if v.found && (v.place >= len(sh.table.slots) || sh.table.slots[v.place].key() != v.key) {
		v.place, _ = sh.table.find(v.key)
	}
	switch {
	case v.found && !v.used():
		sh.removeLocked(v.place)
		s.metrics.keys.Add(-1)
		return
	case v.found:
		slot := &sh.table.slots[v.place]
		if number := slot.limit(); *sh.limits.of(number) != v.limit {
			slot.setLimit(sh.limits.hold(v.limit))
			sh.limits.release(number)
		}
		slot.state = v.state
	case v.used():
		place, _ := sh.table.find(v.key)
		sh.table.insert(place, v.key, v.state, sh.limits.hold(v.limit))
		r.held--
	default:
		return
	}
	if sh.nearest.kept {
		sh.noteLocked(v.key, algorithms.IdleAt(v.limit, v.state))
	}
}

func (sh *shard) commitLogLocked(s *Store, v *view, now algorithms.Instant, r *room) {
	if !v.found && !v.used() {
		return
	}
	state := v.log
	if !v.found {
		if sh.logs == nil {
			sh.logs = make(map[digest]*logState)
		}
		sh.logs[v.key] = state
		r.held--
	}
	state.limit = v.limit
	state.log.Apply(v.limit, now, v.pending)
	if state.log.Unused() {
		delete(sh.logs, v.key)
		s.metrics.keys.Add(-1)
		return
	}
	if sh.nearest.kept {
		sh.noteLocked(v.key, state.log.IdleAt(v.limit))
	}
}

// removeLocked forgets the key at that place of the table. mu must be held.
func (sh *shard) removeLocked(place int) {
	sh.limits.release(sh.table.slots[place].limit())
	sh.table.remove(place)
}

// forgetLocked forgets a key and reports whether it was there. mu must be held.
func (sh *shard) forgetLocked(key digest) bool {
	if _, ok := sh.logs[key]; ok {
		delete(sh.logs, key)
		return true
	}
	place, ok := sh.table.find(key)
	if ok {
		sh.removeLocked(place)
	}
	return ok
}
