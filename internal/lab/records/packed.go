package records

import (
	"encoding/binary"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// Flags of a packed descriptor.
const (
	flagProbe = 1 << iota
	flagRefund
	flagOverride
)

// packedSize returns the most bytes that a packed request takes.
func packedSize(r *limiter.Request) int {
	size := 8 + 1 + 4*binary.MaxVarintLen32 + len(r.Domain)
	for i := range r.Descriptors {
		size += 1 + binary.MaxVarintLen64 + 4*binary.MaxVarintLen32
		for _, e := range r.Descriptors[i].Entries {
			size += 2*binary.MaxVarintLen32 + len(e.Key) + len(e.Value)
		}
	}
	return size
}

// pack appends a copy of a request, for unpack in this process. A copy costs the goroutine that
// answers less than a line of JSON.
func pack(dst []byte, at algorithms.Instant, answer Answer, r *limiter.Request) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(at))
	dst = append(dst, byte(answer))
	dst = binary.AppendUvarint(dst, uint64(r.Hits))
	dst = packText(dst, r.Domain)
	dst = binary.AppendUvarint(dst, uint64(len(r.Descriptors)))
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		flags := byte(0)
		if d.Probe {
			flags |= flagProbe
		}
		if d.Refund {
			flags |= flagRefund
		}
		if d.Override != nil {
			flags |= flagOverride
		}
		dst = append(dst, flags)
		dst = binary.AppendUvarint(dst, d.Hits)
		if o := d.Override; o != nil {
			dst = binary.AppendUvarint(dst, uint64(o.Requests))
			dst = binary.AppendUvarint(dst, uint64(uint32(o.Unit)))
			dst = binary.AppendUvarint(dst, uint64(o.Multiplier))
		}
		dst = binary.AppendUvarint(dst, uint64(len(d.Entries)))
		for _, e := range d.Entries {
			dst = packText(packText(dst, e.Key), e.Value)
		}
	}
	return dst
}

func packText(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// unpacker reads packed requests. The texts of a request are parts of rest.
type unpacker struct{ rest string }

// next reads a request into r, which is used again.
func (u *unpacker) next(r *Record) {
	r.Request.Reset()
	r.At = algorithms.Instant(binary.LittleEndian.Uint64([]byte(u.rest[:8])))
	r.Answer = Answer(u.rest[8])
	u.rest = u.rest[9:]
	r.Request.Hits = uint32(u.number())
	r.Request.Domain = u.text()
	for range u.number() {
		d := r.Request.Add()
		flags := u.rest[0]
		u.rest = u.rest[1:]
		d.Hits, d.Probe, d.Refund = u.number(), flags&flagProbe != 0, flags&flagRefund != 0
		if flags&flagOverride != 0 {
			d.Override = &limiter.Override{Requests: uint32(u.number()), Unit: descriptors.Unit(u.number()), Multiplier: uint32(u.number())}
		}
		for range u.number() {
			d.Entries = append(d.Entries, limiter.Entry{Key: u.text(), Value: u.text()})
		}
	}
}

func (u *unpacker) number() (n uint64) {
	for shift := 0; ; shift += 7 {
		b := u.rest[0]
		u.rest = u.rest[1:]
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return n
		}
	}
}

func (u *unpacker) text() string {
	n := int(u.number())
	text := u.rest[:n]
	u.rest = u.rest[n:]
	return text
}
