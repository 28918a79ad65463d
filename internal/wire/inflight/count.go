package inflight

import "net"

// Count returns a connection whose server counts the bytes and streams itself, and says so by
// [Conn.Hold], until [Conn.Leave]. The server closes the connection.
func (b *Bound) Count(raw net.Conn) *Conn {
	c := &Conn{Conn: raw, bound: b, told: true}
	b.add(c)
	return c
}

// Hold says how many bytes and streams the connection holds now, and how many answers its client
// has taken in all. Bytes are as old as the last answer.
func (c *Conn) Hold(bytes int64, streams int, answers uint64) {
	now := c.bound.now()
	c.mu.Lock()
	if c.gone {
		c.mu.Unlock()
		return
	}
	before, opened := c.held.Load(), c.streams.open
	if more := answers - c.answers; more > 0 || before == 0 {
		c.holding = now
		c.answers = answers
		c.answered.Add(int64(more) * answerUnit)
	}
	c.held.Store(bytes)
	c.streams.open = streams
	crowded := c.settleLocked(before, opened)
	c.mu.Unlock()
	if crowded {
		c.bound.relieve()
	}
	c.bound.catchUp()
}

// Ended counts the end of the connection by its server. A connection that was ended already does
// not count again.
func (c *Conn) Ended(reason Reason) {
	c.mu.Lock()
	gone, held := c.gone, c.held.Load()
	c.mu.Unlock()
	if !gone {
		c.bound.countEnd(c, reason, held)
	}
}

// Leave ends the counting. A second Leave does nothing.
func (c *Conn) Leave() {
	c.bound.remove(c)
	c.leave()
}
