package lane

import (
	"time"
)

// drain is the end of a connection in good order.
type drain struct {
	reason  string
	begun   int64 // instant of the first GOAWAY; 0: none was sent
	final   bool  // the second GOAWAY was sent: no stream begins any more
	ageAt   int64 // instant at which the drain begins by itself; 0: never
	graceAt int64 // instant at which the connection ends; 0: never
}

// drainPing is the data of the PING behind the first GOAWAY, as in grpc-go.
const drainPing = "\x01\x06\x01\x08\x00\x03\x03\x09"

// drainWait is the longest wait for the answer to that PING.
const drainWait = 5 * time.Second

// greetWait is the longest wait for a client that has not sent its first frame when the drain
// begins.
const greetWait = time.Second

// drainWait returns the longest wait for a client that drains.
func (c *Conn) drainWait() time.Duration {
	if c.input.greeted {
		return drainWait
	}
	return greetWait
}

// tooLate reports whether frames of the stream are dropped: the stream is behind the last one of
// the second GOAWAY.
func (c *Conn) tooLate(id uint32) bool { return c.drain.final && id > c.ids.last }

// Shutdown begins the end of the connection: a GOAWAY and a PING, then a GOAWAY with the last
// stream, so that no request is lost. The reason is the debug data. A second Shutdown does nothing.
func (c *Conn) Shutdown(reason string, now int64) {
	if c.err != nil || c.drain.begun != 0 {
		return
	}
	c.now = now
	c.drain.reason, c.drain.begun = reason, now
	c.out = appendGoAway(c.out, maxStreamID, NoError, reason)
	c.out = appendPing(c.out, 0, []byte(drainPing))
	c.tickIn(c.drainWait())
}

func (c *Conn) finishDrain() {
	if c.drain.begun == 0 || c.drain.final {
		return
	}
	c.drain.final = true
	c.out = appendGoAway(c.out, c.ids.last, NoError, c.drain.reason)
}

// Finished reports whether Shutdown is complete: no stream is open, and none will be. The caller
// writes the output and closes the socket.
func (c *Conn) Finished() bool { return c.drain.final && c.opened.open == 0 }

func (c *Conn) tickDrain() error {
	d, o := &c.drain, &c.lane.options
	if d.begun == 0 && c.passed(d.ageAt, 0) {
		c.Shutdown("max_age", c.now)
		if o.AgeGrace > 0 {
			d.graceAt = instant(c.now, o.AgeGrace)
		}
	}
	if c.passed(d.graceAt, 0) {
		return &ConnError{NoError, CauseAge, "the connection is too old"}
	}
	if !d.final && c.passed(d.begun, c.drainWait()) {
		c.finishDrain()
	}
	return nil
}
