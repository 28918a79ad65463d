package memstore

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"io"
	"runtime"
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Save writes a snapshot of all states to w, for Load in a later process. Decisions go on: Save
// locks one shard at a time, for tens of microseconds, copies its states and holders, and then
// writes the copy. So each key's state is exact, but keys are of slightly different instants.
// Without decisions meanwhile the snapshot is exact as a whole.
//
// Save takes at most 1 MiB of memory, and a copy of one shard or of one log. A shard has about 4096
// keys of 40 bytes, and holders of 56 bytes. A snapshot takes 25 to 40 bytes per key, and about 10
// for each instant in a log.
//
// The snapshot holds the secret key of the digests. With that key one can find clients' keys that
// share a digest, so only the owner of the process may read a snapshot. A snapshot has no text of a
// client's key.
//
// The snapshot also takes records of another store, see MaxBeside. A record that is too large is
// left out.
//
// Errors: ErrNotSavable, and the errors of w.
func (s *Store) Save(w io.Writer, beside ...[]byte) (Saved, error) {
	if !s.savable {
		return Saved{}, ErrNotSavable
	}
	out := newSnapshotWriter(w)
	out.head(s.hashKey, s.now(), int64(s.Stats().Keys))
	for i := range s.shards {
		out.shard(s, &s.shards[i])
		if out.err != nil {
			break
		}
		runtime.Gosched() // where there is one core, decisions wait for one shard, not for a time slice
	}
	for i := range s.blocks {
		out.offenders(s, &s.blocks[i])
	}
	out.beside(beside)
	out.end()
	return out.saved, out.err
}

// snapshotWriter writes sections. After an error it writes nothing.
type snapshotWriter struct {
	w        *bufio.Writer
	checksum checksum
	saved    Saved  // Keys counts every record of a key
	names    int    // records of holders of rate limits
	frame    []byte // around content
	err      error

	content []byte
	kind    byte               // of a section of records
	at      algorithms.Instant // the same
	numbers map[algorithms.Limit]uint64

	slots   []slot // copies of a shard's
	limits  []algorithms.Limit
	lists   []listCopy
	entries []algorithms.LogEntry
	holders []holderRecord
	backs   []returning
}

// returning is a holder whose hits come back, without a lock.
type returning struct {
	key digest
	holderRecord
}

// listCopy is a key with a log or a line, without a lock.
type listCopy struct {
	key    digest
	denied deniedHits
	limit  algorithms.Limit
	length int // how many of the writer's entries or holders
}

func newSnapshotWriter(w io.Writer) *snapshotWriter {
	out := &snapshotWriter{
		w: bufio.NewWriterSize(w, 256<<10), checksum: newChecksum(), numbers: make(map[algorithms.Limit]uint64),
	}
	_, out.err = out.w.WriteString(snapshotMagic)
	out.write(binary.LittleEndian.AppendUint32(nil, snapshotVersion))
	return out
}

func (o *snapshotWriter) write(b []byte) {
	if o.err == nil {
		_, o.err = o.w.Write(b)
	}
}

// section writes a section with the content.
func (o *snapshotWriter) section(kind byte) {
	o.frame = binary.LittleEndian.AppendUint32(append(o.frame[:0], kind), uint32(len(o.content)))
	o.write(o.frame)
	o.write(o.content)
	o.frame = binary.LittleEndian.AppendUint32(o.frame[:0], o.checksum.next(kind, o.content))
	o.write(o.frame)
	o.content = o.content[:0]
}

func (o *snapshotWriter) uint64(x uint64)  { o.content = binary.LittleEndian.AppendUint64(o.content, x) }
func (o *snapshotWriter) uvarint(x uint64) { o.content = binary.AppendUvarint(o.content, x) }
func (o *snapshotWriter) varint(x int64)   { o.content = binary.AppendVarint(o.content, x) }

func (o *snapshotWriter) head(key hashKey, now algorithms.Instant, keys int64) {
	_, _ = rand.Read(o.checksum.identity[:]) // never fails
	o.content = append(append(o.content, o.checksum.identity[:]...), hashSip)
	o.uint64(key[0])
	o.uint64(key[1])
	o.uint64(uint64(now))
	o.uint64(uint64(keys))
	o.section(sectionHead)
}

func (o *snapshotWriter) end() {
	o.uint64(uint64(o.saved.Keys + o.names))
	o.section(sectionEnd)
	if o.err == nil {
		o.err = o.w.Flush()
	}
}

// begin starts a section of records.
func (o *snapshotWriter) begin(kind byte, at algorithms.Instant) {
	o.kind, o.at, o.content = kind, at, o.content[:0]
	clear(o.numbers)
	o.uint64(uint64(at))
}

// finish ends a section of records, if it has any.
func (o *snapshotWriter) finish() {
	if len(o.content) > 8 {
		o.section(o.kind)
	}
	o.content = o.content[:0]
}

// next makes room for a record: a section that is full enough ends.
func (o *snapshotWriter) next() {
	if len(o.content) >= fullEnough {
		o.finish()
		o.begin(o.kind, o.at)
	}
}

func (o *snapshotWriter) digest(key digest) {
	o.uint64(key.hi)
	o.uint64(key.lo >> digestBits)
	o.content = o.content[:len(o.content)-(8+8-digestSize)]
}

// record starts the record of a key.
func (o *snapshotWriter) record(key digest, denied deniedHits, limit *algorithms.Limit) {
	o.next()
	o.saved.Keys++
	o.digest(key)
	o.content = append(o.content, byte(denied))
	number, known := o.numbers[*limit]
	if known {
		o.uvarint(number)
		return
	}
	number = uint64(len(o.numbers))
	o.numbers[*limit] = number
	o.uvarint(number)
	o.content = appendLimit(o.content, limit)
}

// shard writes the states and the holders of a shard.
func (o *snapshotWriter) shard(s *Store, sh *shard) {
	o.slots, o.limits = o.slots[:0], o.limits[:0]
	sh.mu.Lock()
	at := sh.instantLocked(s)
	if sh.table.count > 0 {
		o.slots = append(o.slots, sh.table.slots...)
		for i := range sh.limits.known {
			o.limits = append(o.limits, sh.limits.known[i].limit)
		}
	}
	o.copyHoldersLocked(sh)
	sh.mu.Unlock()

	o.begin(sectionKeys, at)
	logged := o.slots[:0] // reuses the room of slots that were written
	for _, slot := range o.slots {
		if slot.empty() {
			continue
		}
		switch limit := &o.limits[slot.limit()]; limit.Algorithm {
		case algorithms.Concurrency: // in writeHolders
		case algorithms.SlidingWindowLog:
			logged = append(logged, slot)
		default:
			o.record(slot.key(), slot.denied(), limit)
			o.state(slot.state)
		}
	}
	o.finish()
	o.writeHolders(at)
	for len(logged) > 0 && o.err == nil {
		logged = o.someLogs(s, sh, logged)
	}
}

// offenders writes the keys of a shard of algorithms.Escalation.
func (o *snapshotWriter) offenders(s *Store, sh *blockShard) {
	sh.mu.Lock()
	at := sh.instantLocked(s)
	all := make([]offender, len(sh.order))
	for i, one := range sh.order {
		all[i] = *one
	}
	sh.mu.Unlock()
	o.begin(sectionKeys, at)
	for i := range all {
		o.record(all[i].key, 0, &all[i].limit)
		o.state(all[i].state)
	}
	o.finish()
}

// state writes a state of the section's instant.
func (o *snapshotWriter) state(s algorithms.State) {
	last, a, b := s.Parts()
	o.varint(int64(o.at - last))
	o.uvarint(a)
	o.uvarint(b)
}

// someLogs writes some of the logs, and returns the others.
func (o *snapshotWriter) someLogs(s *Store, sh *shard, logged []slot) (others []slot) {
	const enough = 4096 // entries to copy under one lock
	o.lists, o.entries = o.lists[:0], o.entries[:0]
	sh.mu.Lock()
	at := sh.instantLocked(s)
	for len(logged) > 0 && len(o.entries) < enough {
		key := logged[0].key()
		logged = logged[1:]
		place, found := sh.table.find(key)
		if !found {
			continue
		}
		slot := &sh.table.slots[place]
		before := len(o.entries)
		o.entries = sh.logs.of(slot.state).AppendEntries(o.entries)
		o.lists = append(o.lists, listCopy{key, slot.denied(), *sh.limits.of(slot.limit()), len(o.entries) - before})
	}
	sh.mu.Unlock()

	o.begin(sectionKeys, at)
	entries := o.entries
	for i := range o.lists {
		l := &o.lists[i]
		o.log(l, entries[:l.length])
		entries = entries[l.length:]
	}
	o.finish()
	if cap(o.entries) > 2*maxRecord {
		o.entries = nil // one large log must not keep its room
	}
	return logged
}

// log writes the records of a log.
func (o *snapshotWriter) log(l *listCopy, entries []algorithms.LogEntry) {
	left := len(entries)
	for some := range slices.Chunk(entries, maxRecord) {
		left -= len(some)
		o.record(l.key, l.denied, &l.limit)
		o.uvarint(2*uint64(len(some)) + uint64(min(left, 1)))
		o.varint(int64(o.at - some[0].At))
		for i := range some {
			if i > 0 {
				o.uvarint(uint64(some[i].At - some[i-1].At))
			}
			o.uvarint(some[i].Hits)
		}
	}
}

// copyHoldersLocked copies the holders of a shard. First come the lines of keys, then the holders
// of rate limits that hold, then the spent ones, the oldest first. mu of the shard must be held.
func (o *snapshotWriter) copyHoldersLocked(sh *shard) {
	o.lists, o.holders, o.backs = o.lists[:0], o.holders[:0], o.backs[:0]
	h := &sh.holders
	if h.count == 0 {
		return
	}
	for slot := range sh.table.each {
		limit := sh.limits.of(slot.limit())
		if limit.Algorithm != algorithms.Concurrency {
			continue
		}
		l := lineOf(slot.state)
		o.lists = append(o.lists, listCopy{key: slot.key(), limit: *limit, length: int(l.count)})
		for n := l.first; n != 0; n = h.of(n).after {
			o.holders = append(o.holders, *h.of(n))
		}
	}
	for n := range h.rates(0, len(h.chunks)) {
		if h.of(n).kind() == kindHeld && !h.returns(n) {
			o.holders = append(o.holders, *h.of(n))
		}
	}
	if h.back != nil {
		for n := h.back.first; n != 0; n = h.of(n).after {
			o.backs = append(o.backs, returning{h.back.keys[n], *h.of(n)})
		}
	}
	for n := h.spent.first; n != 0; n = h.of(n).after {
		o.holders = append(o.holders, *h.of(n))
	}
}

// writeHolders writes the copied holders, of instant at.
func (o *snapshotWriter) writeHolders(at algorithms.Instant) {
	holders := o.holders
	o.begin(sectionLines, at)
	for i := range o.lists {
		l := &o.lists[i]
		for some := range slices.Chunk(holders[:l.length], maxLine) {
			o.record(l.key, 0, &l.limit)
			o.uvarint(uint64(len(some)))
			for k := range some {
				o.holder(&some[k])
			}
		}
		holders = holders[l.length:]
	}
	o.finish()
	o.begin(sectionHolders, at)
	for i := range holders {
		o.next()
		o.names++
		o.uint64(uint64(holders[i].state))
		o.holder(&holders[i])
	}
	o.finish()
	o.begin(sectionReturns, at)
	for i := range o.backs {
		o.next()
		o.names++
		o.digest(o.backs[i].key)
		o.holder(&o.backs[i].holderRecord)
	}
	o.finish()
	if cap(o.holders)+cap(o.backs) > 4*keysPerShard {
		o.holders, o.backs = nil, nil // one large shard must not keep its room
	}
}

// beside writes records of another store.
func (o *snapshotWriter) beside(records [][]byte) {
	for _, r := range records {
		if len(r) > MaxBesideRecord {
			continue
		}
		o.uvarint(uint64(len(r)))
		o.content = append(o.content, r...)
		if o.saved.Beside++; len(o.content) >= fullEnough {
			o.section(sectionBeside)
		}
	}
	if len(o.content) > 0 {
		o.section(sectionBeside)
	}
}

// holder writes a holder without its state.
func (o *snapshotWriter) holder(r *holderRecord) {
	o.content = append(o.content, r.holder[:]...)
	o.uvarint(uint64(r.hits))
	o.varint(int64(o.at - r.at))
	o.varint(int64(r.until - o.at))
	o.saved.Holders++
}
