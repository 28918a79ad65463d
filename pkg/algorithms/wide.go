package algorithms

import (
	"math"
	"math/bits"
	"time"
)

// wide is an unsigned integer of 128 bits. The product of any two of hits (32 bits), a period (59)
// and an elapsed time (64) fits, with room to add a few.
type wide struct{ hi, lo uint64 }

// product returns x*y.
func product(x, y uint64) wide {
	hi, lo := bits.Mul64(x, y)
	return wide{hi, lo}
}

// plus returns w+v, held at the largest wide.
func (w wide) plus(v wide) wide {
	lo, carry := bits.Add64(w.lo, v.lo, 0)
	hi, carry := bits.Add64(w.hi, v.hi, carry)
	if carry != 0 {
		return wide{math.MaxUint64, math.MaxUint64}
	}
	return wide{hi, lo}
}

// minus returns w-v, 0 if v is larger.
func (w wide) minus(v wide) wide {
	lo, borrow := bits.Sub64(w.lo, v.lo, 0)
	hi, borrow := bits.Sub64(w.hi, v.hi, borrow)
	if borrow != 0 {
		return wide{}
	}
	return wide{hi, lo}
}

// atMost reports whether w <= v.
func (w wide) atMost(v wide) bool {
	return w.hi < v.hi || w.hi == v.hi && w.lo <= v.lo
}

// floorDiv returns w/d rounded down, held at the largest uint64; d is not 0.
func (w wide) floorDiv(d uint64) uint64 {
	if w.hi >= d {
		return math.MaxUint64
	}
	q, _ := bits.Div64(w.hi, w.lo, d)
	return q
}

// ceilDiv returns w/d rounded up, held at the largest uint64; d is not 0.
func (w wide) ceilDiv(d uint64) uint64 {
	if w.hi >= d {
		return math.MaxUint64
	}
	q, r := bits.Div64(w.hi, w.lo, d)
	if r != 0 && q != math.MaxUint64 {
		q++
	}
	return q
}

// saturate returns ns nanoseconds as a duration, held at the largest.
func saturate(ns uint64) time.Duration {
	return time.Duration(min(ns, math.MaxInt64))
}

// after returns the instant ns nanoseconds after i, held at the largest instant. ns can be twice
// the largest duration, which [Instant.Add] cannot take.
func (i Instant) after(ns uint64) Instant {
	if ns > uint64(math.MaxInt64)-uint64(i) {
		return math.MaxInt64
	}
	return i + Instant(ns)
}

// past returns how many nanoseconds now lies after last, 0 if it does not.
func past(last, now Instant) uint64 {
	if now <= last {
		return 0
	}
	return uint64(now) - uint64(last)
}
