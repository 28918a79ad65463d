package memstore

import (
	"math/bits"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// limits numbers the distinct limits of the last charges of a shard's states, so that a slot names
// its limit in two bytes. A number lives as long as a slot has it. There is at most one number more
// than keys in the shard, and New makes enough shards to stay far below 65536. Not safe for
// concurrent use.
type limits struct {
	known   []knownLimit
	numbers map[algorithms.Limit]uint16
	free    []uint16
	last    uint16 // the last number that hold gave out, which most keys need next
}

type knownLimit struct {
	limit algorithms.Limit
	slots int
}

// of returns the limit of that number.
func (l *limits) of(number uint16) *algorithms.Limit { return &l.known[number].limit }

// hold returns the number of the limit for one more slot.
func (l *limits) hold(limit algorithms.Limit) uint16 {
	if int(l.last) < len(l.known) {
		if k := &l.known[l.last]; k.slots > 0 && k.limit == limit {
			k.slots++
			return l.last
		}
	}
	number, ok := l.numbers[limit]
	if !ok {
		if n := len(l.free); n > 0 {
			number, l.free = l.free[n-1], l.free[:n-1]
		} else {
			number = uint16(len(l.known))
			l.known = append(l.known, knownLimit{})
		}
		l.known[number] = knownLimit{limit: limit}
		if l.numbers == nil {
			l.numbers = make(map[algorithms.Limit]uint16)
		}
		l.numbers[limit] = number
	}
	l.known[number].slots++
	l.last = number
	return number
}

// release gives up one slot's hold of the number.
func (l *limits) release(number uint16) {
	k := &l.known[number]
	if k.slots--; k.slots == 0 {
		delete(l.numbers, k.limit)
		l.free = append(l.free, number)
	}
}

// minLimits is the number of limits up to which shrink does nothing.
const minLimits = 4 * minHomes

// shrink frees the memory of unused numbers when these are the majority: requests with limits of
// their own can make a number for each key. The result has the new numbers by the old ones, and all
// slots must get their new numbers at once. Nil: nothing has changed.
func (l *limits) shrink() (renumbered []uint16) {
	if len(l.known) <= minLimits || len(l.numbers) >= len(l.known)/2 {
		return nil
	}
	renumbered = make([]uint16, len(l.known))
	next := limits{known: make([]knownLimit, 0, len(l.numbers)), numbers: make(map[algorithms.Limit]uint16, len(l.numbers))}
	for limit, number := range l.numbers {
		renumbered[number] = uint16(len(next.known))
		next.numbers[limit] = renumbered[number]
		next.known = append(next.known, l.known[number])
	}
	*l = next
	return renumbered
}

// set makes a hold the hold of a holder of a rate limit, in record n. If n is 0 the holder gets a
// new record, which the caller has claimed. set returns the record.
func (h *holders) set(t stateTag, n uint32, holder *store.Holder, hold algorithms.Hold, now algorithms.Instant) uint32 {
	if n == 0 {
		return h.remember(t, holder, hold)
	}
	h.change(n, hold, now)
	return n
}

// remember adds a holder of a rate limit, and returns its record. The caller must have claimed the
// record in all.
func (h *holders) remember(t stateTag, holder *store.Holder, hold algorithms.Hold) uint32 {
	kind := holderKind(hold.Status)
	n := h.add(holderRecord{holder: *holder, state: t | stateTag(kind), at: hold.At, until: hold.Until, hits: hold.Hits})
	if kind.spent() {
		h.spend(n)
	}
	return n
}

// spend puts record n to the end of the spent ones.
func (h *holders) spend(n uint32) {
	if h.spent.first == 0 {
		h.anySpent.Store(true)
	}
	h.insert(&h.spent, n, h.spent.last)
}

// unspend takes record n out of the spent ones.
func (h *holders) unspend(n uint32) {
	h.unlink(&h.spent, n)
	if h.spent.first == 0 {
		h.anySpent.Store(false)
	}
}

// change makes a hold the record n of a rate limit, which may have run out before now.
func (h *holders) change(n uint32, hold algorithms.Hold, now algorithms.Instant) {
	r := h.of(n)
	h.keepHits(n)
	if r.kind().spent() {
		h.unspend(n)
	} else if r.until <= now {
		h.ranOut++
	}
	kind := holderKind(hold.Status)
	h.kinds[r.kind()]--
	h.kinds[kind]++
	r.state = r.tag() | stateTag(kind)
	r.at, r.until, r.hits = hold.At, hold.Until, hold.Hits
	if kind.spent() {
		h.spend(n)
	}
	h.due = min(h.due, r.until)
}

// forget removes record n of a rate limit.
func (h *holders) forget(n uint32) {
	h.keepHits(n)
	if h.of(n).kind().spent() {
		h.unspend(n)
	}
	h.remove(n)
}

// drop forgets the oldest denied or ended holder, and reports whether there was one.
func (h *holders) drop() bool {
	n := h.spent.first
	if n == 0 {
		return false
	}
	h.forget(n)
	h.dropped++
	return true
}

// restPerHolder is the time for each holder of a shard from one pass over all of them to the next.
// A pass takes about 3 ns for each, so passes take less than a hundredth of a core.
const restPerHolder = time.Microsecond

// makeRoom forgets the holders of rate limits that have run out at now, else the oldest denied or
// ended one. makeRoom reports whether there was one. One key can have a million holders, some of
// which run out before each begin: soon after a pass over all makeRoom makes no other.
func (h *holders) makeRoom(now algorithms.Instant) bool {
	before := h.count
	if now >= h.rests && h.due <= now {
		for next := h.sweep(0, now); next != 0; {
			next = h.sweep(next, now)
		}
		h.rests = now.Add(time.Duration(before) * restPerHolder)
	}
	return h.count < before || h.drop()
}

// forgetState forgets all holders of the state, of a rate limit.
func (h *holders) forgetState(t stateTag) {
	for n := range h.rates(0, len(h.chunks)) {
		if h.of(n).tag() == t {
			h.forget(n)
		}
	}
}

// realign moves all instants by a step of the clock.
func (h *holders) realign(step time.Duration) {
	for i := range h.chunks {
		for used := h.chunks[i].used; used != 0; used &= used - 1 {
			r := &h.chunks[i].records[bits.TrailingZeros32(used)]
			r.at, r.until = r.at.Moved(step), r.until.Moved(step)
		}
	}
	h.due, h.rests = h.due.Moved(step), h.rests.Moved(step)
}

// sweepChunks is the number of chunks that a sweep visits at once: about 4000 records, as many as a
// shard has keys.
const sweepChunks = 128

// sweep forgets the holders of rate limits that have run out at now, in some chunks from that one
// on. The result is the next chunk; 0 if all are done. Lines of keys have sweeps of their own.
func (h *holders) sweep(from int, now algorithms.Instant) (next int) {
	if from == 0 {
		if h.count == h.kinds[kindSlots] || h.due > now {
			return 0
		}
		h.due = never
	}
	end := min(from+sweepChunks, len(h.chunks))
	for n := range h.rates(from, end) {
		r := h.of(n)
		h.seen++
		if r.until > now {
			h.due = min(h.due, r.until)
			continue
		}
		if h.returns(n) { // the next touch of the shard forgets it
			h.due = now
			continue
		}
		if !r.kind().spent() {
			h.ranOut++
		}
		h.forget(n)
	}
	if end == len(h.chunks) {
		return 0
	}
	return end
}

// rates yields the numbers of the rate limits' records in the chunks from from to before end. A
// yielded record may be forgotten.
func (h *holders) rates(from, end int) func(yield func(uint32) bool) {
	return func(yield func(uint32) bool) {
		for i := from; i < end; i++ {
			for used := h.chunks[i].used; used != 0; used &= used - 1 {
				n := uint32(i*chunkRecords+bits.TrailingZeros32(used)) + 1
				if h.of(n).kind() != kindSlots && !yield(n) {
					return
				}
			}
		}
	}
}
