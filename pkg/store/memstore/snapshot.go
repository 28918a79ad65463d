package memstore

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// A snapshot is the states of a store in bytes, for a store in a later process. All numbers are
// little-endian.
//
//	file     magic, version (4 bytes), sections
//	section  kind (1 byte), length of the content (4 bytes), content, checksum (4 bytes)
//	head     identity (8 random bytes), hash (1 byte), key of the hash (16 bytes), time of the
//	         snapshot (8 bytes, Unix ns),
//	         about how many keys follow (8 bytes)
//	keys     instant of the states (8 bytes, Unix ns), records
//	lines    instant of the holders (8 bytes, Unix ns), records of keys of concurrency
//	holders  instant (8 bytes, Unix ns), records of holders of rate limits
//	end      number of records (8 bytes)
//
// The first section is the head, the last one is the end, and nothing follows. A checksum is
// CRC-32C of the identity, the section's number, kind, length and content. So no section can be
// lost, moved, or taken from another snapshot.
//
// A record is the digest (13 bytes), the denied hits (1 byte), the number of the limit in the
// section, and the state. The first record of a limit holds the limit, too: algorithm (1 byte),
// requests, period and burst. A state is the time from the last charge to the section's instant,
// and its two words. The state of sliding_window_log begins with twice the number of its entries,
// plus one if the next record has more entries. The entries follow: time since the entry before,
// and hits. Numbers without a size are varints; times of a state, and of a first entry, are signed
// ones.
//
// The record of a key of concurrency has the number of its holders, or of some of these, in place
// of the state. The record of a holder of a rate limit begins with the tag of its state and its
// kind (8 bytes). A holder is the name (16 bytes), hits, the age of the begin, and the time until
// the holder runs out. Both times count from the section's instant, as signed varints. Version 1
// has no holders.
const (
	snapshotMagic   = "weir\r\n\x1a\x00" // no text, and damaged by a transfer as text
	snapshotVersion = 2
	snapshotOldest  = 1 // that Load reads

	sectionHead    = 1
	sectionKeys    = 2
	sectionEnd     = 3
	sectionLines   = 4
	sectionHolders = 5

	hashSip = 1 // SipHash-2-4 with 128 bits

	headSize   = 8 + 1 + 16 + 8 + 8
	digestSize = 8 + 5

	maxSection = 1 << 20  // bytes of content
	fullEnough = 1 << 19  // bytes of content after which a section ends
	maxRecord  = 16 << 10 // entries of a log in one record
	maxLine    = 8 << 10  // holders of a key in one record
)

// Errors of Save and Load.
var (
	ErrNotSavable = errors.New("the store was made without Options.Savable")
	ErrInUse      = errors.New("the store has keys already")
	ErrSnapshot   = errors.New("not a whole snapshot") // wrapped: the text says the damage
	ErrVersion    = errors.New("a snapshot of another version of this program")
)

// Saved is the result of Save.
type Saved struct {
	Keys    int // in the snapshot
	Holders int // the same
}

// Loaded is the result of Load.
type Loaded struct {
	Time   time.Time // of the snapshot
	Keys   int       // read and remembered
	Idle   int       // read, and idle by now: no decision needs them
	NoRoom int       // read, and forgotten: the store has less room than the store that was saved

	Holders int // read and remembered
}

// hashKey is the secret key of digests in a store that can be saved.
type hashKey [2]uint64

func newHashKey() hashKey {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hashKey{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])}
}

// checksum is the checksum of one section after another.
type checksum struct {
	table    *crc32.Table
	identity [8]byte
	number   uint32 // of the next section
}

func newChecksum() checksum { return checksum{table: crc32.MakeTable(crc32.Castagnoli)} }

// next returns the checksum of the next section.
func (c *checksum) next(kind byte, content []byte) uint32 {
	var head [17]byte
	copy(head[:], c.identity[:])
	binary.LittleEndian.PutUint32(head[8:], c.number)
	head[12] = kind
	binary.LittleEndian.PutUint32(head[13:], uint32(len(content)))
	c.number++
	return crc32.Update(crc32.Checksum(head[:], c.table), c.table, content)
}

// appendLimit appends a limit to a record.
func appendLimit(to []byte, l *algorithms.Limit) []byte {
	to = append(to, byte(l.Algorithm))
	to = binary.AppendUvarint(to, uint64(l.Requests))
	to = binary.AppendUvarint(to, uint64(l.Period))
	return binary.AppendUvarint(to, uint64(l.Burst))
}

// fields reads the fields of a section, and keeps the first failure.
type fields struct {
	rest   []byte
	failed bool
}

func (f *fields) bytes(n int) []byte {
	if len(f.rest) < n {
		f.failed, f.rest = true, nil
		return make([]byte, n)
	}
	b := f.rest[:n]
	f.rest = f.rest[n:]
	return b
}

func (f *fields) byte() byte     { return f.bytes(1)[0] }
func (f *fields) uint64() uint64 { return binary.LittleEndian.Uint64(f.bytes(8)) }

// skip goes on behind a number of n bytes; n <= 0 is a failure, and the number is 0.
func (f *fields) skip(n int) {
	if n <= 0 {
		f.failed, f.rest = true, nil
		return
	}
	f.rest = f.rest[n:]
}

func (f *fields) uvarint() uint64 {
	x, n := binary.Uvarint(f.rest)
	f.skip(n)
	return x
}

func (f *fields) varint() int64 {
	x, n := binary.Varint(f.rest)
	f.skip(n)
	return x
}

// limit reads a limit; an invalid limit is a failure.
func (f *fields) limit() algorithms.Limit {
	algorithm, requests, period, burst := f.byte(), f.uvarint(), f.uvarint(), f.uvarint()
	l := algorithms.Limit{
		Algorithm: algorithms.Algorithm(algorithm), Requests: uint32(requests), Period: time.Duration(period), Burst: uint32(burst),
	}
	if uint64(l.Requests) != requests || uint64(l.Burst) != burst || l.Validate() != nil {
		f.failed = true
	}
	return l
}

// readFull is io.ReadFull for a file that must not end there.
func readFull(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut off", ErrSnapshot)
	}
	return err
}

// loadedKey is a record without its state.
type loadedKey struct {
	key    digest
	denied deniedHits
	limit  algorithms.Limit
}

// readKeys reads the records of a section.
func (in *snapshotReader) readKeys() error {
	f := fields{rest: in.content}
	at := algorithms.Instant(f.uint64())
	in.limits, in.now = in.limits[:0], in.store.now()
	for len(f.rest) > 0 {
		in.records++
		k := in.keyOf(&f)
		switch {
		case f.failed || k.limit.Algorithm == algorithms.Concurrency || in.partial != nil && k != in.of:
			f.failed = true
		case k.limit.Algorithm.HasState():
			last, a, b := at-algorithms.Instant(f.varint()), f.uvarint(), f.uvarint()
			if !f.failed {
				in.state(&k, algorithms.StateOf(last, a, b), at)
			}
		default:
			in.log(&f, k, at)
		}
		if f.failed {
			return in.damaged("has a wrong record")
		}
	}
	if f.failed {
		return in.damaged("is too short")
	}
	return nil
}

// keyOf reads the begin of a record.
func (in *snapshotReader) keyOf(f *fields) loadedKey {
	k := loadedKey{key: digest{hi: f.uint64()}}
	var lo [8]byte
	copy(lo[:], f.bytes(digestSize-8))
	k.key.lo = binary.LittleEndian.Uint64(lo[:]) << digestBits
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
	f.failed = f.failed || k.key.hi == 0
	return k
}

// state puts a state of instant at into the store.
func (in *snapshotReader) state(k *loadedKey, state algorithms.State, at algorithms.Instant) {
	state = algorithms.Clamp(k.limit, state, at)
	now := in.now
	if at > now { // the clock has gone back: no time has passed
		state = algorithms.Realign(k.limit, state, at, -at.Sub(now))
	}
	in.put(view{key: k.key, limit: k.limit, denied: k.denied, state: state}, algorithms.IdleAt(k.limit, state), now)
}

// log reads entries of a log, and puts the log into the store after its last record.
func (in *snapshotReader) log(f *fields, k loadedKey, at algorithms.Instant) {
	log := in.partial
	if log == nil {
		log = new(algorithms.Log)
	}
	number := f.uvarint()
	entry := algorithms.LogEntry{At: at - algorithms.Instant(f.varint())}
	for i := range number / 2 {
		if i > 0 {
			entry.At = entry.At.Add(time.Duration(f.uvarint() & (1<<63 - 1)))
		}
		entry.Hits = f.uvarint()
		if f.failed {
			return
		}
		log.Restore(k.limit, entry, at)
	}
	in.partial, in.of = nil, k
	if number%2 == 1 {
		in.partial = log
		return
	}
	now := in.now
	if at > now {
		log.Realign(-at.Sub(now))
	}
	in.put(view{key: k.key, limit: k.limit, denied: k.denied, log: log}, log.IdleAt(k.limit), now)
}

// put makes the view's state the state of its key.
func (in *snapshotReader) put(v view, idle, now algorithms.Instant) {
	if idle <= now {
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
		now = sh.instantLocked(s)
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

// lineCopy is a key of concurrency without a lock.
type lineCopy struct {
	key     digest
	limit   algorithms.Limit
	holders int // how many of the writer's holders
}

// copyHoldersLocked copies the holders of a shard. First come the lines of keys, then the holders
// of rate limits that hold, then the spent ones, the oldest first. mu of the shard must be held.
func (o *snapshotWriter) copyHoldersLocked(sh *shard) {
	o.lines, o.holders = o.lines[:0], o.holders[:0]
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
		o.lines = append(o.lines, lineCopy{slot.key(), *limit, int(l.count)})
		for n := l.first; n != 0; n = h.of(n).after {
			o.holders = append(o.holders, *h.of(n))
		}
	}
	for n := range h.rates(0, len(h.chunks)) {
		if h.of(n).kind() == kindHeld {
			o.holders = append(o.holders, *h.of(n))
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
	for i := range o.lines {
		l := &o.lines[i]
		own := holders[:l.holders]
		holders = holders[l.holders:]
		for len(own) > 0 {
			some := own[:min(len(own), maxLine)]
			own = own[len(some):]
			o.record(l.key, 0, &l.limit)
			o.content = binary.AppendUvarint(o.content, uint64(len(some)))
			for k := range some {
				o.holder(&some[k])
			}
		}
	}
	o.finish()
	o.begin(sectionHolders, at)
	for i := range holders {
		if len(o.content) >= fullEnough {
			o.finish()
			o.begin(sectionHolders, at)
		}
		o.names++
		o.content = binary.LittleEndian.AppendUint64(o.content, uint64(holders[i].state))
		o.holder(&holders[i])
	}
	o.finish()
	if cap(o.holders) > 4*keysPerShard {
		o.holders = nil // one large shard must not keep its room
	}
}

// holder writes a holder without its state.
func (o *snapshotWriter) holder(r *holderRecord) {
	o.content = append(o.content, r.holder[:]...)
	o.content = binary.AppendUvarint(o.content, uint64(r.hits))
	o.content = binary.AppendVarint(o.content, int64(o.at-r.at))
	o.content = binary.AppendVarint(o.content, int64(r.until-o.at))
	o.holderCount++
}

// readLines reads a section of keys of concurrency.
func (in *snapshotReader) readLines() error {
	f := fields{rest: in.content}
	at := algorithms.Instant(f.uint64())
	in.limits, in.now = in.limits[:0], in.store.now()
	for len(f.rest) > 0 && !f.failed {
		in.records++
		k := in.keyOf(&f)
		f.failed = f.failed || k.limit.Algorithm != algorithms.Concurrency
		for n := f.uvarint(); n > 0 && !f.failed; n-- {
			r := in.holder(&f, at)
			r.state = k.key.tag()
			if r.hits == 0 {
				f.failed = true
			}
			if !f.failed {
				in.putSlots(&k, r)
			}
		}
	}
	return in.wrong(&f)
}

// readHolders reads a section of holders of rate limits.
func (in *snapshotReader) readHolders() error {
	f := fields{rest: in.content}
	at := algorithms.Instant(f.uint64())
	in.now = in.store.now()
	for len(f.rest) > 0 && !f.failed {
		in.records++
		state := stateTag(f.uint64())
		r := in.holder(&f, at)
		r.state = state
		switch r.kind() {
		case kindHeld:
			f.failed = f.failed || r.hits == 0
		case kindDenied, kindEnded:
			r.hits, r.at = 0, 0
		default:
			f.failed = true
		}
		if !f.failed {
			in.putHolder(r)
		}
	}
	return in.wrong(&f)
}

// wrong returns the error of a section whose fields have failed.
func (in *snapshotReader) wrong(f *fields) error {
	if f.failed {
		return in.damaged("has a wrong record")
	}
	return nil
}

// holder reads a holder without the state. No begin is later than now. If the clock has gone back,
// no time has passed.
func (in *snapshotReader) holder(f *fields, at algorithms.Instant) (r holderRecord) {
	copy(r.holder[:], f.bytes(len(r.holder)))
	hits, age, left := f.uvarint(), f.varint(), f.varint()
	r.hits = uint32(hits)
	f.failed = f.failed || uint64(r.hits) != hits
	now := min(at, in.now)
	r.at = now - algorithms.Instant(max(age, 0))
	r.until = now.Add(min(time.Duration(max(left, 0)), algorithms.MaxPeriod))
	return r
}

// putSlots puts a holder into the line of its key, and the key into the store.
func (in *snapshotReader) putSlots(k *loadedKey, r holderRecord) {
	if r.until <= in.now {
		return
	}
	s := in.store
	sh := s.shardOf(k.key)
	hold := r.hold()
	in.put(view{
		key: k.key, limit: k.limit, slots: algorithms.Slots{Used: uint64(r.hits), First: r.until, Last: r.until},
	}, r.until, in.now)
	in.join(sh, &r, func() bool { return sh.joinLineLocked(k.key, &r.holder, hold) })
}

// putHolder puts a holder of a rate limit into the store.
func (in *snapshotReader) putHolder(r holderRecord) {
	s := in.store
	if r.until <= in.now {
		return
	}
	sh := &s.shards[int(r.state>>kindBits)&(1<<shardBits-1)&(len(s.shards)-1)]
	in.join(sh, &r, func() bool {
		sh.holders.remember(r.tag(), &r.holder, r.hold())
		return true
	})
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
