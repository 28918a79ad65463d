package server

import (
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
	entries int    // decoded so far, of all descriptors
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
	d := decoder{data: data, text: text}
	for at := 0; at < len(data); {
		f, next, err := d.field(at, len(data))
		if err != nil {
			return err
		}
		at = next
		switch {
		case f.number == 1 && f.wire == protowire.BytesType:
			if r.Domain, err = d.string(f); err != nil {
				return fmt.Errorf("domain: %w", err)
			}
		case f.number == 2 && f.wire == protowire.BytesType:
			if len(r.Descriptors) == MaxItems {
				return fmt.Errorf("descriptors: more than %d in one request", MaxItems)
			}
			if err := d.descriptor(f, r.Add()); err != nil {
				return fmt.Errorf("descriptors[%d]: %w", len(r.Descriptors)-1, err)
			}
		case f.number == 3 && f.wire == protowire.VarintType:
			r.Hits = uint32(f.value)
		}
	}
	return nil
}

// descriptor reads an envoy.extensions.common.ratelimit.v3.RateLimitDescriptor into to.
func (d *decoder) descriptor(in field, to *limiter.Descriptor) error {
	for at := in.start; at < in.end; {
		f, next, err := d.field(at, in.end)
		if err != nil {
			return err
		}
		at = next
		switch {
		case f.number == 1 && f.wire == protowire.BytesType:
			if d.entries++; d.entries > MaxItems {
				return fmt.Errorf("entries: more than %d in one request", MaxItems)
			}
			var e descriptors.Entry
			if err := d.entry(f, &e); err != nil {
				return fmt.Errorf("entries[%d]: %w", len(to.Entries), err)
			}
			to.Entries = append(to.Entries, e)
		case f.number == 2 && f.wire == protowire.BytesType:
			if to.Override == nil {
				to.Override = new(limiter.Override)
			}
			if err := d.override(f, to.Override); err != nil {
				return fmt.Errorf("limit: %w", err)
			}
		case f.number == 3 && f.wire == protowire.BytesType:
			if err := d.wrapped(f, &to.Hits); err != nil {
				return fmt.Errorf("hits_addend: %w", err)
			}
			to.Probe = to.Hits == 0
		case f.number == 4 && f.wire == protowire.VarintType:
			to.Refund = f.value != 0
		}
	}
	return nil
}

// entry reads a RateLimitDescriptor.Entry into to.
func (d *decoder) entry(in field, to *descriptors.Entry) error {
	for at := in.start; at < in.end; {
		f, next, err := d.field(at, in.end)
		if err != nil {
			return err
		}
		at = next
		switch {
		case f.number == 1 && f.wire == protowire.BytesType:
			if to.Key, err = d.string(f); err != nil {
				return fmt.Errorf("key: %w", err)
			}
		case f.number == 2 && f.wire == protowire.BytesType:
			if to.Value, err = d.string(f); err != nil {
				return fmt.Errorf("value: %w", err)
			}
		}
	}
	return nil
}

// override reads a RateLimitDescriptor.RateLimitOverride into to.
func (d *decoder) override(in field, to *limiter.Override) error {
	for at := in.start; at < in.end; {
		f, next, err := d.field(at, in.end)
		if err != nil {
			return err
		}
		at = next
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
			if err := d.wrapped(f, &multiplier); err != nil {
				return fmt.Errorf("unit_multiplier: %w", err)
			}
			if to.Multiplier = uint32(multiplier); to.Multiplier == 0 {
				to.Multiplier = zeroMultiplier
			}
		}
	}
	return nil
}

// wrapped reads a google.protobuf.UInt64Value or UInt32Value into to.
func (d *decoder) wrapped(in field, to *uint64) error {
	for at := in.start; at < in.end; {
		f, next, err := d.field(at, in.end)
		if err != nil {
			return err
		}
		at = next
		if f.number == 1 && f.wire == protowire.VarintType {
			*to = f.value
		}
	}
	return nil
}

func (d *decoder) string(f field) (string, error) {
	s := d.text[f.start:f.end]
	if !utf8.ValidString(s) {
		return "", errors.New("invalid UTF-8")
	}
	return s, nil
}

// field reads the field at data[at:end], and returns the position of the next field too.
func (d *decoder) field(at, end int) (f field, next int, err error) {
	tag, at := d.varint(at, end)
	if at < 0 || tag>>3 > uint64(protowire.MaxValidNumber) || tag>>3 < uint64(protowire.MinValidNumber) {
		return f, 0, errTag
	}
	f.number, f.wire = protowire.Number(tag>>3), protowire.Type(tag&7)
	switch f.wire {
	case protowire.VarintType:
		if f.value, next = d.varint(at, end); next < 0 {
			return f, 0, errTruncated
		}
		return f, next, nil
	case protowire.BytesType:
		length, start := d.varint(at, end)
		if start < 0 || length > uint64(end-start) {
			return f, 0, errTruncated
		}
		f.start, f.end = start, start+int(length)
		return f, f.end, nil
	default: // an unknown field; the end of a group is an error
		n := protowire.ConsumeFieldValue(f.number, f.wire, d.data[at:end])
		if n < 0 {
			return f, 0, errTruncated
		}
		return f, at + n, nil
	}
}

// varint reads a varint at data[at:end], and returns the position after it; -1 without a varint.
// Most varints are one byte long.
func (d *decoder) varint(at, end int) (value uint64, next int) {
	if at < end && d.data[at] < 0x80 {
		return uint64(d.data[at]), at + 1
	}
	value, n := protowire.ConsumeVarint(d.data[at:end])
	if n < 0 {
		return 0, -1
	}
	return value, at + n
}
