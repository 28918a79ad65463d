package memstore

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// candidate is a key as it stood when the shard looked at the key.
type candidate struct {
	key            digest
	opens          algorithms.Instant // 0: the key may go; else the key is denied, and its last denied hits pass then
	idle           algorithms.Instant // when the key is idle
	used, capacity uint64             // hits; a part of a used hit counts as one
}

// compare orders candidates: first the keys that may go, then the keys that are denied now. Of keys
// that may go, first the key that has used the smaller part of its limit, exactly. Of equal parts,
// first the key that is idle sooner. Denied keys stand in the order in which they open.
func (c *candidate) compare(d *candidate) int {
	if c.opens != d.opens {
		return cmp.Compare(c.opens, d.opens)
	}
	high, low := bits.Mul64(c.used, d.capacity)
	otherHigh, otherLow := bits.Mul64(d.used, c.capacity)
	return cmp.Or(cmp.Compare(high, otherHigh), cmp.Compare(low, otherLow), cmp.Compare(c.idle, d.idle))
}

// candidates is the keys that a shard forgets next to make room: the first ones of samples, of keys
// that may go. If a sample finds no such key, the shard looks at all of its keys, and the list also
// holds keys that are denied now. The list is empty until the store is full. Not safe for
// concurrent use, but for opens.
type candidates struct {
	list   []candidate   // each key once; the first to go is last
	bound  candidate     // each other key of the shard goes not before bound; the zero value: after samples, maybe at any time
	hand   int           // the place in the table where the next sample starts
	opens  *atomic.Int64 // set in New: no key of the shard may go before this instant; 0: maybe a key may go now
	spared []digest      // keys that need the room themselves: they must not go now

	seen     uint64 // keys that the shard has looked at to make room
	surveyed int    // of these, keys in passes over all keys
}

// never is the instant at which a key opens that does not exist.
const never = math.MaxInt64

const (
	sample = 4  // keys that the shard looks at to forget one
	listed = 32 // length of the list, and of the sample that fills an empty one
)

// whole reports whether the list is of all keys of the shard.
func (q *candidates) whole() bool { return q.bound.opens != 0 }

// add puts a candidate into the list after its equals, unless the list is full of candidates before
// it.
func (q *candidates) add(c candidate) {
	if q.whole() {
		if c.compare(&q.bound) >= 0 {
			return
		}
		q.opens.Store(min(q.opens.Load(), int64(c.opens)))
	} else if c.opens != 0 || len(q.list) == listed && c.compare(&q.list[0]) >= 0 {
		return
	}
	if i := slices.IndexFunc(q.list, func(known candidate) bool { return known.key == c.key }); i >= 0 {
		q.list = slices.Delete(q.list, i, i+1)
	}
	i, _ := slices.BinarySearchFunc(q.list, c, func(known, c candidate) int { return c.compare(&known) })
	if len(q.list) < listed {
		q.list = slices.Insert(q.list, i, c)
		return
	}
	last := q.list[0] // or c, which then goes later than all others
	if i == 0 {
		last = c
	} else {
		copy(q.list, q.list[1:i])
		q.list[i-1] = c
	}
	if q.whole() {
		q.bound = last
	}
}

// open notes that no key of the shard may go before that instant. A spared key may go sooner.
func (q *candidates) open(at algorithms.Instant) {
	if len(q.spared) == 0 {
		q.opens.Store(int64(at))
	}
}

// reset drops the list, so that the shard looks at its keys anew. For keys that have changed in
// another way than by a charge.
func (q *candidates) reset() {
	q.list, q.bound = q.list[:0], candidate{}
	q.opens.Store(0)
}

// evictLocked forgets the first candidate of the shard that is not spared, and returns the places
// that the key took. 0: each key of the shard is denied now or spared. mu must be held.
func (sh *shard) evictLocked(spared []digest, now algorithms.Instant) (places int) {
	q := &sh.candidates
	if int64(now) < q.opens.Load() {
		return 0
	}
	q.spared = spared
	places = sh.evictFirstLocked(now)
	q.spared = nil
	if q.whole() {
		for _, key := range spared { // the list has them as denied keys
			if place, found := sh.table.find(key); found {
				sh.noteLocked(place, now)
			}
		}
	}
	return places
}

// evictFirstLocked is evictLocked with the spared keys in candidates. mu must be held.
func (sh *shard) evictFirstLocked(now algorithms.Instant) (places int) {
	q := &sh.candidates
	if !q.whole() {
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

// refillLocked fills the empty list from a sample, or else from the whole shard, and reports
// whether there is a candidate. mu must be held.
func (sh *shard) refillLocked(now algorithms.Instant) bool {
	q := &sh.candidates
	if q.bound.opens == never {
		return false // the list had all keys
	}
	q.bound = candidate{}
	sh.sampleLocked(listed, now)
	if len(q.list) == 0 {
		q.surveyed += int(sh.table.count)
		q.bound = candidate{opens: never}
		sh.sampleLocked(int(sh.table.count), now)
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
	if l.Algorithm == algorithms.Learned { // as a key that has used nothing: a client may make any number, and each is kept long
		c.idle, c.used, c.capacity = algorithms.IdleAt(*l, s.state), 0, 1
		return c
	}
	hits := s.denied().of(l)
	if l.Algorithm == algorithms.SlidingWindowLog {
		log := logStateOf(s.state)
		c.idle, c.used = log.idle, min(uint64(log.used), c.capacity)
		if c.idle <= now {
			c.used = 0
		}
		if c.capacity-c.used >= hits {
			return c // not denied, as hits that expire only make room
		}
	}
	d := sh.decideLocked(s, l, now, 0)
	c.idle, c.used = now.Add(d.ResetAfter), c.capacity-d.Remaining
	if d.Remaining < hits {
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
