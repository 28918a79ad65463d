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

// burst is the time whose requests may come at once. Requests come in bursts.
const burst = 100 * time.Millisecond

// pace lets so many requests per second pass on average: the generic cell rate algorithm (ITU-T
// I.371). Safe for concurrent use.
type pace struct {
	interval int64        // nanoseconds between evenly spaced requests
	ahead    int64        // nanoseconds by which a request may come earlier
	next     atomic.Int64 // instant of the next evenly spaced request
}

// newPace returns the pace of so many requests per second; 0 means defaultPerSecond.
func newPace(perSecond float64) *pace {
	interval := float64(time.Second) / cmp.Or(perSecond, defaultPerSecond)
	p := &pace{interval: int64(min(interval, maxInterval))}
	p.ahead = max(int64(burst)-p.interval, 0)
	return p
}

// maxInterval bounds the time between two requests, in nanoseconds: a year.
const maxInterval = float64(365 * 24 * time.Hour)

// due reports whether a request may pass at an instant, and counts it then.
func (p *pace) due(now int64) bool {
	for {
		next := p.next.Load()
		if next > now+p.ahead {
			return false
		}
		if p.next.CompareAndSwap(next, max(next, now)+p.interval) {
			return true
		}
	}
}
