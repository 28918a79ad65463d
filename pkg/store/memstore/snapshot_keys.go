package memstore

import (
	"encoding/binary"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

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
