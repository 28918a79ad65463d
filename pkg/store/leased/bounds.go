package leased

import (
	"math/bits"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

const (
	// longest is the longest lease.
	longest = time.Second
	// shortest is the shortest lease that is worth a grant.
	shortest = 10 * time.Millisecond
	// parts is how many longest leases of a bucket follow each other while the bucket refills.
	parts = 20
	// reserve is the part of the park for which the holder asks in addition, inverted, as the last
	// state is a little old.
	reserve = 16
	// slack and drift shorten a lease: the clocks of the holder and of the store may differ by slack,
	// and run apart by 1/drift.
	slack = time.Millisecond
	drift = 1000
	// overtakes is the longest time by which an answer can overtake another one.
	overtakes = time.Second
)

// bounds are the bounds that a limit sets for its leases.
type bounds struct {
	length time.Duration // of a lease, by the store's clock; 0: the limit is never leased
	park   int64         // hits that a bucket must lack at each grant, beside the hits of the lease
	window time.Duration // a lease ends with its aligned window of this length; 0: there is no window
}

// boundsOf returns the bounds of a valid limit. A log is never leased: hits of a log expire one by
// one, so each hit must be charged at its own instant. A ban has nothing to lease.
func boundsOf(l algorithms.Limit) bounds {
	if l.Requests == 0 {
		return bounds{}
	}
	switch l.Algorithm {
	case algorithms.FixedWindow, algorithms.SlidingWindowCounter:
		if l.Period < slot {
			return bounds{}
		}
		return bounds{length: min(longest, l.Period), window: l.Period}
	case algorithms.TokenBucket, algorithms.TokenBucketInteger:
		b := bounds{length: min(longest, scale(l.Period, uint64(l.Capacity()), parts*uint64(l.Requests)))}
		if b.length < shortest {
			return bounds{}
		}
		// Whole hits: one more as Remaining is rounded down, one as the quotient is. The gain of an
		// integer bucket in whole nanoseconds is larger by less than 1/drift.
		b.park = int64(scale(b.length+b.length/drift, uint64(l.Requests), uint64(l.Period))) + 2
		return b
	default:
		return bounds{}
	}
}

// scale returns d*x/y rounded down, held at a value above all lengths; d is at least 0 and y is not
// 0.
func scale(d time.Duration, x, y uint64) time.Duration {
	const most = 1 << 62
	hi, lo := bits.Mul64(uint64(d), x)
	if hi >= y {
		return most
	}
	quotient, _ := bits.Div64(hi, lo, y)
	return time.Duration(min(quotient, most))
}

// untilEnd returns the time from an instant to the end of its aligned window.
func untilEnd(window time.Duration, at algorithms.Instant) time.Duration {
	elapsed := time.Duration(at) % window
	if elapsed < 0 {
		elapsed += window
	}
	return window - elapsed
}
