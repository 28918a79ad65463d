package redisstore

import (
	"sync/atomic"
	"time"
)

// clocks is what is known of the servers' clocks: how far they are ahead of this process's. One for each slot, as slots lie
// on different servers and move. With it a request can say from when on nobody waits for its answer: a server that was
// stopped, or a network that kept it back, then does not charge for what was answered without it.
type clocks struct {
	started time.Time
	ahead   []atomic.Int64 // microseconds, and 1 added so that 0 is not known
}

func newClocks(slots int) *clocks {
	return &clocks{started: time.Now(), ahead: make([]atomic.Int64, slots)}
}

// learn notes that a server's clock showed that time after begun.
func (c *clocks) learn(slot uint16, us int64, begun time.Time) {
	c.ahead[slot].Store(us - begun.Sub(c.started).Microseconds() + 1)
}

// at returns what a server's clock will show at a time, or less than a round trip more; 0 when it is not known.
func (c *clocks) at(slot uint16, t time.Time) int64 {
	ahead := c.ahead[slot].Load()
	if ahead == 0 {
		return 0
	}
	return ahead - 1 + t.Sub(c.started).Microseconds()
}

// givenNow returns the instant that a test gives, in microseconds; 0 when Redis's time counts.
func (s *Store) givenNow() int64 {
	if s.given == nil {
		return 0
	}
	return int64(s.given()) / int64(Granularity)
}

// deadline returns the server's time from which nobody waits for a batch that was begun at that time; 0 when it is not known.
func (s *Store) deadline(b *batch, begun time.Time) int64 {
	if s.given != nil {
		return 0
	}
	at := s.clock.at(b.slot(), begun)
	if at == 0 {
		return 0
	}
	patience := s.timeout
	if !b.until.IsZero() {
		patience = b.until.Sub(begun)
	}
	return at + patience.Microseconds() + clockSlack.Microseconds()
}

// clockSlack is how far the clocks of Redis and of this process may drift apart between two requests.
const clockSlack = time.Millisecond
