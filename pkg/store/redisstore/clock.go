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

// at returns what a server's clock will show at a time, late by at most a round trip; 0 when it is not known.
func (c *clocks) at(slot uint16, t time.Time) int64 {
	ahead := c.ahead[slot].Load()
	if ahead == 0 {
		return 0
	}
	return ahead - 1 + t.Sub(c.started).Microseconds()
}
