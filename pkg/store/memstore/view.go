package memstore

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// view is a key's state within a transaction, with the charges so far.
type view struct {
	key    digest
	shard  *shard
	place  int              // in the shard's table, as long as nothing moved there
	found  bool             // the shard remembers the key
	denied deniedHits       // of the key
	limit  algorithms.Limit // of the state

	state   algorithms.State   // of every algorithm but sliding_window_log; of concurrency the line of the slot
	slots   algorithms.Slots   // of concurrency, with the charges so far
	log     *algorithms.Log    // of sliding_window_log: the log of the key, or a new one; not nil
	pending algorithms.Pending // charges on top of log
}

// loadLocked returns the view of a key. limit is the limit of the first charge. mu must be held.
func (sh *shard) loadLocked(key digest, limit *algorithms.Limit, now algorithms.Instant) (v view) {
	v.loadLocked(sh, key, limit, now)
	return v
}

// loadLocked makes v, which must be zero, the view of a key. mu of the shard must be held.
func (v *view) loadLocked(sh *shard, key digest, limit *algorithms.Limit, now algorithms.Instant) {
	v.key, v.shard, v.limit = key, sh, *limit
	v.place, v.found = sh.table.find(key)
	logs := limit.Algorithm == algorithms.SlidingWindowLog
	if !v.found {
		if logs {
			v.log = new(algorithms.Log)
		}
		return
	}
	slot := &sh.table.slots[v.place]
	v.denied, v.limit = slot.denied(), *sh.limits.of(slot.limit())
	switch {
	case logs:
		v.log = sh.logs.of(slot.state)
	case limit.Algorithm == algorithms.Concurrency:
		l := sh.expireLocked(v.place, now)
		v.state = slot.state
		v.slots = sh.holders.slots(&l)
	default:
		v.state = slot.state
	}
}

// take applies hits of the charge to the view and returns the decision.
func (v *view) take(c *store.Charge, hits int64, now algorithms.Instant, countRejected bool) (d algorithms.Decision) {
	was := v.limit
	switch {
	case v.log != nil:
		v.limit = c.Limit
		v.pending, d = v.log.Decide(c.Limit, now, v.pending, hits, countRejected)
	case was.Algorithm == algorithms.Concurrency:
		v.limit = c.Limit
		return v.takeSlots(c, hits, now)
	default:
		v.state, v.limit, d = algorithms.TakeAs(v.limit, c.Limit, v.state, now, hits, countRejected)
	}
	if c.Limit.Requests == 0 && was.Requests > 0 {
		v.limit = was // a ban says nothing about the state: a key that is denied under its own limit stays denied
	}
	v.denied = v.denied.after(&c.Limit, hits, d.Allowed)
	return d
}

// used reports whether a new key must be remembered.
func (v *view) used() bool {
	switch {
	case v.log != nil:
		return v.pending.Adds()
	case v.limit.Algorithm == algorithms.Concurrency:
		return v.slots.Used > 0
	default:
		return !v.state.Unused()
	}
}

// grows reports whether committing the view adds a key to the store.
func (v *view) grows() bool { return !v.found && v.used() }

// unused reports whether the key of the committed view need not be remembered.
func (v *view) unused() bool {
	switch {
	case v.log != nil:
		return v.log.Unused()
	case v.limit.Algorithm == algorithms.Concurrency:
		return v.slots.Used == 0
	default:
		return v.state.Unused()
	}
}
