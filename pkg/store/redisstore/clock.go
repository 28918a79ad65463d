package redisstore

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// clocks is the lead of the servers' clocks over this process's clock, for each slot, as slots lie
// on several servers and move. So a request can carry the server's time at which its caller stops
// to wait. A server that was stopped, or a request that the network delayed, then charges nothing
// for a request that was decided without Redis.
type clocks struct {
	started time.Time
	ahead   []atomic.Int64 // microseconds plus 1; 0: not known
	latest  atomic.Int64   // of ahead
	logged  loglimit.Limiter
}

const (
	// clockSlack is the drift between the clocks of Redis and of this process that is allowed between
	// two requests.
	clockSlack = time.Millisecond
	// clockStep is the smallest step of a server's clock that is logged.
	clockStep = time.Second
	// clockTeaches is the longest round trip that teaches a lead, which is too large by a round trip
	// at most.
	clockTeaches = clockStep / 2
	// stepLogged is the time for which one line about a step suffices: each slot notices the step by
	// itself.
	stepLogged = time.Minute
)

func newClocks(slots int) *clocks {
	return &clocks{started: time.Now(), ahead: make([]atomic.Int64, slots)}
}

// learn notes that a server's clock showed us microseconds at some time from begun to now. learn
// returns how far the clock has jumped since the last answer: ahead, or back if negative. 0: the
// two round trips may explain the difference.
func (c *clocks) learn(slot uint16, us int64, begun, now time.Time) (step time.Duration) {
	most, least := us-begun.Sub(c.started).Microseconds(), us-now.Sub(c.started).Microseconds() // bounds of the lead
	old := c.ahead[slot].Load() - 1
	known := old >= 0 // Unix time is
	switch {
	case known && least > old+clockSlack.Microseconds():
		step = time.Duration(least-old) * time.Microsecond
	case now.Sub(begun) > clockTeaches:
		return 0 // the known lead is better
	case known && most < old-clockStep.Microseconds():
		step = time.Duration(most-old) * time.Microsecond
	}
	c.ahead[slot].Store(most + 1)
	c.latest.Store(most + 1)
	return step
}

// at returns the server's time at t, or up to a round trip later; 0: not known.
func (c *clocks) at(slot uint16, t time.Time) int64 {
	ahead := c.ahead[slot].Load()
	if ahead == 0 {
		return 0
	}
	return ahead - 1 + t.Sub(c.started).Microseconds()
}

// Now implements [store.Remote]. The instant is by Redis's clock: the time of this process and the
// known lead of that clock. The lead is too large by a round trip at most. Before the first answer
// Now returns the time of this process. In a cluster the clock of the last node that answered
// counts, and with two servers the one of Options.Target. Windows of counters follow the clock of
// this process.
func (s *Store) Now(l algorithms.Limit) algorithms.Instant {
	if s.given != nil {
		return s.given()
	}
	if s.counters.Name != nil && l.Algorithm == algorithms.FixedWindow {
		return s.now()
	}
	return s.main.clock.instant(time.Now())
}

// instant returns the instant at t, by the clock that was heard last.
func (c *clocks) instant(t time.Time) algorithms.Instant {
	latest := c.latest.Load()
	if latest == 0 {
		return algorithms.Instant(t.UnixNano())
	}
	return instant(uint64(latest - 1 + t.Sub(c.started).Microseconds()))
}

// learn is learn of the server's clock. learn logs steps, and reports whether the clock has jumped
// ahead.
func (s *server) learn(slot uint16, us int64, begun, now time.Time) (ahead bool) {
	if s.store.given != nil {
		return false
	}
	step := s.clock.learn(slot, us, begun, now)
	if step.Abs() >= clockStep {
		s.logStep(step)
	}
	return step > 0
}

// logStep logs a step of the server's clock, unless a step was logged within stepLogged.
func (s *server) logStep(step time.Duration) {
	if _, due := s.clock.logged.Due(stepLogged); due {
		redis, by := slog.Any("redis", s.target), slog.Duration("by", step.Abs().Round(time.Millisecond))
		if step < 0 {
			s.store.logger.LogAttrs(context.Background(), slog.LevelWarn,
				"the clock of Redis went back: keys that stand in its future go on from now", redis, by)
		} else {
			s.store.logger.LogAttrs(context.Background(), slog.LevelWarn,
				"the clock of Redis jumped ahead: windows end early and buckets fill early", redis, by)
		}
	}
}

// givenNow returns the instant that a test gives, in microseconds; 0: Redis's time counts.
func (s *Store) givenNow() int64 {
	if s.given == nil {
		return 0
	}
	return int64(s.given()) / int64(Granularity)
}

// longestLife is how long a call may lie on its way for a patient caller. internal/redis needs longer to
// give up a connection that is silent: then the caller's request is decided elsewhere, and Redis
// may still read the call.
const longestLife = 500 * time.Millisecond

// deadline returns the server's time from which on a batch must not be applied; 0: not known. A
// caller stops to wait then, or the life of the call ends.
func (s *server) deadline(b *batch, begun time.Time) int64 {
	if s.store.given != nil {
		return 0
	}
	at := s.clock.at(b.slot(), begun)
	if at == 0 {
		return 0
	}
	timeout := max(s.store.timeout, longestLife) // the outbox waits as long
	if !b.until.IsZero() {
		timeout = min(b.until.Sub(begun), max(timeout, longestLife, 2*s.store.pulse.usually()))
	}
	return at + timeout.Microseconds() + clockSlack.Microseconds()
}
