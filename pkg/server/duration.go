package server

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/durations"
)

// histogram returns durations as Prometheus has them.
func histogram(desc *prometheus.Desc, s durations.Snapshot) (prometheus.Metric, error) {
	return prometheus.NewConstHistogram(desc, s.Count, s.Sum.Seconds(), s.Buckets)
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
