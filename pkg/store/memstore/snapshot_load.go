package memstore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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
