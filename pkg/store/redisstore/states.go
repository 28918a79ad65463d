package redisstore

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// kept is a state as package algorithms has it, with the limit of its last charge. That of a key never used has no limit.
type kept struct {
	limit   algorithms.Limit
	state   algorithms.State
	counter bool // it is that of a counter
}

// take takes hits from the state.
func (k *kept) take(l algorithms.Limit, now algorithms.Instant, hits int64, countRejected bool) algorithms.Decision {
	var d algorithms.Decision
	if k.limit.Algorithm == 0 || k.limit == l {
		k.limit = l
		k.state, d = algorithms.Take(l, k.state, now, hits, countRejected)
	} else {
		k.state, k.limit, d = algorithms.TakeAs(k.limit, l, k.state, now, hits, countRejected)
	}
	return d
}

// parse reads a state as the script keeps it, of a key that had one:
//
//	fixed_window            7 bytes instant of the last charge, 7 count
//	token_bucket            7 instant of the last charge, 5 deficit in whole hits, 7 rest in 1/period hits, 4 requests, 4 capacity
//	sliding_window_counter  7 instant of the last charge, 5 count of its window, 5 count of the window before
//	token_bucket_integer    7 instant of the last charge, 7 and 2 microseconds and nanoseconds since the refill mark, 5 deficit, 4 requests
//
// Instants are Unix microseconds, all is little-endian. The limits are those of the last charge, whose period is l's.
func parse(raw string, l algorithms.Limit) (kept, error) {
	k := kept{limit: l}
	a := answer{rest: raw}
	last := a.uint(7)
	switch l.Algorithm {
	case algorithms.FixedWindow:
		k.state = algorithms.StateOf(instant(last), a.uint(7), 0)
	case algorithms.TokenBucket:
		hi, lo := bits.Mul64(a.uint(5), uint64(l.Period))
		lo, carry := bits.Add64(lo, a.uint(7)*uint64(Granularity), 0)
		k.state = algorithms.StateOf(instant(last), hi+carry, lo)
		k.limit.Requests, k.limit.Burst = uint32(a.uint(4)), uint32(a.uint(4))
	case algorithms.SlidingWindowCounter:
		current := a.uint(5)
		k.state = algorithms.StateOf(instant(last), current, a.uint(5))
	case algorithms.TokenBucketInteger:
		since := a.uint(7)*uint64(Granularity) + a.uint(2)
		deficit := a.uint(5)
		k.state = algorithms.StateOf(instant(last)-algorithms.Instant(since), deficit, since)
		k.limit.Requests = uint32(a.uint(4))
	default:
		return kept{}, fmt.Errorf("%w: a state of %v", errAnswer, l.Algorithm)
	}
	if err := a.check(); err != nil {
		return kept{}, fmt.Errorf("a state of %v: %w", l.Algorithm, err)
	}
	return k, nil
}

// raw returns the state as the script keeps it: what parse reads. That of a key never used is empty.
func (k *kept) raw() string {
	if k.state.Unused() {
		return ""
	}
	last, a, b := k.state.Parts()
	if k.counter {
		return strconv.FormatUint(a, 10)
	}
	us := int64(last) / int64(Granularity)
	var raw []byte
	switch k.limit.Algorithm {
	case algorithms.FixedWindow:
		raw = appendInt(appendInt(raw, us, 7), int64(a), 7)
	case algorithms.TokenBucket:
		whole, part := bits.Div64(a, b, uint64(k.limit.Period))
		raw = appendInt(appendInt(appendInt(raw, us, 7), int64(whole), 5), int64(part/uint64(Granularity)), 7)
		raw = appendInt(appendInt(raw, int64(k.limit.Requests), 4), int64(k.limit.Capacity()), 4)
	case algorithms.SlidingWindowCounter:
		raw = appendInt(appendInt(appendInt(raw, us, 7), int64(a), 5), int64(b), 5)
	case algorithms.TokenBucketInteger:
		held := int64(last) + int64(b)
		raw = appendInt(appendInt(raw, held/int64(Granularity), 7), int64(b)/int64(Granularity), 7)
		raw = appendInt(appendInt(raw, int64(b)%int64(Granularity), 2), int64(a), 5)
		raw = appendInt(raw, int64(k.limit.Requests), 4)
	default: // kept otherwise
	}
	return string(raw)
}

// deficitsAt returns how far a bucket is below its capacity at an instant; nothing for other algorithms.
func (k *kept) deficitsAt(l algorithms.Limit, now algorithms.Instant) deficits {
	if k.limit.Algorithm == 0 {
		return deficits{}
	}
	_, a, b := algorithms.Change(k.limit, l, k.state, now).Parts()
	switch l.Algorithm {
	case algorithms.TokenBucket:
		whole, part := bits.Div64(a, b, uint64(l.Period)) // at most twice the capacity, so that a is less than the period
		return deficits{whole, part / uint64(Granularity)}
	case algorithms.TokenBucketInteger:
		return deficits{whole: a}
	default:
		return deficits{}
	}
}

// instant returns Unix microseconds as an instant.
func instant(us uint64) algorithms.Instant {
	return algorithms.Instant(min(us, math.MaxInt64/uint64(Granularity)) * uint64(Granularity))
}

// microseconds returns that many as a duration, held at the largest.
func microseconds(us uint64) time.Duration {
	return time.Duration(min(us, math.MaxInt64/uint64(Granularity))) * Granularity
}
