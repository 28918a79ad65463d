package memstore

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"

	"github.com/weirproxy/weir/pkg/algorithms"
)

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
