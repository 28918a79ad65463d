package memstore

import (
	"cmp"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// line is the holders of one key of concurrency in the order in which they run out. The state of
// the key's slot keeps the line.
type line struct {
	holderList
	used   uint64 // hits of all
	count  uint32
	finger uint32 // the last record that went to another place than the end; 0: none
}

func lineOf(s algorithms.State) line {
	last, a, b := s.Parts()
	return line{holderList{uint32(b), uint32(b >> 32)}, a, uint32(last), uint32(last >> 32)}
}

// state returns the line as the state of a slot. A line without holders is the zero state.
func (l *line) state() algorithms.State {
	return algorithms.StateOf(algorithms.Instant(uint64(l.count)|uint64(l.finger)<<32), l.used, uint64(l.first)|uint64(l.last)<<32)
}

// slots returns the summary of the line.
func (h *holders) slots(l *line) algorithms.Slots {
	if l.count == 0 {
		return algorithms.Slots{}
	}
	return algorithms.Slots{Used: l.used, First: h.of(l.first).until, Last: h.of(l.last).until}
}

// slotsWithout returns the summary of the line without record n.
func (h *holders) slotsWithout(l *line, n uint32) algorithms.Slots {
	s, r := h.slots(l), h.of(n)
	s.Used -= uint64(r.hits)
	switch {
	case l.count == 1:
		s = algorithms.Slots{}
	case r.before == 0:
		s.First = h.of(r.after).until
	case r.after == 0:
		s.Last = h.of(r.before).until
	}
	return s
}

// join adds a holder to the line.
func (h *holders) join(l *line, t stateTag, holder *store.Holder, hold algorithms.Hold) {
	n := h.add(holderRecord{holder: *holder, state: t | stateTag(kindSlots), at: hold.At, until: hold.Until, hits: hold.Hits})
	before := h.placeOf(l, hold.Until)
	if before != l.last {
		l.finger = n
	}
	h.insert(&l.holderList, n, before)
	l.used += uint64(hold.Hits)
	l.count++
}

// placeOf returns the record of the line behind which a new one goes; 0: it is the first. Most go
// to the end. After another at_most they go where the last one went that did not, so that few
// records are passed.
func (h *holders) placeOf(l *line, until algorithms.Instant) uint32 {
	if l.last == 0 || h.of(l.last).until <= until {
		return l.last
	}
	n := l.finger
	if n == 0 {
		n = l.last
	}
	for n != 0 && h.of(n).until > until {
		n = h.of(n).before
		h.walked++
	}
	for next := l.first; ; h.walked++ {
		if n != 0 {
			next = h.of(n).after
		}
		if next == 0 || h.of(next).until > until {
			return n
		}
		n = next
	}
}

// leave removes record n from the line.
func (h *holders) leave(l *line, n uint32) {
	r := h.of(n)
	if l.finger == n {
		l.finger = cmp.Or(r.before, r.after)
	}
	l.used -= uint64(r.hits)
	l.count--
	h.unlink(&l.holderList, n)
	h.remove(n)
}

// expire removes the holders that have run out at now, and reports whether there was one.
func (h *holders) expire(l *line, now algorithms.Instant) bool {
	ran := false
	for l.first != 0 && h.of(l.first).until <= now {
		h.leave(l, l.first)
		h.ranOut++
		ran = true
	}
	return ran
}

// leaveAll removes all holders of the line.
func (h *holders) leaveAll(l *line) {
	for l.first != 0 {
		h.leave(l, l.first)
	}
}

// holderList is a list of records, from before to after.
type holderList struct {
	first, last uint32
}

// insert puts record n into the list, behind the record before; 0: as the first.
func (h *holders) insert(l *holderList, n, before uint32) {
	r := h.of(n)
	r.before, r.after = before, l.first
	if before != 0 {
		r.after = h.of(before).after
		h.of(before).after = n
	} else {
		l.first = n
	}
	if r.after != 0 {
		h.of(r.after).before = n
	} else {
		l.last = n
	}
}

// unlink takes record n out of the list.
func (h *holders) unlink(l *holderList, n uint32) {
	r := h.of(n)
	if r.before != 0 {
		h.of(r.before).after = r.after
	} else {
		l.first = r.after
	}
	if r.after != 0 {
		h.of(r.after).before = r.before
	} else {
		l.last = r.before
	}
}
