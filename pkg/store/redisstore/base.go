package redisstore

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// Granularity is Redis's unit of time. A limit's period must be a whole multiple.
const Granularity = owed.Granularity

// base has the fields that all parts of a store share.
type base struct {
	timeout     time.Duration
	script      string
	sha         string // of script: its name in Redis
	logger      *slog.Logger
	metrics     metrics
	pulse       pulse
	processes   atomic.Int64              // that share the main server, as Redis has counted them; 0: it has not
	assumed     atomic.Int64              // the least number of these until all of them are counted; 0: not known
	hasCounters bool                      // there may be counters
	given       func() algorithms.Instant // the instant, in tests; nil: Redis's time
}

// here returns the instant by this process's clock, or 0 without counters, which alone need the
// instant.
func (b *base) here() algorithms.Instant {
	switch {
	case !b.hasCounters:
		return 0
	case b.given != nil:
		return b.given()
	}
	return algorithms.Instant(time.Now().UnixNano())
}

// givenNow returns the instant that a test gives, in microseconds; 0: Redis's time counts.
func (b *base) givenNow() int64 {
	if b.given == nil {
		return 0
	}
	return int64(b.given()) / int64(Granularity)
}

// fleetSize returns the number of processes that share the main server; 0: not known.
func (b *base) fleetSize() int { return int(max(b.processes.Load(), b.assumed.Load())) }

// latePart is the part of the timeout that is the shortest silence of Health.Late: a millisecond of
// the default. On a busy machine scheduling alone can make a round trip that long.
const latePart = 10

// Health implements [store.Remote], for all servers together. Silent counts from the timeout on, or
// from twice the longest of the last round trips. Late counts from a tenth of the timeout on, or
// from twice as long as nine of ten round trips take. Up to silenceGap after a call without an
// answer no call needs to be under way.
func (b *base) Health([]store.Charge) store.Health {
	p := &b.pulse
	h := store.Health{Fleet: b.fleetSize()}
	if at := p.heard.Load(); at > 0 {
		h.Answered = p.started.Add(time.Duration(at))
	}
	under, ended := p.under.Load() > 0, p.ended.Load()
	if !under && ended == 0 {
		return h
	}
	now := time.Since(p.started)
	quiet := now - time.Duration(p.quiet.Load())
	if under && quiet > max(b.timeout, 2*p.usually()) {
		h.Silent = quiet
	}
	if (under || int64(now)-ended <= int64(silenceGap)) && quiet > max(b.timeout/latePart, 2*time.Duration(p.nine.Load())) {
		h.Late = quiet
	}
	return h
}
