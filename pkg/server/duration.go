package server

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// bounds returns the upper bounds of the buckets of durations: from 10 µs, less than which nobody waits for, to 100 ms, five
// times what Envoy waits.
func bounds() [13]time.Duration {
	const us, ms = time.Microsecond, time.Millisecond
	return [...]time.Duration{
		10 * us, 25 * us, 50 * us, 100 * us, 250 * us, 500 * us, ms, 2500 * us, 5 * ms, 10 * ms, 25 * ms, 50 * ms, 100 * ms,
	}
}

// durations is a histogram. Observing costs a clock read and two additions. The zero value is ready; safe for concurrent use.
type durations struct {
	buckets [14]atomic.Uint64 // not cumulative; the last is beyond all bounds
	sum     atomic.Int64      // nanoseconds
}

// since observes the time from begun until now.
func (d *durations) since(begun time.Time) {
	spent := max(time.Since(begun), 0)
	i := 0
	for _, bound := range bounds() {
		if spent <= bound {
			break
		}
		i++
	}
	d.buckets[i].Add(1)
	d.sum.Add(int64(spent))
}

// metric returns the histogram as Prometheus has them.
func (d *durations) metric(desc *prometheus.Desc) (prometheus.Metric, error) {
	cumulative := make(map[float64]uint64)
	var count uint64
	for i, bound := range bounds() {
		count += d.buckets[i].Load()
		cumulative[bound.Seconds()] = count
	}
	count += d.buckets[len(d.buckets)-1].Load()
	return prometheus.NewConstHistogram(desc, count, time.Duration(d.sum.Load()).Seconds(), cumulative)
}

// latest is the time of the latest request, to the millisecond. Safe for concurrent use once started.
type latest struct {
	started time.Time
	after   atomic.Int64 // nanoseconds since started
}

func (l *latest) start() { l.started = time.Now() }

// set notes a request. It writes at most once in a millisecond, so that cores do not wait for each other.
func (l *latest) set(at time.Time) {
	if after := int64(at.Sub(l.started)); after-l.after.Load() >= int64(time.Millisecond) {
		l.after.Store(after)
	}
}

func (l *latest) time() time.Time { return l.started.Add(time.Duration(l.after.Load())) }
