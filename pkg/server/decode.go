package server

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// The errors of a malformed message. Callers only look for an error.
var (
	errTag       = errors.New("bad field tag")
	errTruncated = errors.New("a field is cut off or malformed")
)

// MaxItems bounds the descriptors of a request, and all entries together, while decoding. An empty
// descriptor takes two bytes of a message and fifty times as much memory: one large message could
// fill a small container.
const MaxItems = 1 << 16

// zeroMultiplier stands for a unit_multiplier of 0, which to the limiter would mean 1. The limiter
// refuses both numbers.
const zeroMultiplier = math.MaxUint32

// decoder reads messages out of bytes. Decoded texts share one string.
//
// A decoder agrees with proto.Unmarshal. Unknown fields, and known fields of another wire type, are
// skipped. Of a repeated scalar the last counts, and a repeated message is merged into the first.
// Texts must be UTF-8.
type decoder struct {
	data    []byte
	text    string // data, as one string
	ascii   bool   // so all texts are UTF-8
	entries int    // decoded so far, of all descriptors
	err     error  // the first mistake
}

type field struct {
	number     protowire.Number
	wire       protowire.Type
	value      uint64 // of a varint
	start, end int    // of bytes, in the decoder's data
}

// decode reads a RateLimitRequest into r, which must be empty. text has the same bytes as data, and
// the decoded texts are parts of it. After an error r holds a part of the request.
func decode(data []byte, text string, r *limiter.Request) error {
	d := decoder{data: data, text: text, ascii: isASCII(data)}
	in := field{end: len(data)}
	for f := (field{}); d.next(&in, &f); {
		switch {
		case f.number == 1 && f.wire == protowire.BytesType:
			r.Domain = d.string(f, "domain")
		case f.number == 2 && f.wire == protowire.BytesType:
			if len(r.Descriptors) == MaxItems {
				return fmt.Errorf("descriptors: more than %d in one request", MaxItems)
			}
			if d.descriptor(f, r.Add()); d.err != nil {
				return fmt.Errorf("descriptors[%d]: %w", len(r.Descriptors)-1, d.err)
			}
		case f.number == 3 && f.wire == protowire.VarintType:
			r.Hits = uint32(f.value)
		}
	}
	return d.err
}

// descriptor reads an envoy.extensions.common.ratelimit.v3.RateLimitDescriptor into to.
func (d *decoder) descriptor(in field, to *limiter.Descriptor) {
	for f := (field{}); d.next(&in, &f); {
		switch {
		case f.number == 1 && f.wire == protowire.BytesType:
			if d.entries++; d.entries > MaxItems {
				d.err = fmt.Errorf("entries: more than %d in one request", MaxItems)
				return
			}
			e := d.entry(f)
			if d.err != nil {
				d.err = fmt.Errorf("entries[%d]: %w", len(to.Entries), d.err)
				return
			}
			to.Entries = append(to.Entries, e)
		case f.number == 2 && f.wire == protowire.BytesType:
			if to.Override == nil {
				to.Override = new(limiter.Override)
			}
			if d.override(f, to.Override); d.err != nil {
				d.err = fmt.Errorf("limit: %w", d.err)
			}
		case f.number == 3 && f.wire == protowire.BytesType:
			d.wrapped(f, "hits_addend", &to.Hits)
			to.Probe = to.Hits == 0
		case f.number == 4 && f.wire == protowire.VarintType:
			to.Refund = f.value != 0
		}
	}
}

func (d *decoder) entry(in field) (e descriptors.Entry) {
	for f := (field{}); d.next(&in, &f); {
		switch {
		case f.number == 1 && f.wire == protowire.BytesType:
			e.Key = d.string(f, "key")
		case f.number == 2 && f.wire == protowire.BytesType:
			e.Value = d.string(f, "value")
		}
	}
	return e
}

// override reads a RateLimitDescriptor.RateLimitOverride into to.
func (d *decoder) override(in field, to *limiter.Override) {
	for f := (field{}); d.next(&in, &f); {
		switch {
		case f.number == 1 && f.wire == protowire.VarintType:
			to.Requests = uint32(f.value)
		case f.number == 2 && f.wire == protowire.VarintType:
			to.Unit = descriptors.Unit(int32(f.value))
		case f.number == 3 && f.wire == protowire.BytesType:
			multiplier := uint64(to.Multiplier)
			if to.Multiplier == zeroMultiplier {
				multiplier = 0
			}
			d.wrapped(f, "unit_multiplier", &multiplier)
			to.Multiplier = cmp.Or(uint32(multiplier), zeroMultiplier)
		}
	}
}

// wrapped reads a google.protobuf.UInt64Value or UInt32Value into to. name is for the error.
func (d *decoder) wrapped(in field, name string, to *uint64) {
	for f := (field{}); d.next(&in, &f); {
		if f.number == 1 && f.wire == protowire.VarintType {
			*to = f.value
		}
	}
	if d.err != nil {
		d.err = fmt.Errorf("%s: %w", name, d.err)
	}
}

// string returns the text of a field. name is for the error.
func (d *decoder) string(f field, name string) string {
	s := d.text[f.start:f.end]
	if !d.ascii && !utf8.ValidString(s) {
		d.err = fmt.Errorf("%s: invalid UTF-8", name)
	}
	return s
}

// isASCII reports whether all bytes are below 0x80.
func isASCII(data []byte) bool {
	for ; len(data) >= 8; data = data[8:] {
		if binary.LittleEndian.Uint64(data)&0x8080808080808080 != 0 {
			return false
		}
	}
	for _, b := range data {
		if b >= 0x80 {
			return false
		}
	}
	return true
}

// next reads the first field of in, a message, into f, and takes the field off in. The result is
// false at the end of the message, and after an error.
func (d *decoder) next(in, f *field) bool {
	if in.start >= in.end || d.err != nil {
		return false
	}
	if in.end-in.start >= 2 { // nearly all fields are texts and messages that are short
		tag, length := d.data[in.start], int(d.data[in.start+1])
		if tag>>3 > 0 && tag < 0x80 && tag&7 == byte(protowire.BytesType) && length < 0x80 && length <= in.end-in.start-2 {
			f.number, f.wire = protowire.Number(tag>>3), protowire.BytesType
			f.start = in.start + 2
			f.end = f.start + length
			in.start = f.end
			return true
		}
	}
	tag, at := d.varint(in.start, in.end)
	if at < 0 || tag>>3 > uint64(protowire.MaxValidNumber) || tag>>3 < uint64(protowire.MinValidNumber) {
		d.err = errTag
		return false
	}
	f.number, f.wire = protowire.Number(tag>>3), protowire.Type(tag&7)
	switch f.wire {
	case protowire.VarintType:
		f.value, at = d.varint(at, in.end)
	case protowire.BytesType:
		var length uint64
		if length, f.start = d.varint(at, in.end); f.start < 0 || length > uint64(in.end-f.start) {
			at = -1
			break
		}
		f.end = f.start + int(length)
		at = f.end
	default: // an unknown field; the end of a group is an error
		if n := protowire.ConsumeFieldValue(f.number, f.wire, d.data[at:in.end]); n < 0 {
			at = -1
		} else {
			at += n
		}
	}
	if at < 0 {
		d.err = errTruncated
		return false
	}
	in.start = at
	return true
}

// varint reads a varint at data[at:end], and returns the position after it; -1 without a varint.
// Most varints are one byte long.
func (d *decoder) varint(at, end int) (value uint64, next int) {
	if at < end && d.data[at] < 0x80 {
		return uint64(d.data[at]), at + 1
	}
	return d.longVarint(at, end)
}

func (d *decoder) longVarint(at, end int) (value uint64, next int) {
	value, n := protowire.ConsumeVarint(d.data[at:end])
	if n < 0 {
		return 0, -1
	}
	return value, at + n
}
