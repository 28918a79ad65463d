package lane

import (
	"math"
	"time"
)

// alive is the clock of a connection: when something must have happened.
type alive struct {
	due     int64 // instant of the next Tick; not later than useful
	opened  int64 // instant
	heard   int64 // instant of the last bytes from the client
	pinged  int64 // instant of a PING to the client, without bytes from it since; 0: none
	partial int64 // instant of the first byte of an incomplete frame; 0: none is

	spoke    bool // HEADERS or DATA were sent since the last PING of the client
	lastPing int64
	strikes  int // PINGs of the client that came too early

	marking bool // a PING behind streams with marks is on its way
}

// maxStrikes is the number of PINGs that may come too early, as in grpc-go.
const maxStrikes = 2

func (a *alive) start(now int64) {
	a.opened, a.heard, a.lastPing, a.due = now, now, math.MinInt64/2, math.MaxInt64
	a.by(instant(now, min(MessageTimeout, KeepaliveTime)))
}

func (a *alive) by(at int64) { a.due = min(a.due, at) }

func (c *Conn) tickIn(after time.Duration) { c.alive.by(instant(c.now, after)) }

// instant returns the instant so long after another one, at most the last one there is.
func instant(since int64, after time.Duration) int64 {
	if int64(after) > math.MaxInt64-since {
		return math.MaxInt64
	}
	return since + int64(after)
}

// Tick does the work that is due by now: keepalive, the age of the connection, requests and
// responses that take too long. An error is as in Receive. A Tick every second is enough. When
// nothing is due, Tick costs nanoseconds.
func (c *Conn) Tick(now int64) error {
	if c.err != nil || now < c.alive.due {
		return c.err
	}
	c.now = now
	c.alive.due = math.MaxInt64
	if err := c.tick(); err != nil {
		return c.fail(err)
	}
	return nil
}

// passed reports whether the time after an instant is over; otherwise there will be a Tick. No
// instant is 0.
func (c *Conn) passed(since int64, after time.Duration) bool {
	if since == 0 {
		return false
	}
	if at := instant(since, after); at > c.now {
		c.alive.by(at)
		return false
	}
	return true
}

func (c *Conn) tick() error {
	a := &c.alive
	switch {
	case c.passed(a.partial, MessageTimeout), c.input.block.stream != 0 && c.passed(c.input.block.since, MessageTimeout):
		return &ConnError{EnhanceYourCalm, CauseSlow, "a frame is not complete in time"}
	case !c.input.greeted && c.passed(a.opened, MessageTimeout):
		return &ConnError{EnhanceYourCalm, CauseSlow, "the client has sent no SETTINGS in time"}
	}
	if err := c.tickStreams(); err != nil {
		return err
	}
	if a.pinged == 0 && c.passed(a.heard, KeepaliveTime) {
		c.out = appendPing(c.out, 0, make([]byte, 8))
		a.pinged = c.now
	}
	if c.passed(a.pinged, KeepaliveTimeout) {
		return &ConnError{NoError, CauseSilent, "the client does not answer a PING"}
	}
	return c.tickDrain()
}

func (c *Conn) tickStreams() error {
	if c.opened.incomplete > 0 {
		for _, s := range c.opened.byID {
			switch {
			case !s.incomplete:
			case c.passed(s.opened, MessageTimeout):
				return &ConnError{EnhanceYourCalm, CauseSlow, "a request is not complete in time"}
			case s.head.timeout > 0 && c.passed(s.opened, s.head.timeout):
				if err := c.resetStream(s.id, Cancel); err != nil { // as grpc-go
					return err
				}
			}
		}
	}
	for i := 0; i < len(c.waiting); {
		s := c.waiting[i]
		if timeout := s.responseTimeout(); !c.passed(s.since, timeout) {
			i++
			continue
		}
		if err := c.resetStream(s.id, Cancel); err != nil { // takes s off the list
			return err
		}
	}
	return nil
}

func (c *Conn) ping(f frame, payload []byte) error {
	switch {
	case f.stream != 0:
		return protocolError("PING on stream %d", f.stream)
	case f.length != 8:
		return &ConnError{FrameSizeError, CauseProtocol, "PING must have 8 bytes"}
	case f.has(flagAck):
		switch string(payload) {
		case drainPing:
			c.finishDrain()
		case markPing:
			if c.alive.marking {
				c.endMark()
				return nil
			}
		}
		return c.spend(costUnknown)
	}
	c.out = appendPing(c.out, flagAck, payload)
	a := &c.alive
	early := c.now-a.lastPing < int64(PingInterval)
	a.lastPing = c.now
	switch {
	case a.spoke:
		a.spoke, a.strikes = false, 0
	case early:
		a.strikes++
	}
	if a.strikes > maxStrikes {
		return &ConnError{EnhanceYourCalm, CauseFlood, "too_many_pings"} // the text that clients of gRPC know
	}
	return c.spend(costPing)
}
