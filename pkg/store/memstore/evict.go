package memstore

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// evictLocked forgets the first candidate of the shard and returns the places that the key took. 0:
// each key of the shard is denied now or spared. mu must be held.
func (sh *shard) evictLocked(now algorithms.Instant) (places int) {
	q := &sh.candidates
	if int64(now) < q.opens.Load() {
		return 0
	}
	if !q.whole {
		sh.sampleLocked(sample, now)
	}
	for len(q.list) > 0 || sh.refillLocked(now) {
		last := len(q.list) - 1
		then := q.list[last]
		place, found := sh.table.find(then.key)
		if !found {
			q.list = q.list[:last]
			continue
		}
		c := sh.candidateLocked(place, now)
		if c.compare(&then) > 0 { // charged since
			q.list = q.list[:last]
			q.add(c)
			continue
		}
		if c.opens > now {
			q.open(c.opens)
			return 0
		}
		q.list = q.list[:last]
		return sh.removeLocked(place)
	}
	q.open(never)
	return 0
}

// evictForLocked is evictLocked for keys that need further places themselves: the shard spares
// these keys. mu must be held.
func (sh *shard) evictForLocked(keys []digest, now algorithms.Instant) (places int) {
	if len(keys) == 0 {
		return sh.evictLocked(now)
	}
	q := &sh.candidates
	q.spared = keys
	places = sh.evictLocked(now)
	q.spared = nil
	if !q.whole {
		return places // samples will find them again
	}
	for _, key := range keys { // the list has them as denied keys
		if place, found := sh.table.find(key); found {
			sh.noteLocked(place, now)
		}
	}
	return places
}

// refillLocked fills the empty list from a sample, or else from the whole shard, and reports
// whether there is a candidate. mu must be held.
func (sh *shard) refillLocked(now algorithms.Instant) bool {
	q := &sh.candidates
	if q.whole && q.bound.opens == never {
		return false
	}
	q.whole = false
	sh.sampleLocked(first, now)
	if len(q.list) == 0 {
		sh.surveyLocked(now)
	}
	return len(q.list) > 0
}

// sampleLocked looks at some keys, from the hand on. Digests order the table, so neighbors are keys
// at random. mu must be held.
func (sh *shard) sampleLocked(keys int, now algorithms.Instant) {
	q, slots := &sh.candidates, sh.table.slots
	for range slots {
		if q.hand++; q.hand >= len(slots) {
			q.hand = 0
		}
		if slots[q.hand].empty() {
			continue
		}
		q.add(sh.candidateLocked(q.hand, now))
		if keys--; keys == 0 {
			return
		}
	}
}

// surveyLocked looks at every key and lists the first ones. mu must be held.
func (sh *shard) surveyLocked(now algorithms.Instant) {
	q := &sh.candidates
	q.surveyed += int(sh.table.count)
	q.whole, q.bound = true, candidate{opens: never}
	q.list = slices.Grow(q.list[:0], min(int(sh.table.count), 2*listed))
	for place := range sh.table.slots {
		if sh.table.slots[place].empty() {
			continue
		}
		c := sh.candidateLocked(place, now)
		if c.compare(&q.bound) >= 0 {
			continue
		}
		if len(q.list) == 2*listed {
			q.sort()
		}
		q.list = append(q.list, c)
	}
	q.sort()
}

// sort sorts the list and keeps the first candidates.
func (q *candidates) sort() {
	slices.SortFunc(q.list, func(a, b candidate) int { return b.compare(&a) })
	q.trim()
}

// noteLocked adds the key at that place to the list, if the list holds a key that goes later. A new
// key must be noted. With a list of the whole shard, so must a key that may go sooner than before.
// mu must be held.
func (sh *shard) noteLocked(place int, now algorithms.Instant) {
	sh.candidates.add(sh.candidateLocked(place, now))
}

// candidateLocked looks at the key at that place. Under a limit of 0 alone a key is denied also
// without a state, so the state can go. mu must be held.
func (sh *shard) candidateLocked(place int, now algorithms.Instant) candidate {
	sh.candidates.seen++
	s := &sh.table.slots[place]
	l := sh.limits.of(s.limit())
	c := candidate{key: s.key(), capacity: l.Capacity()}
	if slices.Contains(sh.candidates.spared, c.key) {
		c.opens = never - 1 // as a key that is denied, longer than any other
		return c
	}
	if l.Algorithm == algorithms.Concurrency { // may go once all holders have run out: without the key they would hold nothing
		line := lineOf(s.state)
		c.capacity = max(c.capacity, 1)
		if slots := sh.holders.slots(&line); slots.Used > 0 && slots.Last > now {
			c.opens = slots.Last
		}
		return c
	}
	if l.Requests == 0 {
		c.capacity = 1
		return c
	}
	hits := s.denied().of(l)
	if l.Algorithm == algorithms.SlidingWindowLog {
		log := logStateOf(s.state)
		c.idle, c.used = log.idle, min(log.used, c.capacity)
		if c.idle <= now {
			c.used = 0
		}
		if uint64(c.capacity-c.used) >= hits {
			return c // not denied, as hits that expire only make room
		}
	}
	d := sh.decideLocked(s, l, now, 0)
	c.idle, c.used = now.Add(d.ResetAfter), c.capacity-d.Remaining
	if uint64(d.Remaining) < hits {
		c.opens = now.Add(sh.decideLocked(s, l, now, int64(hits)).RetryAfter)
	}
	return c
}

// decideLocked returns the decision for hits of a key under the limit of its last charge. mu must
// be held.
func (sh *shard) decideLocked(s *slot, l *algorithms.Limit, now algorithms.Instant, hits int64) (d algorithms.Decision) {
	if l.Algorithm.HasState() {
		_, d = algorithms.Take(*l, s.state, now, hits, false)
	} else {
		_, d = sh.logs.of(s.state).Decide(*l, now, algorithms.Pending{}, hits, false)
	}
	return d
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
	places := s.shards[shard].evictForLocked(s.sparedIn(r, shard), now)
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

// evict forgets a key of a shard, or reports false.
func (s *Store) evict(r *room, shard int) bool {
	sh := &s.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return s.evictLocked(r, shard, sh.instantLocked(s))
}

// full gives the decision for a new key that is not remembered.
func (s *Store) full(d *algorithms.Decision, now algorithms.Instant) {
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

// candidate is a key as it stood when the shard looked at the key.
type candidate struct {
	key            digest
	opens          algorithms.Instant // 0: the key may go; else the key is denied, and its last denied hits pass then
	idle           algorithms.Instant // when the key is idle
	used, capacity uint32             // hits; a part of a used hit counts as one
}

// compare orders candidates: first the keys that may go, then the keys that are denied now. Of keys
// that may go, first the key that has used the smaller part of its limit, exactly. Of equal parts,
// first the key that is idle sooner. Denied keys stand in the order in which they open.
func (c *candidate) compare(d *candidate) int {
	if c.opens != d.opens {
		return cmp.Compare(c.opens, d.opens)
	}
	used, other := uint64(c.used)*uint64(d.capacity), uint64(d.used)*uint64(c.capacity)
	if used != other {
		return cmp.Compare(used, other)
	}
	return cmp.Compare(c.idle, d.idle)
}

// candidates is the keys that a shard forgets next to make room. The list holds the first keys of
// samples, of keys that may go. If the samples find no such key, the list holds the first keys of
// the whole shard. The list is empty until the store is full. Not safe for concurrent use, but for
// opens.
type candidates struct {
	list   []candidate   // the first to go is last
	hand   int           // the place in the table where the next sample starts
	whole  bool          // each key of the shard is in the list, or not before bound
	bound  candidate     // with whole; opens is never if each key is in the list
	opens  *atomic.Int64 // set in New: no key of the shard may go before this instant; 0: maybe a key may go now
	seen   uint64        // keys that the shard has looked at to make room
	spared []digest      // keys that need the room themselves: they must not go now

	surveyed int // keys that the shard has looked at in passes over all keys
}

// never is the instant at which a key opens that does not exist.
const never = math.MaxInt64

const (
	sample = 4   // keys that the shard looks at to forget one
	first  = 32  // keys that the shard looks at when the list is empty
	kept   = 16  // length of the list with samples
	listed = 256 // length of the list of the whole shard
)

// add puts a candidate into the list after its equals, unless the list is full of candidates before
// it.
func (q *candidates) add(c candidate) {
	if q.whole {
		q.addToWhole(c)
		return
	}
	if c.opens != 0 || len(q.list) >= kept && c.compare(&q.list[0]) >= 0 {
		return
	}
	hole := 0 // for the candidate: the place of the same key, a new place, or the place of the last to go
	for hole < len(q.list) && q.list[hole].key != c.key {
		hole++
	}
	switch {
	case hole < len(q.list):
	case hole < kept:
		q.list = append(q.list, candidate{})
	default:
		hole = 0
	}
	for ; hole+1 < len(q.list) && c.compare(&q.list[hole+1]) < 0; hole++ {
		q.list[hole] = q.list[hole+1]
	}
	for ; hole > 0 && c.compare(&q.list[hole-1]) >= 0; hole-- {
		q.list[hole] = q.list[hole-1]
	}
	q.list[hole] = c
}

// addToWhole is add for a list of the whole shard, in which a key may stand twice.
func (q *candidates) addToWhole(c candidate) {
	if c.compare(&q.bound) >= 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(q.list, c, func(known, c candidate) int { return c.compare(&known) })
	q.list = slices.Insert(q.list, i, c)
	if len(q.list) > 2*listed {
		q.trim()
	}
	q.opens.Store(min(q.opens.Load(), int64(c.opens)))
}

// open notes that no key of the shard may go before that instant. A spared key may go sooner.
func (q *candidates) open(at algorithms.Instant) {
	if len(q.spared) == 0 {
		q.opens.Store(int64(at))
	}
}

// trim keeps the first candidates of a sorted list.
func (q *candidates) trim() {
	if more := len(q.list) - listed; more > 0 {
		q.bound = q.list[more-1]
		q.list = q.list[:copy(q.list, q.list[more:])]
	}
}

// reset drops the list, so that the shard looks at its keys anew. For keys that have changed in
// another way than by a charge.
func (q *candidates) reset() {
	*q = candidates{hand: q.hand, opens: q.opens, seen: q.seen, surveyed: q.surveyed}
	q.opens.Store(0)
}

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
