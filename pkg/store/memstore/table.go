package memstore

import (
	"math/bits"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// digest stands for a key: 104 bits of a hash with two secret random seeds. Among n live keys two
// share a digest with a chance of n*n/2^105, for 10^9 keys 3*10^-14. Only a reader of the process's
// memory could look for such a pair. hi is never 0, which marks an empty slot.
type digest struct {
	hi uint64
	lo uint64 // 40 bits; the low 24 are 0
}

// slot is one key's state: 40 bytes without a pointer.
type slot struct {
	hi    uint64
	lo    uint64           // of the digest; below, the denied hits in 8 bits; below, the number of the state's limit in the shard's limits
	state algorithms.State // under sliding_window_log the name of the log in the shard's logs
}

const (
	limitBits  = 16
	digestBits = limitBits + deniedBits // that lo of a digest leaves free
)

func (s *slot) empty() bool        { return s.hi == 0 }
func (s *slot) key() digest        { return digest{s.hi, s.lo &^ (1<<digestBits - 1)} }
func (s *slot) limit() uint16      { return uint16(s.lo) }
func (s *slot) setLimit(n uint16)  { s.lo = s.lo&^(1<<limitBits-1) | uint64(n) }
func (s *slot) denied() deniedHits { return deniedHits(s.lo >> limitBits) }
func (s *slot) setDenied(h deniedHits) {
	s.lo = s.lo&^(1<<digestBits-1) | uint64(h)<<limitBits | uint64(s.limit())
}

// table maps digests to states, by open addressing with linear probing, with all slots in the order
// of their digests. A key's home is the place that its digest would have if all digests were spread
// evenly. A key sits at its home, or as few places after its home as the order allows. So a search
// stops at the first larger digest. Growing is one pass from one array to another, a sweep is one
// pass in place, and there are no tombstones. Runs that reach past the last home go into a tail, so
// that no search wraps around.
//
// Not safe for concurrent use.
type table struct {
	slots   []slot
	homes   int32 // len(slots) - tail, or 0
	count   int32
	shrinks int32 // the count at which the table gives memory back; set in resize
}

const (
	minHomes = 8
	tail     = 24
)

// fill is the maximum of keys for a number of homes, 5/6. A fuller table has long searches, an
// emptier one wastes memory.
func fill(homes int32) int32 { return homes - homes/6 }

func (t *table) home(hi uint64) int {
	h, _ := bits.Mul64(hi, uint64(t.homes))
	return int(h)
}

// find returns the place of d and reports whether d is there. If not, the place is the one to
// insert d.
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

// insert puts d, which must not be in the table, at the place that find returned, or into a larger
// table. insert returns the place in the table.
func (t *table) insert(i int, d digest, st algorithms.State, limit uint16, denied deniedHits) int {
	for t.count >= fill(t.homes) || !t.open(i) {
		t.resize(t.homes + max(t.homes/16, minHomes))
		i, _ = t.find(d)
	}
	t.slots[i] = slot{d.hi, d.lo | uint64(denied)<<limitBits | uint64(limit), st}
	t.count++
	return i
}

// open frees place i: it moves the run that starts there one place on. Without room for that open
// moves nothing and reports false.
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

// remove removes the slot at place i. The others may move.
func (t *table) remove(i int) {
	end := i + 1
	for end < len(t.slots) && !t.slots[end].empty() && t.home(t.slots[end].hi) < end {
		end++
	}
	copy(t.slots[i:end-1], t.slots[i+1:end])
	t.slots[end-1] = slot{}
	t.count--
	t.shrink()
}

// shrink gives memory back if the table has become much emptier than after it grew. Long logs
// replace many keys, and must not find the memory of their slots taken.
func (t *table) shrink() {
	if t.homes > 4*minHomes && t.count < t.shrinks {
		t.resize(t.count + t.count/3)
	}
}

// resize moves all slots to an array with that many homes, or more if the runs need more.
func (t *table) resize(homes int32) {
	for homes = max(homes, minHomes); ; homes += max(homes/8, minHomes) {
		next := table{slots: make([]slot, homes+tail), homes: homes}
		if t.moveTo(&next) {
			*t = next
			// Runs may have needed more homes than asked for. So the count must fall, too.
			t.shrinks = min(t.homes/8*5, t.count-t.count/8)
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
	var s slot // one for all, as drop makes it a variable of the heap
	for i := range t.slots {
		s = t.slots[i]
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

// each calls yield for every slot, in order, until yield reports false.
func (t *table) each(yield func(*slot) bool) {
	for i := range t.slots {
		if s := &t.slots[i]; !s.empty() && !yield(s) {
			return
		}
	}
}

// takeSlots applies hits of the charge to the view of a key of concurrency. A charge without a
// holder is a probe.
func (v *view) takeSlots(c *store.Charge, hits int64, now algorithms.Instant) algorithms.Decision {
	if c.Hold == nil {
		return v.slots.Decide(c.Limit, now, 0, 0)
	}
	asked := uint32(max(hits, 0))
	d := v.slots.Decide(c.Limit, now, asked, c.Hold.AtMost)
	if d.Allowed && asked > 0 {
		v.addSlots(asked, now.Add(c.Hold.AtMost))
	}
	return d
}

// addSlots adds a holder to the summary of the view.
func (v *view) addSlots(hits uint32, until algorithms.Instant) {
	if v.slots.Used == 0 {
		v.slots = algorithms.Slots{First: until, Last: until}
	}
	v.slots.Used += uint64(hits)
	v.slots.First, v.slots.Last = min(v.slots.First, until), max(v.slots.Last, until)
}

// joinLineLocked adds a holder to the line of a key. joinLineLocked reports false if the table has
// no slot of the key. mu must be held.
func (sh *shard) joinLineLocked(key digest, holder *store.Holder, hold algorithms.Hold) bool {
	place, found := sh.table.find(key)
	if !found {
		return false
	}
	slot := &sh.table.slots[place]
	l := lineOf(slot.state)
	sh.holders.join(&l, key.tag(), holder, hold)
	slot.state = l.state()
	return true
}

// leaveLocked removes a holder from the line of a key. A key without holders stays until a sweep.
// mu must be held.
func (sh *shard) leaveLocked(key digest, n uint32) {
	place, found := sh.table.find(key)
	if !found {
		return
	}
	slot := &sh.table.slots[place]
	l := lineOf(slot.state)
	sh.holders.leave(&l, n)
	slot.state = l.state()
	if sh.candidates.whole() {
		sh.noteLocked(place, sh.latest)
	}
}

// expireLocked removes the holders that have run out from the line of the key at that place, and
// returns the line. mu must be held.
func (sh *shard) expireLocked(place int, now algorithms.Instant) line {
	slot := &sh.table.slots[place]
	l := lineOf(slot.state)
	if sh.holders.expire(&l, now) {
		slot.state = l.state()
	}
	return l
}

// forgetHoldersLocked forgets the holders of a key. mu must be held.
func (sh *shard) forgetHoldersLocked(key digest, l *algorithms.Limit) {
	if l.Algorithm != algorithms.Concurrency { // the line of a key goes with its slot
		sh.holders.forgetState(key.tag())
	}
}
