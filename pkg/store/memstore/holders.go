package memstore

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// holderRecord is one holder of one state: 56 bytes without a pointer.
type holderRecord struct {
	holder store.Holder
	state  stateTag // of the state; the low bits are the kind of the record
	at     algorithms.Instant
	until  algorithms.Instant
	hits   uint32
	below  uint32 // the next record of the same bucket
	before uint32 // in the list of the record, see line and holders.spent
	after  uint32
}

// stateTag stands for a state: 62 bits of its digest, which have the bits that choose the shard.
// Two holders are confused only if both have the same name and their states the same tag. Among a
// million keys two share a tag with a chance of 10^12/2^63, or 1 in 9 million.
type stateTag uint64

const (
	kindBits  = 2  // of a stateTag that are free
	shardBits = 22 // of a stateTag from the low word of the digest
)

// tag returns the tag of a digest. The algorithm is in the upper bits of the low word.
func (d digest) tag() stateTag {
	const low = 1<<(kindBits+shardBits) - 1
	return stateTag((d.hi^d.lo)&^low | d.lo>>digestBits&(1<<shardBits-1)<<kindBits)
}

// holderKind is the kind of a record. The kinds of a rate limit have the numbers of their statuses.
type holderKind uint8

const (
	kindSlots  holderKind = 0 // holds slots of a key of concurrency, and stands in the line of the key
	kindHeld              = holderKind(algorithms.HoldHeld)
	kindDenied            = holderKind(algorithms.HoldDenied)
	kindEnded             = holderKind(algorithms.HoldEnded)
)

// spent reports whether the record only protects against repeats.
func (k holderKind) spent() bool { return k >= kindDenied }

func (r *holderRecord) kind() holderKind { return holderKind(r.state & (1<<kindBits - 1)) }
func (r *holderRecord) tag() stateTag    { return r.state &^ (1<<kindBits - 1) }

// hold returns the record as package algorithms knows it.
func (r *holderRecord) hold() algorithms.Hold {
	status := algorithms.HoldStatus(r.kind())
	if r.kind() == kindSlots {
		status = algorithms.HoldHeld
	}
	return algorithms.Hold{Status: status, Hits: r.hits, At: r.at, Until: r.until}
}

// holders keeps the holders of a shard. Records lie in chunks and keep their numbers, which start
// at 1; 0 is no record. A hash table finds records. The table grows and shrinks by one bucket at a
// time (linear hashing, Litwin 1980), so that no charge pays for a large pass. Not safe for
// concurrent use.
type holders struct {
	chunks   []holderChunk
	room     int32    // the chunk of the next record, plus one; further ones by holderChunk.next
	buckets  []uint32 // the first record of each; about one bucket for a record
	count    int
	kinds    [1 << kindBits]int // records of each kind
	spent    holderList         // denied and ended ones, the oldest first
	anySpent *atomic.Bool       // whether there is one
	back     *returns           // holders whose hits come back; nil: none
	due      algorithms.Instant // no record of a rate limit runs out before; valid if there is one
	rests    algorithms.Instant // no pass over all to make room before
	all      *atomic.Int64      // records of the whole store, and claimed ones

	ranOut  uint64 // holders that held hits until they ran out
	dropped uint64 // denied and ended ones that made room for another holder
	seen    uint64 // records that passes have looked at
	walked  uint64 // records that were passed to find the place of another one in a line
}

// holderChunk is memory for some records.
type holderChunk struct {
	records *[chunkRecords]holderRecord // nil: no memory
	used    uint32                      // one bit for each record
	next    int32                       // with room: the next chunk with room, plus one
}

// chunkRecords is the number of records in a chunk. Together they fill a size class of the
// allocator exactly.
const chunkRecords = 32

// of returns the record of a number.
func (h *holders) of(n uint32) *holderRecord {
	return &h.chunks[(n-1)/chunkRecords].records[(n-1)%chunkRecords]
}

// hash mixes a holder with the state, which clients do not know. So a client cannot choose names
// that share a bucket.
func (t stateTag) hash(holder *store.Holder) uint64 {
	a := binary.LittleEndian.Uint64(holder[:8]) ^ uint64(t)
	b := binary.LittleEndian.Uint64(holder[8:]) ^ bits.RotateLeft64(uint64(t), 32)*0x9e3779b97f4a7c15
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// bucket returns the number of the bucket of a hash.
func (h *holders) bucket(hash uint64) int {
	mask := uint64(1)<<bits.Len(uint(len(h.buckets))) - 1
	if i := hash & mask; i < uint64(len(h.buckets)) {
		return int(i)
	}
	return int(hash & (mask >> 1))
}

// find returns the number of the record of a holder; 0: no record.
func (h *holders) find(t stateTag, holder *store.Holder) uint32 {
	if h.count == 0 {
		return 0
	}
	n := h.buckets[h.bucket(t.hash(holder))]
	for n != 0 {
		r := h.of(n)
		if r.tag() == t && r.holder == *holder {
			return n
		}
		n = r.below
	}
	return 0
}

// add adds a record of a holder that has none, and returns its number. The caller must have claimed
// the record in all, and puts the record into its list.
func (h *holders) add(r holderRecord) uint32 {
	n := h.take()
	h.count++
	h.kinds[r.kind()]++
	if len(h.buckets) < h.count {
		h.split()
	}
	bucket := &h.buckets[h.bucket(r.tag().hash(&r.holder))]
	r.below, *bucket = *bucket, n
	*h.of(n) = r
	if r.kind() != kindSlots && (h.count == h.kinds[kindSlots]+1 || r.until < h.due) {
		h.due = r.until
	}
	return n
}

// remove removes a record that stands in no list.
func (h *holders) remove(n uint32) {
	r := h.of(n)
	at := &h.buckets[h.bucket(r.tag().hash(&r.holder))]
	for *at != n {
		at = &h.of(*at).below
	}
	*at = r.below
	h.kinds[r.kind()]--
	h.count--
	h.free(n)
	h.all.Add(-1)
	for len(h.buckets) > 2*h.count+minBuckets { // at most twice
		h.merge()
	}
}

// take returns the number of a free record.
func (h *holders) take() uint32 {
	if h.room == 0 {
		h.chunks = append(h.chunks, holderChunk{})
		h.room = int32(len(h.chunks))
	}
	c := &h.chunks[h.room-1]
	if c.records == nil {
		c.records = new([chunkRecords]holderRecord)
	}
	i := bits.TrailingZeros32(^c.used)
	n := uint32(h.room-1)*chunkRecords + uint32(i) + 1
	c.used |= 1 << i
	if c.used == 1<<chunkRecords-1 {
		h.room = c.next
	}
	return n
}

// free makes the record of a number a free one.
func (h *holders) free(n uint32) {
	chunk := (n - 1) / chunkRecords
	c := &h.chunks[chunk]
	if c.used == 1<<chunkRecords-1 {
		c.next, h.room = h.room, int32(chunk)+1
	}
	c.used &^= 1 << ((n - 1) % chunkRecords)
}

// minBuckets is the number of buckets below which the table does not shrink.
const minBuckets = 64

// split adds a bucket. The records of one bucket before are its own then.
func (h *holders) split() {
	n := len(h.buckets)
	if n == cap(h.buckets) { // append would leave a quarter unused
		h.buckets = append(make([]uint32, 0, n+n/16+minBuckets), h.buckets...)
	}
	h.buckets = append(h.buckets, 0)
	if n == 0 {
		return
	}
	for at := &h.buckets[parent(n)]; *at != 0; {
		number := *at
		r := h.of(number)
		if h.bucket(r.tag().hash(&r.holder)) != n {
			at = &r.below
			continue
		}
		*at = r.below
		r.below, h.buckets[n] = h.buckets[n], number
	}
}

// merge removes the last bucket, and gives its records to the bucket that they came from.
func (h *holders) merge() {
	last := len(h.buckets) - 1
	at := &h.buckets[parent(last)]
	for *at != 0 {
		at = &h.of(*at).below
	}
	*at = h.buckets[last]
	h.buckets = h.buckets[:last]
}

// parent returns the bucket that bucket n, at least 1, was split from.
func parent(n int) int { return n &^ (1 << (bits.Len(uint(n)) - 1)) }

// shrink gives memory back of chunks without records, if these are the majority, and of buckets.
func (h *holders) shrink() {
	if h.back != nil && h.back.first == 0 {
		h.back = nil // a map keeps its room
	}
	if cap(h.buckets) > 4*len(h.buckets) {
		h.buckets = append(make([]uint32, 0, len(h.buckets)), h.buckets...)
	}
	empty, last := 0, 0
	for i := range h.chunks {
		switch c := &h.chunks[i]; {
		case c.used != 0:
			last = i + 1
		case c.records != nil:
			empty++
		}
	}
	if empty <= 1 || 2*empty <= len(h.chunks) && last > len(h.chunks)/2 {
		return
	}
	h.chunks = append(make([]holderChunk, 0, last), h.chunks[:last]...)
	h.room = 0
	for _, memory := range []bool{false, true} { // chunks with memory then come first, in the order of their numbers
		for i := len(h.chunks) - 1; i >= 0; i-- {
			c := &h.chunks[i]
			if c.used == 0 {
				c.records = nil
			}
			if (c.records != nil) == memory && c.used != 1<<chunkRecords-1 {
				c.next, h.room = h.room, int32(i)+1
			}
		}
	}
}
