package redisstore

import (
	"sync/atomic"
	"time"
)

// clocks is the lead of the servers' clocks over this process's clock, for each slot, as slots lie on several servers and move. So a
// request can carry the server's time at which its caller stops to wait. A server that was stopped, or a request that the network
// delayed, then charges nothing for a request that was decided without Redis.
type clocks struct {
	started time.Time
	ahead   []atomic.Int64 // microseconds plus 1; 0: not known
}

func newClocks(slots int) *clocks {
	return &clocks{started: time.Now(), ahead: make([]atomic.Int64, slots)}
}

// learn notes that a server's clock showed us microseconds at some time after begun.
func (c *clocks) learn(slot uint16, us int64, begun time.Time) {
	c.ahead[slot].Store(us - begun.Sub(c.started).Microseconds() + 1)
}

// at returns the server's time at t, or up to a round trip later; 0: not known.
func (c *clocks) at(slot uint16, t time.Time) int64 {
	ahead := c.ahead[slot].Load()
	if ahead == 0 {
		return 0
	}
	return ahead - 1 + t.Sub(c.started).Microseconds()
}

// givenNow returns the instant that a test gives, in microseconds; 0: Redis's time counts.
func (s *Store) givenNow() int64 {
	if s.given == nil {
		return 0
	}
	return int64(s.given()) / int64(Granularity)
}

// deadline returns the server's time at which the callers of a batch stop to wait; 0: not known.
func (s *server) deadline(b *batch, begun time.Time) int64 {
	if s.store.given != nil {
		return 0
	}
	at := s.clock.at(b.slot(), begun)
	if at == 0 {
		return 0
	}
	timeout := s.store.timeout
	if !b.until.IsZero() {
		timeout = b.until.Sub(begun)
	}
	return at + timeout.Microseconds() + clockSlack.Microseconds()
}

// clockSlack is the drift between the clocks of Redis and of this process that is allowed between two requests.
const clockSlack = time.Millisecond
