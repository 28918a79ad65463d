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

// hasRoom reports whether a bucket has a free place.
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
	if s.heads[i].hash.Load() != h.Hash {
		return false
	}
	b.entries[i%ways].carried += s.heads[i].take() + add
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
