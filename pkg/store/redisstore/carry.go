package redisstore

import (
	"encoding/binary"
	"math"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// pair is a limit and the one that replaced it, for the script to carry hits over.
type pair struct {
	from, to store.Charge // without memory of callers
	both     bool
	places   [4]int // of the keys: from and its mark, to and its mark
}

// ownFormers copies the former limits of a charge, with the memory of the keys.
func ownFormers(formers []store.Former) []store.Former {
	if len(formers) == 0 {
		return nil
	}
	own := append([]store.Former(nil), formers...)
	for i := range own {
		own[i].Key = append([]byte(nil), own[i].Key...)
	}
	return own
}

// carries reports whether the script can carry hits over between the states of two charges: both
// are kept as records or lists, in one slot.
func (n *names) carries(from, to *store.Charge) bool {
	for _, c := range []*store.Charge{from, to} {
		if c.Limit.Algorithm == algorithms.Concurrency || n.isCounter(c) {
			return false
		}
	}
	if !n.cluster {
		return true
	}
	a, _ := n.appendName(nil, from, 0)
	b, _ := n.appendName(nil, to, 0)
	return tagOf(string(a)) != "" && slotOf(string(a)) == slotOf(string(b))
}

// appendMark appends the name of the mark of a state, for a change to or from another state. The
// name of the state is in front, so that a tag in braces decides on the slot of both.
func (n *names) appendMark(dst []byte, c, other *store.Charge) []byte {
	dst, _ = n.appendName(dst, c, 0)
	return appendKey(append(dst, ";c"...), other)
}

// addPairs adds the limits that the limit of a charge replaced, in their order.
func (b *batch) addPairs(c *store.Charge) {
	for n := range c.Before {
		f := &c.Before[n]
		p := pair{from: store.Charge{Key: f.Key, Limit: f.Limit}, to: store.Charge{Key: c.Key, Limit: c.Limit}, both: f.Both}
		if at := c.Taker(n); at < len(c.Before) {
			p.to = store.Charge{Key: c.Before[at].Key, Limit: c.Before[at].Limit}
		}
		if !b.server.carries(&p.from, &p.to) {
			continue
		}
		p.places[0], _ = b.place(&p.from, 0)
		p.places[2], _ = b.place(&p.to, 0)
		b.key = b.server.appendMark(b.key[:0], &p.from, &p.to)
		p.places[1] = b.placeOfKey()
		b.key = b.server.appendMark(b.key[:0], &p.to, &p.from)
		p.places[3] = b.placeOfKey()
		if !b.hasPair(&p) {
			b.pairs = append(b.pairs, p)
		}
	}
}

func (b *batch) hasPair(p *pair) bool {
	for i := range b.pairs {
		if b.pairs[i].places == p.places {
			b.pairs[i].both = b.pairs[i].both || p.both
			return true
		}
	}
	return false
}

// appendPairs adds the pairs to a request, see carry.lua.
func (b *batch) appendPairs(r []byte) []byte {
	if len(b.pairs) == 0 {
		return r
	}
	r[headerSize-1] = 1
	r = append(r, carryOver)
	r = binary.LittleEndian.AppendUint32(r, 1)
	r = binary.LittleEndian.AppendUint32(r, uint32(len(b.pairs)))
	for i := range b.pairs {
		p := &b.pairs[i]
		if r = append(r, 0); p.both {
			r[len(r)-1] = 1
		}
		r = b.appendSide(r, p.places[0], p.places[1], &p.from.Limit)
		r = b.appendSide(r, p.places[2], p.places[3], &p.to.Limit)
	}
	return r
}

func (b *batch) appendSide(r []byte, key, mark int, l *algorithms.Limit) []byte {
	r[17+int(l.Algorithm)] = 1
	r = binary.LittleEndian.AppendUint32(r, uint32(key)+1)
	r = binary.LittleEndian.AppendUint32(r, uint32(mark)+1)
	r = append(r, byte(l.Algorithm))
	r = appendInt(r, int64(l.PerPeriod()), 7)
	capacity := uint32(min(l.Capacity(), math.MaxUint32))
	if l.Algorithm.HasCalendar() {
		capacity = b.calendar(l.Calendar)
	}
	r = binary.LittleEndian.AppendUint32(r, capacity)
	return appendInt(r, int64(l.Period/Granularity), 7)
}
