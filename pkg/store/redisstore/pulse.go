package redisstore

import (
	"sync/atomic"
	"time"
)

// pulse says whether Redis answers, however late.
type pulse struct {
	started time.Time
	under   atomic.Int64 // flights under way
	heard   atomic.Int64 // when Redis last answered a call of the script, in nanoseconds since started; 0: never
	quiet   atomic.Int64 // since when flights are under way without an answer, likewise
	ended   atomic.Int64 // when a flight last ended without an answer, likewise; 0: the last one was answered
	misses  atomic.Int64 // when a caller last stopped to wait for an answer, likewise; 0: never
	usual   atomic.Int64 // the longest of the last round trips, in nanoseconds, which later ones slowly forget
}

// silenceGap is the longest time between two flights without an answer that are one silence.
const silenceGap = 100 * time.Millisecond

// tripMemory is the round trips after which a mean has forgotten two thirds of a long one.
const tripMemory = 16

// begin notes that a flight begins.
func (p *pulse) begin() {
	if p.under.Load() == 0 { // first, so that nobody sees this flight with the silence of an idle time
		now := int64(time.Since(p.started))
		if ended := p.ended.Load(); ended == 0 || now-ended > int64(silenceGap) {
			p.quiet.Store(now)
		}
	}
	p.under.Add(1)
}

// end notes that a flight has ended, with an answer or without.
func (p *pulse) end(answered bool) {
	at := int64(0)
	if !answered {
		at = max(1, int64(time.Since(p.started)))
	}
	p.ended.Store(at)
	p.under.Add(-1)
}

// answered notes an answer to the script.
func (p *pulse) answered(now time.Time, took time.Duration) {
	at := max(1, int64(now.Sub(p.started)))
	p.heard.Store(at)
	p.quiet.Store(at)
	usual := p.usual.Load()
	p.usual.Store(max(int64(took), usual-(usual-int64(took))/tripMemory))
}

// missRemembered is for how long a missed answer counts. Meanwhile no caller flies itself: only a
// flight of a worker can wait for a late answer.
const missRemembered = 10 * time.Second

// miss notes that a caller has stopped to wait for an answer.
func (p *pulse) miss() { p.misses.Store(max(1, int64(time.Since(p.started)))) }

// missed reports whether a caller has stopped to wait within missRemembered.
func (p *pulse) missed(now time.Time) bool {
	at := p.misses.Load()
	return at > 0 && now.Sub(p.started)-time.Duration(at) < missRemembered
}

// usually returns the longest of the last round trips.
func (p *pulse) usually() time.Duration { return time.Duration(p.usual.Load()) }
