package memstore

import (
	"math/bits"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// digest stands for a key: a hash under two secret random seeds, of which 112 bits are kept. Two keys share a digest with a
// chance of n*n/2^113 among n live keys (for 10^9 keys 10^-16), and nobody who cannot read the process's memory can look for
// such a pair. hi is never 0, which marks an empty slot.
type digest struct {
	hi uint64
	lo uint64 // 48 bits; the low 16 are 0
}

// slot is one key's state: 40 bytes without a pointer.
type slot struct {
	hi    uint64
	lo    uint64 // of the digest, and in its low 16 bits the number of the state's limit in the shard's limits
	state algorithms.State
}

const limitBits = 16

func (s *slot) empty() bool       { return s.hi == 0 }
func (s *slot) key() digest       { return digest{s.hi, s.lo &^ (1<<limitBits - 1)} }
func (s *slot) limit() uint16     { return uint16(s.lo) }
func (s *slot) setLimit(n uint16) { s.lo = s.lo&^(1<<limitBits-1) | uint64(n) }

// table maps digests to states. It is an open-addressing table with linear probing in which all slots are ordered by
// digest: a key's home is the place that its digest has when all digests are spread evenly (home grows with the digest), and
// a key sits at its home or, where that is taken, as few places after it as the order allows. So a search stops at the first
// larger digest, growing is one pass from one array to another, and a sweep is one pass in place; there are no tombstones.
// Runs that reach past the last home go into a tail, so that nothing wraps around.
//
// Not safe for concurrent use.
type table struct {
	slots []slot
	homes int32 // len(slots) - tail, or 0
	count int32
}

const (
	minHomes = 8
	tail     = 24
)

// fill is the most keys a table of that many homes takes, 5/6: fuller, and searches get long; emptier, and keys get large.
func fill(homes int32) int32 { return homes - homes/6 }

func (t *table) home(hi uint64) int {
	h, _ := bits.Mul64(hi, uint64(t.homes))
	return int(h)
}

// find returns the place of d and whether it is there; when it is not, the place is the one to insert it at.
func (t *table) find(d digest) (int, bool) {
	i := t.home(d.hi)
	for ; i < len(t.slots); i++ {
		s := &t.slots[i]
		if s.hi < d.hi {
			if s.empty() {
				return i, false
			}
			continue
		}
		if s.hi > d.hi {
			return i, false
		}
		if lo := s.key().lo; lo >= d.lo {
			return i, lo == d.lo
		}
	}
	return i, false
}

// insert puts d, which is not in the table, at the place that find gave, or where a larger table has it.
func (t *table) insert(i int, d digest, st algorithms.State, limit uint16) {
	for t.count >= fill(t.homes) || !t.open(i) {
		t.resize(t.homes + max(t.homes/16, minHomes))
		i, _ = t.find(d)
	}
	t.slots[i] = slot{d.hi, d.lo | uint64(limit), st}
	t.count++
}

// open makes place i free by moving the run that starts there one place on. It reports false, having moved nothing, when
// there is no room for that.
func (t *table) open(i int) bool {
	end := i
	for end < len(t.slots) && !t.slots[end].empty() {
		end++
	}
	if end == len(t.slots) {
		return false
	}
	copy(t.slots[i+1:end+1], t.slots[i:end])
	return true
}

// remove takes away the slot at place i.
func (t *table) remove(i int) {
	end := i + 1
	for end < len(t.slots) && !t.slots[end].empty() && t.home(t.slots[end].hi) < end {
		end++
	}
	copy(t.slots[i:end-1], t.slots[i+1:end])
	t.slots[end-1] = slot{}
	t.count--
}

// resize moves all slots to an array of that many homes, and of more where its runs need it.
func (t *table) resize(homes int32) {
	for homes = max(homes, minHomes); ; homes += max(homes/8, minHomes) {
		next := table{slots: make([]slot, homes+tail), homes: homes}
		if t.moveTo(&next) {
			*t = next
			return
		}
	}
}

// moveTo copies all slots to an empty table in one pass, and reports whether they fit there.
func (t *table) moveTo(dst *table) bool {
	next := 0
	for i := range t.slots {
		s := &t.slots[i]
		if s.empty() {
			continue
		}
		next = max(next, dst.home(s.hi))
		if next == len(dst.slots) {
			return false
		}
		dst.slots[next] = *s
		next++
	}
	dst.count = t.count
	return true
}

// sweep removes every slot for which drop reports true, in one pass in which no slot moves on.
func (t *table) sweep(drop func(*slot) bool) {
	next := 0
	for i := range t.slots {
		s := t.slots[i]
		if s.empty() {
			continue
		}
		t.slots[i] = slot{}
		if drop(&s) {
			t.count--
			continue
		}
		next = max(next, t.home(s.hi))
		t.slots[next] = s
		next++
	}
}

// renumber gives all slots the new numbers of their limits, by the old ones.
func (t *table) renumber(numbers []uint16) {
	for i := range t.slots {
		if s := &t.slots[i]; !s.empty() {
			s.setLimit(numbers[s.limit()])
		}
	}
}
