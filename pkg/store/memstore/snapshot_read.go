package memstore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Load reads a snapshot that Save wrote, into an empty store. No other method may be called before
// Load has returned. The store then decides as the saved store would have: the time between Save
// and Load counts as time passed. If the wall clock has gone back since, no time counts as passed.
// The store may have another bound than the saved one; a smaller store forgets keys as it does at
// its bound.
//
// Load believes nothing: limits must be valid, states become the nearest ones that their algorithm
// can have made by then. The memory of Load, beside the store and the records of another store, is
// at most 1.2 MiB. After an error the store is empty and usable.
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
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.nextReturn = 1 // the next touch looks
		sh.mu.Unlock()
	}
	forgotten := int(s.metrics.evicted.Load() - evicted)
	in.loaded.Keys -= forgotten
	in.loaded.NoRoom += forgotten
	return in.loaded, nil
}

// clear forgets every key.
func (s *Store) clear() {
	s.blocks.clear()
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
	beside   int // bytes of records of another store
	loaded   Loaded

	limits  []algorithms.Limit // of the section
	at, now algorithms.Instant // of the section, and of the store at its begin
	partial *algorithms.Log    // a log with more entries in the next record
	of      loadedKey          // of that log
}

// loadedKey is a record without its state.
type loadedKey struct {
	key    digest
	denied deniedHits
	limit  algorithms.Limit
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
		case sectionKeys, sectionLines, sectionHolders, sectionReturns:
			if err := in.readRecords(kind); err != nil {
				return err
			}
		case sectionBeside:
			if err := in.readBeside(); err != nil {
				return err
			}
		case sectionEnd:
			return in.readEnd()
		default:
			return in.damaged("has an unknown kind")
		}
	}
}

// readBeside reads records of another store.
func (in *snapshotReader) readBeside() error {
	f := &fields{rest: in.content}
	for len(f.rest) > 0 && !f.failed {
		record := f.bytes(int(min(f.uvarint(), MaxBesideRecord)))
		in.loaded.Beside = append(in.loaded.Beside, slices.Clone(record))
		if in.beside += len(record); in.beside > MaxBeside || len(in.loaded.Beside) > maxBesides {
			return in.damaged("has too many records of another store")
		}
	}
	if f.failed {
		return in.damaged("has a wrong record")
	}
	return nil
}

// readRecords reads the records of a section.
func (in *snapshotReader) readRecords(kind byte) error {
	f := &fields{rest: in.content}
	in.at = algorithms.Instant(f.uint64())
	in.limits, in.now = in.limits[:0], in.store.now()
	if f.failed {
		return in.damaged("is too short")
	}
	for len(f.rest) > 0 && !f.failed {
		in.records++
		switch kind {
		case sectionKeys:
			in.readKey(f)
		case sectionLines:
			in.readLine(f)
		case sectionHolders:
			in.readHolder(f)
		case sectionReturns:
			in.readReturning(f)
		}
	}
	if f.failed {
		return in.damaged("has a wrong record")
	}
	return nil
}

// readKey reads a key with a state or a log, and puts it into the store.
func (in *snapshotReader) readKey(f *fields) {
	k := in.keyOf(f)
	switch {
	case f.failed || k.limit.Algorithm == algorithms.Concurrency || in.partial != nil && k != in.of:
		f.failed = true
	case k.limit.Algorithm.HasState():
		last, a, b := in.at-algorithms.Instant(f.varint()), f.uvarint(), f.uvarint()
		if !f.failed {
			in.putState(&k, algorithms.StateOf(last, a, b))
		}
	default:
		in.readLog(f, &k)
	}
}

// keyOf reads the begin of a record.
func (in *snapshotReader) keyOf(f *fields) loadedKey {
	k := loadedKey{key: f.digest()}
	k.denied = deniedHits(f.byte())
	switch number := f.uvarint(); {
	case number < uint64(len(in.limits)):
		k.limit = in.limits[number]
	case number == uint64(len(in.limits)):
		k.limit = f.limit()
		in.limits = append(in.limits, k.limit)
	default:
		f.failed = true
	}
	return k
}

// digest reads a digest; one of no key is a failure.
func (f *fields) digest() digest {
	d := digest{hi: f.uint64()}
	var lo [8]byte
	copy(lo[:], f.bytes(digestSize-8))
	d.lo = binary.LittleEndian.Uint64(lo[:]) << digestBits
	f.failed = f.failed || d.hi == 0
	return d
}

// putState puts a state of the section into the store.
func (in *snapshotReader) putState(k *loadedKey, state algorithms.State) {
	state = algorithms.Clamp(k.limit, state, in.at)
	if in.at > in.now { // the clock has gone back: no time has passed
		state = algorithms.Realign(k.limit, state, in.at, -in.at.Sub(in.now))
	}
	if k.limit.Algorithm == algorithms.Escalation {
		in.putOffender(k, state)
		return
	}
	in.put(view{key: k.key, limit: k.limit, denied: k.denied, state: state}, algorithms.IdleAt(k.limit, state))
}

// readLog reads entries of a log, and puts the log into the store after its last record.
func (in *snapshotReader) readLog(f *fields, k *loadedKey) {
	log := in.partial
	if log == nil {
		log = new(algorithms.Log)
	}
	number := f.uvarint()
	entry := algorithms.LogEntry{At: in.at - algorithms.Instant(f.varint())}
	for i := range number / 2 {
		if i > 0 {
			entry.At = entry.At.Add(time.Duration(f.uvarint() & (1<<63 - 1)))
		}
		entry.Hits = f.uvarint()
		if f.failed {
			return
		}
		log.Restore(k.limit, entry, in.at)
	}
	in.partial, in.of = nil, *k
	if number%2 == 1 {
		in.partial = log
		return
	}
	if in.at > in.now {
		log.Realign(-in.at.Sub(in.now))
	}
	in.put(view{key: k.key, limit: k.limit, denied: k.denied, log: log}, log.IdleAt(k.limit))
}

// putOffender puts a key of algorithms.Escalation into the store.
func (in *snapshotReader) putOffender(k *loadedKey, state algorithms.State) {
	if algorithms.IdleAt(k.limit, state) <= in.now {
		in.loaded.Idle++
		return
	}
	sh, _ := in.store.blocks.lock(in.store, k.key)
	defer sh.mu.Unlock()
	forced := sh.forced
	sh.putLocked(k.key, k.limit, state)
	if in.loaded.Keys++; sh.forced > forced {
		in.loaded.Keys--
		in.loaded.NoRoom++
	}
}

// put makes the view's state the state of its key.
func (in *snapshotReader) put(v view, idle algorithms.Instant) {
	if idle <= in.now {
		in.loaded.Idle++
		return
	}
	s := in.store
	sh := s.shardOf(v.key)
	v.shard = sh
	want := want{key: v.key, places: 1, adds: true}
	if v.log != nil {
		want.places += placesOf(v.log.Size())
	}
	var r room
	r.refuseLarger(s, want.places, true)
	for {
		sh.mu.Lock()
		now := sh.instantLocked(s)
		if _, known := sh.table.find(v.key); known { // twice in the snapshot, as no snapshot has it
			sh.mu.Unlock()
			break
		}
		if !r.full && !s.claimLocked(&r, want, now) {
			sh.mu.Unlock()
			s.makeRoom(&r, want)
			continue
		}
		if r.full {
			in.loaded.NoRoom++
		} else {
			r.held -= sh.insertLocked(&v, now)
			in.loaded.Keys++
		}
		sh.mu.Unlock()
		break
	}
	s.giveBack(&r)
}

// readLine reads holders of a key of concurrency, and puts them into the line of the key.
func (in *snapshotReader) readLine(f *fields) {
	k := in.keyOf(f)
	f.failed = f.failed || k.limit.Algorithm != algorithms.Concurrency
	for n := f.uvarint(); n > 0 && !f.failed; n-- {
		r := in.holder(f)
		r.state = k.key.tag()
		if f.failed = f.failed || r.hits == 0; f.failed || r.until <= in.now {
			continue
		}
		in.put(view{
			key: k.key, limit: k.limit, slots: algorithms.Slots{Used: uint64(r.hits), First: r.until, Last: r.until},
		}, r.until)
		sh := in.store.shardOf(k.key)
		in.join(sh, &r, func() bool { return sh.joinLineLocked(k.key, &r.holder, r.hold()) })
	}
}

// readHolder reads a holder of a rate limit, and puts it into the store.
func (in *snapshotReader) readHolder(f *fields) {
	state := stateTag(f.uint64())
	r := in.holder(f)
	r.state = state
	switch r.kind() {
	case kindHeld: // perhaps 0 hits, see algorithms.HoldPair
	case kindDenied, kindEnded:
		r.hits, r.at = 0, 0
	default:
		f.failed = true
	}
	if f.failed || r.until <= in.now {
		return
	}
	sh := &in.store.shards[int(state>>kindBits)&(1<<shardBits-1)&(len(in.store.shards)-1)]
	in.join(sh, &r, func() bool {
		sh.holders.remember(r.tag(), &r.holder, r.hold())
		return true
	})
}

// readReturning reads a holder whose hits come back, and puts it into the store. One that has run
// out gives its hits back once Load is done.
func (in *snapshotReader) readReturning(f *fields) {
	key := f.digest()
	r := in.holder(f)
	r.state = key.tag() | stateTag(kindHeld)
	if f.failed = f.failed || r.hits == 0; f.failed {
		return
	}
	sh := in.store.shardOf(key)
	in.join(sh, &r, func() bool {
		sh.holders.returnLater(sh.holders.remember(r.tag(), &r.holder, r.hold()), key)
		return true
	})
}

// holder reads a holder without the state. No begin is later than now. If the clock has gone back,
// no time has passed.
func (in *snapshotReader) holder(f *fields) (r holderRecord) {
	copy(r.holder[:], f.bytes(len(r.holder)))
	hits, age, left := f.uvarint(), f.varint(), f.varint()
	r.hits = uint32(hits)
	f.failed = f.failed || uint64(r.hits) != hits
	now := min(in.at, in.now)
	r.at = now - algorithms.Instant(max(age, 0))
	r.until = now.Add(min(time.Duration(max(left, 0)), algorithms.MaxPeriod))
	return r
}

// join puts a holder into a shard, if there is room. A spent holder displaces no other.
func (in *snapshotReader) join(sh *shard, r *holderRecord, put func() bool) {
	s := in.store
	var room room
	for !room.holdFull {
		sh.mu.Lock()
		now := sh.instantLocked(s)
		known := sh.holders.find(r.tag(), &r.holder) != 0 // twice in the snapshot, as no snapshot has it
		if known || s.claimHolds(&room, 1) || !r.kind().spent() && s.claimHoldsLocked(&room, 1, sh, now) {
			if !known && put() {
				room.holds--
				in.loaded.Holders++
			}
			sh.mu.Unlock()
			s.giveBack(&room)
			return
		}
		sh.mu.Unlock()
		if r.kind().spent() {
			return
		}
		s.makeRoomForHolds(&room, 1)
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

// readFull is io.ReadFull for a file that must not end there.
func readFull(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut off", ErrSnapshot)
	}
	return err
}
