package algorithms

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Tick is the unit of time in a record: a script in Redis counts microseconds.
const Tick = time.Microsecond

// A record is a state as a script in Redis keeps it: little-endian whole numbers below 2^53, where
// the script's arithmetic is exact. Every algorithm lists the sizes of its numbers in layout, and
// writes and reads them in record and restore.

// numbers is the numbers of a record, in the order of the layout.
type numbers [5]uint64

var errRecord = errors.New("not a record of this algorithm")

// Layout returns the sizes in bytes of the numbers of a record, one digit each; "" without
// [Algorithm.HasState].
func (a Algorithm) Layout() string {
	if k := statefulOf(a); k != nil {
		return k.layout()
	}
	return ""
}

// AppendRecord appends the record of a state whose last charge was under the limit. A key never
// used has none.
func AppendRecord(dst []byte, l Limit, s State) []byte {
	k := statefulOf(l.Algorithm)
	if k == nil || s.Unused() {
		return dst
	}
	n := k.record(l, s)
	for i, size := range k.layout() {
		for range size - '0' {
			dst = append(dst, byte(n[i]))
			n[i] >>= 8
		}
	}
	return dst
}

// ParseRecord returns the state in a record, and the limit of its last charge: l, but for the
// numbers that the record holds.
func ParseRecord(record string, l Limit) (State, Limit, error) {
	k := statefulOf(l.Algorithm)
	if k == nil {
		return State{}, l, fmt.Errorf("%w: %v", errRecord, l.Algorithm)
	}
	var n numbers
	rest := record
	for i, size := range k.layout() {
		size := int(size - '0')
		if len(rest) < size {
			return State{}, l, fmt.Errorf("%w: %v: %d bytes are too short", errRecord, l.Algorithm, len(record))
		}
		for at := size - 1; at >= 0; at-- {
			n[i] = n[i]<<8 | uint64(rest[at])
		}
		rest = rest[size:]
	}
	if rest != "" {
		return State{}, l, fmt.Errorf("%w: %v: %d bytes are too long", errRecord, l.Algorithm, len(record))
	}
	s, l := k.restore(l, n)
	return s, l, nil
}

// ticks returns the ticks from the epoch to an instant.
func (i Instant) ticks() uint64 { return uint64(i / Instant(Tick)) }

// instantOf returns the instant that many ticks after the epoch, held at the last whole tick.
func instantOf(ticks uint64) Instant {
	return Instant(min(ticks, math.MaxInt64/uint64(Tick)) * uint64(Tick))
}
