package memstore

import (
	"slices"

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
