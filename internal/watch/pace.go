package watch

import (
	"cmp"
	"sync/atomic"
	"time"
)

// Requests per second of a watcher.
const (
	defaultPerSecond = 1000
	maxPerSecond     = 100_000
)

// ahead is the time by which requests may come earlier than evenly spaced ones. Requests come in bursts.
const ahead = 100 * time.Millisecond

// pace lets so many requests per second pass on average: the generic cell rate algorithm (ITU-T I.371). Safe for concurrent use.
type pace struct {
	interval int64        // nanoseconds between evenly spaced requests
	next     atomic.Int64 // instant of the next evenly spaced request
}

// newPace returns the pace of a WatchRequest.
func newPace(perSecond uint32) *pace {
	return &pace{interval: int64(time.Second) / int64(cmp.Or(perSecond, defaultPerSecond))}
}

// due reports whether a request may pass at an instant, and counts it then.
func (p *pace) due(now int64) bool {
	for {
		next := p.next.Load()
		if next > now+int64(ahead) {
			return false
		}
		if p.next.CompareAndSwap(next, max(next, now)+p.interval) {
			return true
		}
	}
}
