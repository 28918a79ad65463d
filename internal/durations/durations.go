// Package durations counts how long requests and calls take, in a histogram. The buckets suit a
// service that Envoy waits for.
package durations

import (
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// bounds returns the upper bounds of the buckets: up to five times Envoy's default timeout.
func bounds() [13]time.Duration {
	const us, ms = time.Microsecond, time.Millisecond
	return [...]time.Duration{
		10 * us, 25 * us, 50 * us, 100 * us, 250 * us, 500 * us, ms, 2500 * us, 5 * ms, 10 * ms, 25 * ms, 50 * ms, 100 * ms,
	}
}

// Histogram counts durations. Observe costs two atomic additions. The zero value is ready. Safe for
// concurrent use.
type Histogram struct {
	buckets [14]atomic.Uint64 // not cumulative; the last one is beyond all bounds
	sum     atomic.Int64      // nanoseconds
}

// Observe counts a duration. A negative duration, after the clock was set back, counts as zero.
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

// Snapshot returns the counts. A concurrent Observe may be in the snapshot in part.
func (h *Histogram) Snapshot() store.Durations {
	s := store.Durations{Buckets: make(map[float64]uint64, len(h.buckets)-1), Sum: time.Duration(h.sum.Load())}
	for i, bound := range bounds() {
		s.Count += h.buckets[i].Load()
		s.Buckets[bound.Seconds()] = s.Count
	}
	s.Count += h.buckets[len(h.buckets)-1].Load()
	return s
}
