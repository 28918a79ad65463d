package memstore

import (
	"encoding/binary"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

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
