package memstore

import (
	"sync"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// shard is a part of the store with a lock of its own. A transaction over several shards locks them
// in ascending order; a goroutine that makes room or sweeps holds one lock at a time. The fields of
// every charge stand first, to lie on one cache line. The size is a multiple of 64, so that the
// next shard's lock lies on another one.
type shard struct {
	mu         sync.Mutex // guards all below
	latest     algorithms.Instant
	epoch      int64              // of the clock that told the instants of the states
	nextReturn algorithms.Instant // no hits of holders come back before; 0: none are to come back
	table      table
	limits     limits
	logs       logs
	candidates candidates
	heard      []heard // see Continue; nil before the first
	holders    holders
}

// maxShardKeys is the bound of keys in a shard, so that each key can have a limit of its own. One
// number of limits stays free for the moment in which a key changes its limit.
const maxShardKeys = 1<<limitBits - 1

// roomLocked returns the number of new keys that the shard can number. mu must be held.
func (sh *shard) roomLocked() int { return maxShardKeys - int(sh.table.count) }

// instantLocked returns the instant of a transaction: now, but never earlier than one before it. mu
// must be held.
func (sh *shard) instantLocked(s *Store) algorithms.Instant {
	return sh.instantOfLocked(s, s.clock.Load())
}

// instantOfLocked is instantLocked by a clock that was loaded while mu was held. mu must be held.
func (sh *shard) instantOfLocked(s *Store, c *clock) algorithms.Instant {
	if sh.epoch != c.epoch {
		sh.followLocked(s, c)
	}
	sh.latest = max(sh.latest, c.now())
	if sh.nextReturn != 0 && sh.nextReturn <= sh.latest {
		s.runOutLocked(sh)
	}
	return sh.latest
}

// takeKnownLocked applies the only charge of a request without a view. takeKnownLocked reports
// false and changes nothing unless this is the usual case. Then the shard remembers the key under
// the same limit, and there is no refund and no further place. mu must be held.
func (sh *shard) takeKnownLocked(s *Store, key digest, c *store.Charge, d *algorithms.Decision, now algorithms.Instant) bool {
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
	switch c.Limit.Algorithm {
	case algorithms.Concurrency:
		return false
	case algorithms.SlidingWindowLog:
		log := sh.logs.of(slot.state)
		p, decided := log.Decide(c.Limit, now, algorithms.Pending{}, c.Hits, c.CountRejected)
		before := log.Size()
		if log.SizeAfter(c.Limit, now, p) > before {
			return false
		}
		log.Apply(c.Limit, now, p)
		if after := log.Size(); after < before {
			s.metrics.places.Add(int64(placesOf(after) - placesOf(before)))
		}
		*d = decided
		slot.state = logStateOf(slot.state).after(log, &c.Limit, *d)
	default:
		slot.state, *d = algorithms.Charge(c.Limit, slot.state, now, c.Hits, algorithms.Counting(c.CountRejected))
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
	if sh.candidates.whole() {
		sh.noteLocked(place, now)
	}
}

// commitLocked makes the view the key's state. A new key, and a log that grows, take places of the
// room. If the room says that no log may grow, further hits join the newest ones. mu must be held.
func (sh *shard) commitLocked(s *Store, v *view, now algorithms.Instant, r *room) {
	before := v.heldLocked()
	if v.log != nil {
		if v.found && r.tight {
			s.joinLocked(v, now)
		} else {
			v.log.Apply(v.limit, now, v.pending)
		}
	}
	switch {
	case v.grows():
		r.held -= sh.insertLocked(v, now)
	case !v.found:
	case v.unused():
		s.metrics.places.Add(-int64(before))
		sh.forgetLocked(v.key)
	case v.log == nil:
		sh.updateLocked(v, now)
	default:
		if more := v.heldLocked() - before; more > 0 {
			r.held -= more
		} else if more < 0 {
			s.metrics.places.Add(int64(more))
		}
		sh.updateLocked(v, now)
	}
}

// joinLocked applies the pending hits of a log that must not grow. mu must be held.
func (s *Store) joinLocked(v *view, now algorithms.Instant) {
	if v.log.SizeAfter(v.limit, now, v.pending) > v.log.Size() {
		s.metrics.joined.Add(1)
	}
	v.log.ApplyInPlace(v.limit, now, v.pending)
}

// insertLocked adds the key of the view, and returns the places that the key takes. mu must be
// held.
func (sh *shard) insertLocked(v *view, now algorithms.Instant) (places int) {
	places = 1
	if v.log != nil {
		v.state = sh.logs.hold(v.log)
		places += placesOf(v.log.Size())
	}
	place, _ := sh.table.find(v.key)
	place = sh.table.insert(place, v.key, v.state, sh.limits.hold(v.limit), v.denied)
	if v.log != nil {
		sh.summarizeLocked(&sh.table.slots[place], now)
	}
	if len(sh.candidates.list) > 0 || sh.candidates.whole() {
		sh.noteLocked(place, now)
	}
	return places
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
	if sh.candidates.whole() {
		sh.noteLocked(place, now)
	}
}

// removeLocked forgets the key at that place of the table, and returns the places that the key took
// in the store. mu must be held.
func (sh *shard) removeLocked(place int) (places int) {
	places = sh.releaseLocked(&sh.table.slots[place])
	sh.table.remove(place)
	return places
}

// releaseLocked gives up the numbers of a slot that goes, and returns its places. mu must be held.
func (sh *shard) releaseLocked(s *slot) (places int) {
	places = sh.placesLocked(s)
	number := s.limit()
	switch sh.limits.of(number).Algorithm {
	case algorithms.SlidingWindowLog:
		sh.logs.release(s.state)
	case algorithms.Concurrency:
		l := lineOf(s.state)
		sh.holders.expire(&l, sh.latest)
		sh.holders.leaveAll(&l)
	default:
	}
	sh.limits.release(number)
	return places
}

// forgetLocked forgets a key and returns the places that the key took; 0 if the shard does not
// remember the key. mu must be held.
func (sh *shard) forgetLocked(key digest) (places int) {
	place, ok := sh.table.find(key)
	if !ok {
		return 0
	}
	return sh.removeLocked(place)
}

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
func (v *view) take(c *store.Charge, hits int64, now algorithms.Instant, excess algorithms.Excess) (d algorithms.Decision) {
	was := v.limit
	switch {
	case v.log != nil:
		v.limit = c.Limit
		v.pending, d = v.log.Decide(c.Limit, now, v.pending, hits, excess != algorithms.Refuse)
	case was.Algorithm == algorithms.Concurrency:
		v.limit = c.Limit
		return v.takeSlots(c, hits, now)
	default:
		v.state, v.limit, d = algorithms.TakeAs(v.limit, c.Limit, v.state, now, hits, excess)
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
