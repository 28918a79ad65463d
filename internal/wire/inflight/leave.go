package inflight

import "runtime"

// A stream that its client has reset, and a connection that has ended, hold memory until the
// goroutines of the server have seen it. On busy processors that takes time: thousands of
// goroutines wait for their turn. The bytes count until goroutines that began to wait later have
// had a turn.

// turns is how often a goroutine goes to the end of the queue. The queues of the processors are no
// single queue.
const turns = 3

// awaitTurns returns when the goroutines that wait now have had a turn, as far as the scheduler is
// fair.
func awaitTurns() {
	for range turns {
		runtime.Gosched()
	}
}

// sawResets gives back the bytes of streams that the client has reset, later. A Read calls
// sawResets first: only now has the server seen the frames of the Read before. A client may open
// and reset a thousand streams in one chunk.
func (c *Conn) sawResets() {
	if !c.resetAny {
		return
	}
	c.resetAny = false
	c.mu.Lock()
	defer c.mu.Unlock()
	c.going += c.reset
	c.reset = 0
	if !c.letting && c.going > 0 {
		c.letting = true
		go c.letGo()
	}
}

func (c *Conn) letGo() {
	for again := true; again; {
		c.mu.Lock()
		bytes := c.going
		c.mu.Unlock()
		awaitTurns()
		c.mu.Lock()
		if !c.gone {
			before := c.held.Load()
			c.held.Store(before - bytes)
			c.settleLocked(before, c.streams.open)
		}
		c.going -= bytes
		again = c.going > 0
		c.letting = again
		c.mu.Unlock()
	}
}

// leave gives back the bytes of a connection that its server has closed, later.
func (c *Conn) leave() {
	c.mu.Lock()
	bytes := c.left
	c.left = 0
	c.mu.Unlock()
	if bytes > 0 {
		go func() {
			awaitTurns()
			c.bound.leaving.Add(-bytes)
		}()
	}
}

// catchUp makes a reader wait while connections that have ended hold a quarter of the bound beyond
// the bound. A client that opens connections faster than they go away is slowed down.
func (b *Bound) catchUp() {
	for range 100 {
		if b.held.Load()+b.leaving.Load()-b.options.MaxBytes <= b.options.MaxBytes/4 {
			return
		}
		runtime.Gosched()
	}
}
