// Package top tracks the keys with the most hits. Each has its hits and denied hits of the last
// minute and the last ten, and the hits that the last decision left. The package keeps the texts of
// tracked keys only, in a fixed number of places.
//
// # The sketch
//
// A tracked key is counted from the hit that made it tracked: each hit, up to 262144 in five
// seconds, and samples of more. A hit of another key makes that key tracked at once where there is
// a free place. Else the key takes the place of the key with the smallest score, with the
// probability hits / (score + hits). The source is Ben Basat and others, "Randomized Admission
// Policy for Efficient Top-k and Frequency Estimation" (IEEE INFOCOM 2017), in its set-associative
// form. The new key inherits the score, so that others do not push the key out at once. So a key is
// tracked after about as many hits as the least of the tracked keys has. The many keys with few
// hits seldom cost more than the first test.
//
// The policy counts an inherited score as hits, which suits the sum over all keys. Here the counts
// are of hits that were seen, and the hits that may be missing stand beside them, see [Key].
//
// The score is the hits of the last minute, or a tenth of the last ten minutes where that is more.
// A denied hit weighs as much as deniedWeight others, for the keys with the most denied hits are
// searched for as well. The hits of a quiet rule weigh more than the hits of a busy one, see
// [Group].
//
// A key has two possible buckets of eight places. So nearly all places fill up before a key
// replaces another: Azar, Broder, Karlin and Upfal, "Balanced Allocations" (SIAM Journal on
// Computing 29, 1999).
package top

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

const (
	ways = 8 // places of a bucket

	deniedWeight = 8

	// maxText is the longest text of a key that is kept, in bytes.
	maxText = 512

	// Missing hits are a geometric variable. With the probability 0.95 they are fewer than three times
	// the mean.
	confidence = 3
)

// Sketch is the tracked keys of a [Tracker], without a clock. The zero value is not ready. All
// methods are safe for concurrent use, but one Rotate at a time.
type Sketch struct {
	tags    []atomic.Uint64 // of buckets: a byte of the hash for each place, 0 where the place is free
	heads   []head          // of the places
	buckets []bucket

	floor atomic.Uint64 // about the smallest score of two full buckets: the first, cheap test of a hit
	tried atomic.Uint64 // keys that tried to replace others in this slice
	slice atomic.Uint64 // the number of the slice that goes on, from 1
}

// head is the part of a place that hits change, without a lock. The last decision is in the same
// word as the count of allowed hits, so that a hit costs one atomic operation.
type head struct {
	hash   atomic.Uint64 // 0: free
	now    atomic.Uint64 // allowed hits of this slice, times 2^32, plus the remaining hits of the last decision
	denied atomic.Uint64 // denied hits of this slice
	limit  atomic.Uint32 // the capacity of the last decision
}

// bucket is the rest of the places of a bucket.
type bucket struct {
	mu      sync.Mutex // guards entries, and changes of hashes and tags. Of two buckets the first is locked first
	entries [ways]entry
	full    uint64 // the last slice in which all places were taken; 0: never
	score   uint64 // the smallest score at that time
}

// place is where a key may be: two buckets, which may be the same.
type place struct{ first, second int }

// open makes the zero value ready, with at least as many places, which must be more than 0.
func (s *Sketch) open(places int) {
	n := (places + ways - 1) / ways
	s.tags, s.heads, s.buckets = make([]atomic.Uint64, n), make([]head, n*ways), make([]bucket, n)
	s.slice.Store(1)
}

func (s *Sketch) place(hash uint64) place {
	n := uint64(len(s.tags))
	return place{int(hash >> 32 * n >> 32), int(hash & math.MaxUint32 * n >> 32)}
}

// tag returns the byte of a hash in tags. These bits have the least part in the choice of buckets.
func tag(hash uint64) uint64 { return max(hash>>32&0xff, 1) }

const (
	ones = 0x0101010101010101
	tops = 0x8080808080808080
)

// find returns the index of a key's place in a bucket, or -1.
func (s *Sketch) find(bucket int, hash uint64) int {
	x := s.tags[bucket].Load() ^ tag(hash)*ones
	for m := (x - ones) & ^x & tops; m != 0; m &= m - 1 { // bytes that are 0, and perhaps others above them
		if i := bucket*ways + bits.TrailingZeros64(m)/8; s.heads[i].hash.Load() == hash {
			return i
		}
	}
	return -1
}

func (s *Sketch) hasRoom(bucket int) bool {
	x := s.tags[bucket].Load()
	return (x-ones) & ^x & tops != 0
}

// Hit is hits of one key, and the decision about them.
type Hit struct {
	Hash      uint64 // of the key, as good as random to clients, not 0
	Hits      uint32 // 0: a probe
	Denied    bool
	Remaining uint32
	Capacity  uint32
	Group     *Group // of the key; nil: the hits weigh 1
}

// weight returns the weight of a hit that competes for a place.
func (h *Hit) weight() uint64 {
	if h.Denied {
		return deniedWeight * uint64(h.Hits) * h.Group.weigh()
	}
	return uint64(h.Hits) * h.Group.weigh()
}

// Count counts hits of a key that is tracked, and reports whether it is.
func (s *Sketch) Count(h Hit, random *Random) bool {
	at := s.place(h.Hash)
	i := s.find(at.first, h.Hash)
	if i < 0 {
		if i = s.find(at.second, h.Hash); i < 0 {
			return false
		}
	}
	return s.count(i, h, random)
}

// count counts hits of the key in place i, unless another key has come there.
func (s *Sketch) count(i int, h Hit, random *Random) bool {
	e := &s.heads[i]
	add := uint64(h.Hits)
	if h.Denied {
		if h.Hits == 1 {
			add = random.sample(e.denied.Load())
		}
		if add > 0 {
			e.denied.Add(add)
		}
		add = 0
	} else if n := e.now.Load() >> 32; h.Hits == 1 && n >= exactHits {
		if add = random.sample(n); add == 0 {
			return true
		}
	}
	for {
		was := e.now.Load()
		next := was&^math.MaxUint32 | uint64(h.Remaining)
		if add > math.MaxUint32-was>>32 {
			return s.carry(i, h, add)
		}
		next += add << 32
		if e.hash.Load() != h.Hash { // was may be of another key
			return false
		}
		if next == was || e.now.CompareAndSwap(was, next) {
			if e.limit.Load() != h.Capacity {
				e.limit.Store(h.Capacity)
			}
			return true
		}
	}
}

// carry counts allowed hits that no longer fit in the head.
func (s *Sketch) carry(i int, h Hit, add uint64) bool {
	b := &s.buckets[i/ways]
	b.mu.Lock()
	defer b.mu.Unlock()
	e := &s.heads[i]
	if e.hash.Load() != h.Hash {
		return false
	}
	b.entries[i%ways].carried += e.now.Swap(uint64(h.Remaining))>>32 + add
	e.limit.Store(h.Capacity)
	return true
}

// take returns the allowed hits of this slice, and sets them to 0.
func (e *head) take() uint64 {
	for {
		was := e.now.Load()
		if e.now.CompareAndSwap(was, was&math.MaxUint32) {
			return was >> 32
		}
	}
}

// Wants reports whether Admit should see hits of a key that is not tracked.
func (s *Sketch) Wants(h Hit, random *Random) bool {
	if h.Hits == 0 {
		return false
	}
	at := s.place(h.Hash)
	return s.hasRoom(at.first) || s.hasRoom(at.second) || random.wins(h.weight(), s.floor.Load())
}

const (
	// busy is the number of keys in a slice that may try to replace others at the true odds. A try
	// takes about 200 ns. After that the odds of a hit are one in eagerness at most. After each
	// further busy tries the odds halve, for so many doublings of eagerness.
	busy      = 20_000
	eagerness = 32
	doublings = 3

	learning = 16 // tries that move the floor to their scores
)

// Admit counts hits of an untracked key, and tracks the key: in a free place, or perhaps in the
// place of another key. The first maxText bytes of the text are kept.
func (s *Sketch) Admit(h Hit, random *Random, text []byte) {
	if i := s.admit(h, random, text); i >= 0 {
		s.count(i, h, random)
	}
}

// admit is Admit, unless another goroutine was faster: then admit returns the place of the key,
// else -1.
func (s *Sketch) admit(h Hit, random *Random, text []byte) int {
	at := s.place(h.Hash)
	s.lock(at)
	defer s.unlock(at)
	for _, b := range [...]int{at.first, at.second} {
		if i := s.find(b, h.Hash); i >= 0 {
			return i
		}
	}
	first, second := &s.buckets[at.first], &s.buckets[at.second]
	if i := s.freeLocked(at); i >= 0 {
		since := min(first.full, second.full) // before that the key would have found a place
		s.startLocked(i, h, text, max(first.score, second.score), since)
		return -1
	}
	i, score := s.leastLocked(at)
	floor := s.learn(score)
	weight := h.weight()
	h.Group.try()
	if score > floor && !random.wins(floor+weight, score-floor) {
		return -1
	}
	slice, e := s.slice.Load(), &s.buckets[i/ways].entries[i%ways]
	if e.score == 0 { // the other key has come in this slice, too
		score += e.inherited
	}
	s.startLocked(i, h, text, max(score, floor), slice)
	e.inherited = score
	first.full, first.score = slice, score
	second.full, second.score = slice, score
	return -1
}

func (s *Sketch) lock(at place) {
	s.buckets[min(at.first, at.second)].mu.Lock()
	if at.first != at.second {
		s.buckets[max(at.first, at.second)].mu.Lock()
	}
}

func (s *Sketch) unlock(at place) {
	s.buckets[at.first].mu.Unlock()
	if at.first != at.second {
		s.buckets[at.second].mu.Unlock()
	}
}

// freeLocked returns a free place in the emptier bucket, or -1.
func (s *Sketch) freeLocked(at place) int {
	best, most := -1, 0
	for _, b := range [...]int{at.first, at.second} {
		place, free := -1, 0
		for i := b * ways; i < (b+1)*ways; i++ {
			if s.heads[i].hash.Load() == 0 {
				place, free = i, free+1
			}
		}
		if free > most {
			best, most = place, free
		}
	}
	return best
}

// leastLocked returns the place with the smallest score, and the score.
func (s *Sketch) leastLocked(at place) (least int, score uint64) {
	least = -1
	for _, b := range [...]int{at.first, at.second} {
		for way := range ways {
			i := b*ways + way
			e, now := &s.buckets[b].entries[way], &s.heads[i]
			of := e.score + e.group.weigh()*(e.carried+now.now.Load()>>32+deniedWeight*now.denied.Load())
			if least < 0 || of < score {
				least, score = i, of
			}
		}
	}
	return least, score
}

// learn moves the floor to a score, and returns the floor before.
func (s *Sketch) learn(score uint64) uint64 {
	floor := s.floor.Load()
	next := floor
	switch {
	case score > floor:
		next += (score - floor + learning - 1) / learning
	case score < floor:
		next -= (floor - score + learning - 1) / learning
	}
	if times := s.tried.Add(1) / busy; times > 0 {
		next = max(next, eagerness<<min(times-1, doublings)-1)
	}
	s.floor.Store(next) // another goroutine's step may be lost
	return floor
}

// startLocked puts a key in a place, with its first hits.
func (s *Sketch) startLocked(i int, h Hit, text []byte, score, since uint64) {
	at, b := &s.heads[i], &s.buckets[i/ways]
	s.clearLocked(i)
	b.entries[i%ways].start(text, h.Group, score, since)
	at.limit.Store(h.Capacity)
	at.now.Store(uint64(h.Remaining))
	if h.Denied {
		at.denied.Store(uint64(h.Hits))
	} else {
		b.entries[i%ways].carried = uint64(h.Hits)
	}
	at.hash.Store(h.Hash)
	s.tags[i/ways].Store(s.tags[i/ways].Load() | tag(h.Hash)<<(i%ways*8))
	if !s.hasRoom(i / ways) {
		b.full, b.score = s.slice.Load(), max(b.score, score)
	}
}

// clearLocked makes a place free. The hits of a goroutine that has found the key before are lost,
// or go to the next key.
func (s *Sketch) clearLocked(i int) {
	at := &s.heads[i]
	at.hash.Store(0)
	s.tags[i/ways].Store(s.tags[i/ways].Load() &^ (0xff << (i % ways * 8)))
	at.now.Store(0)
	at.denied.Store(0)
}

// Rotate ends a slice and begins the next. Keys without a hit in ten minutes are no longer tracked.
func (s *Sketch) Rotate() {
	slice := s.slice.Load()
	var scores, full uint64
	for n := range s.buckets {
		b := &s.buckets[n]
		b.mu.Lock()
		if !s.hasRoom(n) {
			b.full = slice
		}
		least := ^uint64(0)
		for way := range ways {
			i, e := n*ways+way, &b.entries[way]
			if s.heads[i].hash.Load() == 0 {
				continue
			}
			denied := s.heads[i].denied.Swap(0)
			e.end(slice, cell{e.carried + s.heads[i].take() + denied, denied})
			if e.score == 0 { // no hit in ten minutes
				s.clearLocked(i)
			}
			least = min(least, e.score)
		}
		if !s.hasRoom(n) {
			b.score = least
			scores, full = scores+least, full+1
		}
		b.mu.Unlock()
	}
	s.tried.Store(0)
	s.floor.Store(min(s.floor.Load(), scores/max(full, 1)))
	s.slice.Store(slice + 1)
}

const (
	perMinute = 12 // slices of a minute
	minutes   = 9  // whole minutes of ten; the tenth is the one that goes on
	longest   = perMinute * (minutes + 1)
)

// cell is the hits of a time.
type cell struct{ hits, denied uint64 } // hits with the denied ones

func (c *cell) add(other cell) { c.hits, c.denied = c.hits+other.hits, c.denied+other.denied }

func (c cell) weight() uint64 { return c.hits + (deniedWeight-1)*c.denied }

// entry is the part of a place that the lock of its bucket guards.
type entry struct {
	text      []byte // of the key; the memory stays with the place
	cut       bool   // the text was longer
	group     *Group // of the key, or nil
	recent    [perMinute]cell
	minutes   [minutes]cell
	carried   uint64 // allowed hits of this slice that do not fit in the head
	score     uint64 // of all but this slice
	inherited uint64 // the rest of the score of the key that was here before

	missing, missingDenied uint64 // the hits that may have come while the key was not tracked
	since                  uint64 // the slice until which hits may be missing; 0: none is
}

// start makes the place one of a new key. The hits before are a geometric variable with the mean
// score, and came until the slice since; 0: there was no hit before.
func (e *entry) start(text []byte, group *Group, score, since uint64) {
	*e = entry{text: append(e.text[:0], text[:min(len(text), maxText)]...), cut: len(text) > maxText, group: group, since: since}
	if since > 0 {
		hits := score / group.weigh()
		e.missing, e.missingDenied = confidence*(hits+1), confidence*(hits+deniedWeight)/deniedWeight
	}
}

// end ends a slice, the number of which is at least 1.
func (e *entry) end(slice uint64, now cell) {
	e.carried = 0
	e.recent[slice%perMinute] = now
	if slice%perMinute == 0 {
		e.minutes[slice/perMinute%minutes] = e.minute()
	}
	e.inherited -= (e.inherited + perMinute - 1) / perMinute
	ten := e.tenMinutes(slice)
	e.score = e.group.weigh()*max(e.minute().weight(), (ten.weight()+9)/10) + e.inherited
}

// minute returns the hits of the last perMinute slices that have ended.
func (e *entry) minute() (sum cell) {
	for _, c := range e.recent {
		sum.add(c)
	}
	return sum
}

// tenMinutes returns the hits of the last whole minutes and of the slices after them. last is the
// last slice that has ended.
func (e *entry) tenMinutes(last uint64) (sum cell) {
	for _, c := range e.minutes {
		sum.add(c)
	}
	for n := range last % perMinute {
		sum.add(e.recent[(last-n)%perMinute])
	}
	return sum
}

// window returns the hits of a window without the slice that goes on, and the errors of the hits.
func (e *entry) window(w Window, last uint64) (sum, missing cell) {
	if w == TenMinutes {
		sum = e.tenMinutes(last)
	} else {
		oldest := e.recent[(last+1)%perMinute]
		sum = e.minute()
		sum = cell{sum.hits - oldest.hits, sum.denied - oldest.denied}
	}
	if n := w.slices(last); e.since > 0 && e.since+n > last {
		// The key may have been tracked before, and lost its place as the key with the smallest score:
		// the score is hits of a minute.
		before := min(e.since+n-last-1, e.since) / perMinute
		missing = cell{e.missing + before*e.missing/confidence, e.missingDenied + before*e.missingDenied/confidence}
	}
	return sum, missing
}

// exactHits is the hits of a key in a slice up to which each is counted.
const exactHits = 1 << 18

// Random makes random numbers by Knuth's linear congruential generator. Clients cannot foresee the
// first, and see no other. The zero value is ready. One goroutine at a time may use a Random.
type Random uint64

func (r *Random) draw() uint32 {
	if *r == 0 {
		*r = Random(rand.Uint64() | 1)
	}
	*r = *r*6364136223846793005 + 1442695040888963407
	return uint32(*r >> 32)
}

// sample returns the number that one hit adds to a count: 1 up to exactHits. After that it is 0 or
// a power of two, in the mean 1. The standard error of the count is less than 1/512 of the count.
// Such counters are by Morris, "Counting Large Numbers of Events in Small Registers"
// (Communications of the ACM 21, 1978).
func (r *Random) sample(count uint64) uint64 {
	weight := uint64(1) << bits.Len64(count/exactHits)
	if weight > 1 && uint64(r.draw())&(weight-1) != 0 {
		return 0
	}
	return weight
}

// wins reports whether hits of a weight win against a score: with the probability weight / (score +
// weight).
func (r *Random) wins(weight, score uint64) bool {
	high, _ := bits.Mul64(uint64(r.draw())<<32, score+weight)
	return high < weight
}
