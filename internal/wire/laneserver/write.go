package laneserver

// writeLaterLocked writes in another goroutine, as a write may wait.
func (c *Conn) writeLaterLocked() {
	if !c.takeLocked() {
		return
	}
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.writeLocked(nil)
	}()
}

// takeLocked makes the caller the writer, unless there is one.
func (c *Conn) takeLocked() bool {
	if c.writing {
		return false
	}
	c.writing = true
	return true
}

// writeLocked writes all output of the machine. The caller must be the writer, and is not
// afterwards. mu is free during a write. b is the memory that the machine was lent, or nil.
func (c *Conn) writeLocked(b *buffers) {
	for {
		out := c.machine.Output()
		if out == nil { // the machine has no memory of b from now on
			break
		}
		if c.early != nil && !c.early.count(out) {
			c.keepLocked()
		}
		c.mu.Unlock()
		err := c.send(out)
		c.mu.Lock()
		if b != nil && cap(out) <= keptSize {
			b.out = out[:0]
		}
		if err != nil {
			c.endLocked(err)
			_ = c.conn.Close() // nothing more can be written
			break
		}
	}
	if c.machine.Finished() {
		c.endLocked(errFinished)
	}
	c.sending = 0
	c.countLocked()
	c.writing = false
	c.idle.Broadcast()
}

// send writes bytes to the socket. While send waits for the client, the connection holds these
// bytes and the buffer of the reader.
func (c *Conn) send(out []byte) error {
	rest, err := c.socket.try(out)
	if err != nil || len(rest) == 0 {
		return err
	}
	c.mu.Lock()
	c.sending = readSize + int64(cap(out))
	c.countLocked()
	c.mu.Unlock()
	return c.socket.write(rest)
}

// countLocked tells counts the bytes that the connection holds.
func (c *Conn) countLocked() {
	if c.counts == nil {
		return
	}
	if held := heldFactor*(int64(c.machine.Held())+c.sending) + c.kept; held != c.held || held != 0 {
		c.held = held
		c.counts.Hold(held, c.machine.Streams(), c.machine.Answered())
	}
}

// Keep counts bytes that the Handler holds for a call until Finish. The Handler calls Keep within
// Answer.
func (c *Conn) Keep(bytes int) { c.kept += int64(bytes) }

// Account returns the account of the connection, as Options.Account made it.
func (c *Conn) Account() Account { return c.counts }
