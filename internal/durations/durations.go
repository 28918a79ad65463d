// Package durations counts how long things took, in buckets that suit what Envoy waits for: from 10 µs to 100 ms. It makes no
// metrics of the counts and knows no clock; whoever exports them says what they are called.
package durations

import (
	"sync/atomic"
	"time"
)

// bounds returns the upper bounds of the buckets: from 10 µs, less than which nobody waits for, to 100 ms, five times what
// Envoy waits.
func bounds() [13]time.Duration {
	const us, ms = time.Microsecond, time.Millisecond
	return [...]time.Duration{
		10 * us, 25 * us, 50 * us, 100 * us, 250 * us, 500 * us, ms, 2500 * us, 5 * ms, 10 * ms, 25 * ms, 50 * ms, 100 * ms,
	}
}

// Histogram counts durations. Observing costs two additions. The zero value is ready; safe for concurrent use.
type Histogram struct {
	buckets [14]atomic.Uint64 // not cumulative; the last is beyond all bounds
	sum     atomic.Int64      // nanoseconds
}

// Snapshot is what a histogram has counted. Observations that are made meanwhile may be in it in part.
type Snapshot struct {
	Buckets map[float64]uint64 // how many took at most so many seconds; without those beyond the largest bound
	Count   uint64             // how many there were
	Sum     time.Duration      // of all of them
}

// Observe counts a duration. One below zero, of a clock that was set back, counts as zero.
func (h *Histogram) Observe(d time.Duration) {
	d = max(d, 0)
	i := 0
	for _, bound := range bounds() {
		if d <= bound {
			break
		}
		i++
	}
	h.buckets[i].Add(1)
	h.sum.Add(int64(d))
}

// Snapshot returns what was counted until now.
func (h *Histogram) Snapshot() Snapshot {
	s := Snapshot{Buckets: make(map[float64]uint64, len(h.buckets)-1), Sum: time.Duration(h.sum.Load())}
	for i, bound := range bounds() {
		s.Count += h.buckets[i].Load()
		s.Buckets[bound.Seconds()] = s.Count
	}
	s.Count += h.buckets[len(h.buckets)-1].Load()
	return s
}
