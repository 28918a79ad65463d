package memstore

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// The bound of a store is in places, so that the bound holds for memory too. A key takes one place,
// for its slot. A key of sliding_window_log takes further places for its log, rounded up: two with
// one instant.
const (
	// placeBytes is the memory of one place in bytes: a slot of 40 bytes in a table that is 0.78 full.
	// Growing leaves tables so full.
	placeBytes = 52
	// logBytes is the memory of a log without its entries, in bytes. The allocator rounds the Log up
	// to 64. There is a pointer of 8 bytes to the log, and a number of 4 bytes among the free ones.
	// Slices of both are up to twice as large as their content.
	logBytes = 64 + 2*8 + 2*4
)

// placesOf returns the places that a log takes whose entries have that many bytes, rounded up.
func placesOf(entries int) int { return (logBytes + entries + placeBytes - 1) / placeBytes }

// placesLocked returns the places that a slot takes. mu must be held.
func (sh *shard) placesLocked(s *slot) int {
	if sh.limits.of(s.limit()).Algorithm != algorithms.SlidingWindowLog {
		return 1
	}
	return 1 + placesOf(sh.logs.of(s.state).Size())
}

// heldLocked returns the places that the key of the view takes before the commit. mu must be held.
func (v *view) heldLocked() int {
	switch {
	case !v.found:
		return 0
	case v.log == nil:
		return 1
	default:
		return 1 + placesOf(v.log.Size())
	}
}

// wantsLocked returns the further places that the commit of the view takes. mu must be held.
func (v *view) wantsLocked(now algorithms.Instant) int {
	switch {
	case v.log == nil:
		if v.grows() {
			return 1
		}
		return 0
	case !v.found && !v.used():
		return 0
	default:
		after := v.log.SizeAfter(v.limit, now, v.pending)
		if v.found && after == v.log.Size() {
			return 0
		}
		return 1 + placesOf(after) - v.heldLocked()
	}
}

// room is the places that a transaction has claimed.
type room struct {
	held   int      // claimed and not yet taken
	full   bool     // too few keys could be forgotten: new keys are not remembered
	tight  bool     // too few keys could be forgotten, or room is full: logs do not grow
	spared []digest // logs that grow, by shard: they must not go to make room for themselves

	holds    int  // claimed places of holders
	holdFull bool // too few holders could be forgotten: new ones are not remembered

	surveyed int // keys that other shards looked at because their samples showed denied keys alone
}

// want is the further places that one key of a transaction needs.
type want struct {
	key    digest
	places int
	adds   bool // the key is new
}

// A long log grows by many places. These places come from all shards, so that the log's shard keeps
// its other keys, and nobody waits long for a shard.
const (
	nearby = 4  // keys that a shard forgets for one of its keys before other shards do
	others = 16 // keys that another shard forgets at once, which takes tens of microseconds
)

// maxSurveyed bounds the keys that other shards look at for one request when their samples show
// denied keys alone: some milliseconds. Then the key finds no room, and the next request looks on.
// Without the bound, one request looked at a million keys.
const maxSurveyed = 8192

// wantLocked returns the further places that the view needs. A view without room needs none. The
// view's shard must be locked.
func (r *room) wantLocked(s *Store, v *view, now algorithms.Instant) want {
	w := want{key: v.key, places: v.wantsLocked(now), adds: !v.found}
	if w.places > 0 {
		r.refuseLarger(s, v.heldLocked()+w.places, w.adds)
	}
	if r.tight && (r.full || !w.adds) {
		w.places = 0
	}
	return w
}

// refuseLarger refuses a key of more places than the whole store has, so that no other key goes in
// vain.
func (r *room) refuseLarger(s *Store, places int, adds bool) {
	if int64(places) > s.maxKeys {
		r.refuse(adds)
	}
}

// refuse notes that there is no room for a new key, or for a log to grow.
func (r *room) refuse(adds bool) {
	r.full = r.full || adds
	r.tight = true
}

// spare protects the logs that grow. The wants of logs must be in the order of shards.
func (r *room) spare(wants ...want) {
	r.spared = r.spared[:0]
	for i := range wants {
		if !wants[i].adds {
			r.spared = append(r.spared, wants[i].key)
		}
	}
}

// sparedIn returns the spared keys of a shard. A request may grow a thousand logs, and each shard
// has few of them.
func (s *Store) sparedIn(r *room, shard int) []digest {
	first, _ := slices.BinarySearchFunc(r.spared, shard, func(key digest, shard int) int { return s.shardNumber(key) - shard })
	end := first
	for end < len(r.spared) && s.shardNumber(r.spared[end]) == shard {
		end++
	}
	return r.spared[first:end]
}

// claim claims places until r holds n, or reports false if the store has too few.
func (s *Store) claim(r *room, n int) bool {
	if r.held >= n {
		return true
	}
	if !reserve(&s.metrics.places, int64(n-r.held), s.maxKeys) {
		return false
	}
	r.held = n
	return true
}

// reserve adds n to a count that has a bound, or reports false if the count would pass it.
func reserve(count *atomic.Int64, n, bound int64) bool {
	for {
		was := count.Load()
		if was+n > bound {
			return false
		}
		if count.CompareAndSwap(was, was+n) {
			return true
		}
	}
}

// giveBack returns the places that were not taken.
func (s *Store) giveBack(r *room) {
	if r.held > 0 {
		s.metrics.places.Add(-int64(r.held))
		r.held = 0
	}
	if r.holds > 0 {
		s.metrics.holds.Add(-int64(r.holds))
		r.holds = 0
	}
}

// claimLocked claims the places that a key of a locked shard wants. A full store, or a full shard,
// first forgets keys of that shard. claimLocked reports false if other shards must forget keys.
func (s *Store) claimLocked(r *room, w want, now algorithms.Instant) bool {
	shard := s.shardNumber(w.key)
	crowded := w.adds && s.shards[shard].roomLocked() < 1
	if !crowded && s.claim(r, w.places) {
		return true
	}
	r.spare(w)
	if crowded && !s.evictLocked(r, shard, now) {
		r.refuse(w.adds)
		return true
	}
	for range nearby {
		if s.claim(r, w.places) {
			return true
		}
		if !s.evictLocked(r, shard, now) {
			return false
		}
	}
	return s.claim(r, w.places)
}

// evictLocked forgets a key of a locked shard, so that r holds the key's places, or reports false.
func (s *Store) evictLocked(r *room, shard int, now algorithms.Instant) bool {
	places := s.shards[shard].evictLocked(s.sparedIn(r, shard), now)
	if places == 0 {
		return false
	}
	r.held += places
	s.metrics.evicted.Add(1)
	return true
}

// makeRoom forgets keys until r holds the places that all keys want. The new keys must stand first.
// Each shard makes room for its own keys. If each key of a shard is denied now, or after some keys,
// another shard makes room. If too few keys can be forgotten, r is full or tight. No shard may be
// locked.
func (s *Store) makeRoom(r *room, wants ...want) {
	r.spare(wants...)
	places := 0
	for i := range wants {
		w := &wants[i]
		places += w.places
		s.evictFor(r, s.shardNumber(w.key), places, nearby, s.now())
		for r.held < places {
			if !s.evictElsewhere(r, places) {
				r.refuse(w.adds)
				return
			}
		}
	}
}

// evictElsewhere forgets keys of any shard for so many places, or reports false, also after
// maxSurveyed keys. Each call starts at another shard, so that all shards give alike. A store full
// of denied keys has no shard to lock, so one look at the clock serves all shards.
func (s *Store) evictElsewhere(r *room, places int) bool {
	start, now := int(s.turn.Add(1)), s.now()
	for i := range s.shards {
		if r.surveyed >= maxSurveyed {
			break
		}
		if s.evictFor(r, (start+i)&(len(s.shards)-1), places, others, now) {
			return true
		}
	}
	return s.claim(r, places) // others may have given places back meanwhile
}

// evictFor forgets keys of a shard until r holds so many places, but at most that many keys.
// evictFor reports whether r then holds more places than before.
func (s *Store) evictFor(r *room, shard, places, most int, now algorithms.Instant) bool {
	if int64(now) < s.opens[shard].Load() {
		return false
	}
	before := r.held
	if s.claim(r, places) {
		return r.held > before
	}
	sh := &s.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now = sh.instantLocked(s)
	surveyed := sh.candidates.surveyed
	defer func() { r.surveyed += sh.candidates.surveyed - surveyed }()
	for range most {
		if !s.evictLocked(r, shard, now) || s.claim(r, places) {
			break
		}
	}
	return r.held > before
}

// full gives the decision on a charge of a new key that is not remembered.
func (s *Store) full(c *store.Charge, d *algorithms.Decision, now algorithms.Instant) {
	c.TellNoRoom()
	if s.onFull == Allow {
		s.metrics.allowed.Add(1)
		return
	}
	s.metrics.deniedNew.Add(1)
	opens := algorithms.Instant(never)
	for i := range s.opens {
		opens = min(opens, algorithms.Instant(s.opens[i].Load()))
	}
	wait := max(opens.Sub(now), time.Nanosecond)
	*d = algorithms.Decision{RetryAfter: wait, ResetAfter: wait}
}
