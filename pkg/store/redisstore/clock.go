package redisstore

import (
	"math"
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
	leads   []lead       // by slot
	latest  atomic.Int64 // of lead.ahead
	logged  loglimit.Limiter
}

type lead struct {
	ahead  atomic.Int64 // microseconds plus 1; 0: not known
	taught atomic.Int64 // when the call began that taught the lead, in microseconds since clocks.started
}

const (
	// clockSlack is the drift between the clocks of Redis and of this process that is allowed between
	// two requests.
	clockSlack = time.Millisecond
	// clockStep is the smallest step of a server's clock that is logged.
	clockStep = time.Second
	// clockTeaches is the longest round trip that teaches a lead, which is wrong by a round trip at
	// most.
	clockTeaches = clockStep / 2
	// stepLogged is the time for which one line about a step suffices: each slot notices the step by
	// itself.
	stepLogged = time.Minute
)

func newClocks(n int) *clocks {
	return &clocks{started: time.Now(), leads: make([]lead, n)}
}

// learn notes that a server's clock showed us microseconds at some time from begun to now. learn
// returns how far the clock has jumped since the last answer: ahead, or back if negative. 0: the
// two round trips may explain the difference. A slow answer says little about the lead, and moves
// it only as far as it must. A call that began before the one that taught the lead teaches only a
// step ahead: its answer may have waited longer.
func (c *clocks) learn(slot uint16, us int64, begun, now time.Time) (step time.Duration) {
	most, least := us-begun.Sub(c.started).Microseconds(), us-now.Sub(c.started).Microseconds() // bounds of the lead
	old := c.leads[slot].ahead.Load() - 1
	known := old >= 0 // Unix time is
	switch {
	case known && least > old+clockSlack.Microseconds():
		step = time.Duration(least-old) * time.Microsecond
	case now.Sub(begun) > clockTeaches || known && begun.Sub(c.started).Microseconds() < c.leads[slot].taught.Load():
		return 0 // the known lead is better
	case known && most < old-clockStep.Microseconds():
		step = time.Duration(most-old) * time.Microsecond
	case known && old <= most:
		most = max(old, least) // a faster answer has taught the known lead
	}
	c.leads[slot].ahead.Store(most + 1)
	c.leads[slot].taught.Store(begun.Sub(c.started).Microseconds())
	c.latest.Store(most + 1)
	return step
}

// at returns the server's time at t, or up to a round trip later, or earlier where the clocks
// drift; 0: not known.
func (c *clocks) at(slot uint16, t time.Time) int64 {
	ahead := c.leads[slot].ahead.Load()
	if ahead == 0 {
		return 0
	}
	return ahead - 1 + t.Sub(c.started).Microseconds()
}

func (c *clocks) instant(t time.Time) algorithms.Instant {
	latest := c.latest.Load()
	if latest == 0 {
		return algorithms.Instant(t.UnixNano())
	}
	return instant(uint64(latest - 1 + t.Sub(c.started).Microseconds()))
}

func instant(us uint64) algorithms.Instant {
	return algorithms.Instant(microseconds(us))
}

// microseconds returns that many microseconds as a duration, held at the largest whole one.
func microseconds(us uint64) time.Duration {
	return time.Duration(min(us, math.MaxInt64/uint64(Granularity))) * Granularity
}

// whole returns an instant in whole units of Redis.
func whole(at algorithms.Instant) algorithms.Instant { return at - at%algorithms.Instant(Granularity) }
