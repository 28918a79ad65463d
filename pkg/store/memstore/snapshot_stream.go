package memstore

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

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
// Errors: ErrNotSavable, and the errors of w.
func (s *Store) Save(w io.Writer) (Saved, error) {
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
	out.end()
	return Saved{Keys: int(out.records), Holders: int(out.holderCount)}, out.err
}

// snapshotWriter writes sections. After an error it writes nothing.
type snapshotWriter struct {
	w        *bufio.Writer
	checksum checksum
	records  uint64
	names    uint64 // records of holders of rate limits
	content  []byte
	frame    []byte // around content
	err      error

	kind    byte               // of the section
	at      algorithms.Instant // the same
	numbers map[algorithms.Limit]uint64

	slots   []slot // copies of a shard's
	limits  []algorithms.Limit
	logs    []logCopy
	entries []algorithms.LogEntry
	lines   []lineCopy
	holders []holderRecord

	holderCount uint64
}

// logCopy is a log without a lock.
type logCopy struct {
	key     digest
	denied  deniedHits
	limit   algorithms.Limit
	entries int // how many of the writer's entries
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

func (o *snapshotWriter) head(key hashKey, now algorithms.Instant, keys int64) {
	_, _ = rand.Read(o.checksum.identity[:]) // never fails
	o.content = append(o.content, o.checksum.identity[:]...)
	o.content = append(o.content, hashSip)
	o.content = binary.LittleEndian.AppendUint64(o.content, key[0])
	o.content = binary.LittleEndian.AppendUint64(o.content, key[1])
	o.content = binary.LittleEndian.AppendUint64(o.content, uint64(now))
	o.content = binary.LittleEndian.AppendUint64(o.content, uint64(keys))
	o.section(sectionHead)
}

func (o *snapshotWriter) end() {
	o.content = binary.LittleEndian.AppendUint64(o.content, o.records+o.names)
	o.section(sectionEnd)
	if o.err == nil {
		o.err = o.w.Flush()
	}
}

// begin starts a section of records.
func (o *snapshotWriter) begin(kind byte, at algorithms.Instant) {
	o.kind, o.at = kind, at
	clear(o.numbers)
	o.content = binary.LittleEndian.AppendUint64(o.content[:0], uint64(at))
}

// finish ends a section of records, if it has any.
func (o *snapshotWriter) finish() {
	if len(o.content) > 8 {
		o.section(o.kind)
	}
	o.content = o.content[:0]
}

// record starts a record, in a new section if the section is full enough.
func (o *snapshotWriter) record(key digest, denied deniedHits, limit *algorithms.Limit) {
	if len(o.content) >= fullEnough {
		o.finish()
		o.begin(o.kind, o.at)
	}
	o.records++
	o.content = binary.LittleEndian.AppendUint64(o.content, key.hi)
	lo := binary.LittleEndian.AppendUint64(o.content, key.lo>>digestBits)
	o.content = append(lo[:len(lo)-3], byte(denied))
	number, known := o.numbers[*limit]
	if !known {
		number = uint64(len(o.numbers))
		o.numbers[*limit] = number
	}
	o.content = binary.AppendUvarint(o.content, number)
	if !known {
		o.content = appendLimit(o.content, limit)
	}
}

// shard writes the states of a shard.
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
	for i := range o.slots {
		slot := o.slots[i]
		if slot.empty() {
			continue
		}
		limit := &o.limits[slot.limit()]
		switch limit.Algorithm {
		case algorithms.Concurrency:
			continue
		case algorithms.SlidingWindowLog:
			logged = append(logged, slot)
			continue
		default:
		}
		o.record(slot.key(), slot.denied(), limit)
		last, a, b := slot.state.Parts()
		o.content = binary.AppendVarint(o.content, int64(o.at-last))
		o.content = binary.AppendUvarint(o.content, a)
		o.content = binary.AppendUvarint(o.content, b)
	}
	o.finish()
	o.writeHolders(at)
	for len(logged) > 0 && o.err == nil {
		logged = o.someLogs(s, sh, logged)
	}
}

// someLogs writes some of the logs, and returns the others.
func (o *snapshotWriter) someLogs(s *Store, sh *shard, logged []slot) (others []slot) {
	const enough = 4096 // entries to copy under one lock
	o.logs, o.entries = o.logs[:0], o.entries[:0]
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
		o.logs = append(o.logs, logCopy{key, slot.denied(), *sh.limits.of(slot.limit()), len(o.entries) - before})
	}
	sh.mu.Unlock()

	o.begin(sectionKeys, at)
	entries := o.entries
	for i := range o.logs {
		o.log(&o.logs[i], entries[:o.logs[i].entries])
		entries = entries[o.logs[i].entries:]
	}
	o.finish()
	if cap(o.entries) > 2*maxRecord {
		o.entries = nil // one large log must not keep its room
	}
	return logged
}

// log writes the records of a log.
func (o *snapshotWriter) log(l *logCopy, entries []algorithms.LogEntry) {
	for len(entries) > 0 {
		some := entries[:min(len(entries), maxRecord)]
		entries = entries[len(some):]
		o.record(l.key, l.denied, &l.limit)
		number := 2 * uint64(len(some))
		if len(entries) > 0 {
			number++
		}
		o.content = binary.AppendUvarint(o.content, number)
		o.content = binary.AppendVarint(o.content, int64(o.at-some[0].At))
		for i := range some {
			if i > 0 {
				o.content = binary.AppendUvarint(o.content, uint64(some[i].At-some[i-1].At))
			}
			o.content = binary.AppendUvarint(o.content, some[i].Hits)
		}
	}
}

// Load reads a snapshot that Save wrote, into an empty store. No other method may be called before
// Load has returned. The store then decides as the saved store would have: the time between Save
// and Load counts as time passed. If the wall clock has gone back since, no time counts as passed.
// The store may have another bound than the saved one; a smaller store forgets keys as it does at
// its bound.
//
// Load believes nothing: limits must be valid, states become the nearest ones that their algorithm
// can have made by then. The memory of Load, beside the store, is at most 1.2 MiB. After an error
// the store is empty and usable.
//
// Errors: ErrNotSavable, ErrInUse, ErrVersion, ErrSnapshot, and the errors of r.
func (s *Store) Load(r io.Reader) (Loaded, error) {
	switch {
	case !s.savable:
		return Loaded{}, ErrNotSavable
	case s.metrics.places.Load() > 0 || s.metrics.holds.Load() > 0:
		return Loaded{}, ErrInUse
	}
	in := snapshotReader{store: s, r: bufio.NewReaderSize(r, 128<<10), checksum: newChecksum()}
	evicted := s.metrics.evicted.Load()
	if err := in.read(); err != nil {
		s.clear()
		return Loaded{}, err
	}
	s.hashKey = in.key
	forgotten := int(s.metrics.evicted.Load() - evicted)
	in.loaded.Keys -= forgotten
	in.loaded.NoRoom += forgotten
	return in.loaded, nil
}

// clear forgets every key.
func (s *Store) clear() {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for slot := range sh.table.each {
			s.metrics.places.Add(-int64(sh.placesLocked(slot)))
		}
		for place := range sh.table.slots { // lines of keys go with their slots
			if s := &sh.table.slots[place]; !s.empty() {
				sh.releaseLocked(s)
			}
		}
		sh.table, sh.limits, sh.logs = table{}, limits{}, logs{}
		sh.candidates.reset()
		for n := range sh.holders.rates(0, len(sh.holders.chunks)) {
			sh.holders.forget(n)
		}
		sh.mu.Unlock()
	}
}

// snapshotReader reads sections into a store.
type snapshotReader struct {
	store    *Store
	r        *bufio.Reader
	checksum checksum
	content  []byte
	key      hashKey
	records  uint64
	loaded   Loaded

	limits  []algorithms.Limit // of the section
	now     algorithms.Instant // of the section
	partial *algorithms.Log    // a log with more entries in the next record
	of      loadedKey          // of that log
}

func (in *snapshotReader) read() error {
	var head [len(snapshotMagic) + 4]byte
	if err := readFull(in.r, head[:]); err != nil {
		return err
	}
	if string(head[:len(snapshotMagic)]) != snapshotMagic {
		return fmt.Errorf("%w: it begins with other bytes than a snapshot", ErrSnapshot)
	}
	if v := binary.LittleEndian.Uint32(head[len(snapshotMagic):]); v < snapshotOldest || v > snapshotVersion {
		return fmt.Errorf("%w: it is of version %d, must be %d to %d", ErrVersion, v, snapshotOldest, snapshotVersion)
	}
	if err := in.readHead(); err != nil {
		return err
	}
	for {
		kind, err := in.section()
		if err != nil {
			return err
		}
		switch kind {
		case sectionKeys:
			if err := in.readKeys(); err != nil {
				return err
			}
		case sectionLines:
			if err := in.readLines(); err != nil {
				return err
			}
		case sectionHolders:
			if err := in.readHolders(); err != nil {
				return err
			}
		case sectionEnd:
			return in.readEnd()
		default:
			return in.damaged("has an unknown kind")
		}
	}
}

// damaged returns the error of the section that was read last.
func (in *snapshotReader) damaged(how string) error {
	return fmt.Errorf("%w: section %d %s", ErrSnapshot, in.checksum.number, how)
}

// section reads a section into content.
func (in *snapshotReader) section() (kind byte, err error) {
	var head [5]byte
	if err := readFull(in.r, head[:]); err != nil {
		return 0, err
	}
	size := binary.LittleEndian.Uint32(head[1:])
	if size > maxSection {
		return 0, in.damaged("is too long")
	}
	if cap(in.content) < int(size) {
		in.content = make([]byte, size)
	}
	in.content = in.content[:size]
	if err := readFull(in.r, in.content); err != nil {
		return 0, err
	}
	var sum [4]byte
	if err := readFull(in.r, sum[:]); err != nil {
		return 0, err
	}
	if in.checksum.number == 0 && size == headSize { // the head's checksum covers its own identity
		copy(in.checksum.identity[:], in.content)
	}
	if in.checksum.next(head[0], in.content) != binary.LittleEndian.Uint32(sum[:]) {
		return 0, in.damaged("has a wrong checksum")
	}
	return head[0], nil
}

func (in *snapshotReader) readHead() error {
	kind, err := in.section()
	if err != nil {
		return err
	}
	f := fields{rest: in.content}
	f.bytes(len(in.checksum.identity))
	hash := f.byte()
	in.key = hashKey{f.uint64(), f.uint64()}
	in.loaded.Time = time.Unix(0, int64(f.uint64()))
	keys := f.uint64()
	if kind != sectionHead || f.failed || len(f.rest) > 0 {
		return in.damaged("is no head")
	}
	if hash != hashSip {
		return fmt.Errorf("%w: its hash has the number %d, must be %d", ErrVersion, hash, hashSip)
	}
	in.store.reserve(keys)
	return nil
}

// reserve makes the tables large enough for that many keys at once, up to the bound.
func (s *Store) reserve(keys uint64) {
	each := int32(min(keys, uint64(s.maxKeys))) / int32(len(s.shards))
	if each < keysPerShard/8 {
		return
	}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.table.resize(each + each/4) // for a fill of 5/6, and shards above the mean
		sh.mu.Unlock()
	}
}

func (in *snapshotReader) readEnd() error {
	f := fields{rest: in.content}
	records := f.uint64()
	if f.failed || len(f.rest) > 0 || in.partial != nil {
		return in.damaged("is no end")
	}
	if records != in.records {
		return fmt.Errorf("%w: it has %d records, must have %d", ErrSnapshot, in.records, records)
	}
	if _, err := in.r.ReadByte(); !errors.Is(err, io.EOF) {
		if err != nil {
			return err
		}
		return fmt.Errorf("%w: more bytes follow its end", ErrSnapshot)
	}
	return nil
}
