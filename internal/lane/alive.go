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
		if !c.passed(s.since, ResponseTimeout) {
			i++
			continue
		}
		if err := c.resetStream(s.id, Cancel); err != nil { // takes s off the list
			return err
		}
	}
	return nil
}

func (a *alive) hear(now int64) { a.heard, a.pinged = now, 0 }

func (c *Conn) ping(f frame, payload []byte) error {
	switch {
	case f.stream != 0:
		return protocolError("PING on stream %d", f.stream)
	case f.length != 8:
		return &ConnError{FrameSizeError, CauseProtocol, "PING must have 8 bytes"}
	case f.has(flagAck):
		if string(payload) == drainPing {
			c.finishDrain()
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

// guard bounds the frames of a client that take time and lead to no answer, RFC 9113 section 10.5.
// Each costs points; points vanish with time, and with each request that is complete. Honest
// clients stay below a hundred.
type guard struct {
	points int64
	at     int64 // instant of points
}

// Points of a guard.
const (
	guardMost   = 10000                   // then the connection ends
	guardEvery  = int64(time.Millisecond) // in which one point vanishes
	guardAnswer = 10                      // vanish with a request
)

// Costs of frames, in points. A PING also has a rule of its own.
const (
	costUnknown      = 1 // also frames of a stream that has ended
	costPriority     = 1
	costWindow       = 1
	costPing         = 1
	costReset        = 1
	costContinuation = 5
	costStreamError  = 10
	costRefused      = 10 // a request that grpc-go would refuse
	costTooMany      = 4  // a request above the bound of streams: a client may send a thousand before it knows the bound
	costGoAway       = 10
	costEmpty        = 10 // DATA without data, and without the end of the stream
	costSettings     = 20
	costUnfinished   = 20 // RST_STREAM of a request that is not complete, or of another method and not answered
)

// costWaiting is the number of waiting responses that cost one point more for a WINDOW_UPDATE of
// the connection, which looks at all.
const costWaiting = 64

func (c *Conn) spend(points int64) error {
	g := &c.guard
	if elapsed := c.now - g.at; elapsed > guardEvery {
		g.points = max(0, g.points-elapsed/guardEvery)
		g.at = c.now
	}
	if g.points += points; g.points > guardMost {
		return &ConnError{EnhanceYourCalm, CauseFlood, "too many frames without a request"}
	}
	return nil
}

// spendReset is spend for a stream that the client has reset, or made the machine reset. The
// Handler may still have its call: the calls of such streams are bounded too.
func (c *Conn) spendReset(points int64) error {
	if c.opened.gone > c.lane.options.MaxStreams {
		return &ConnError{EnhanceYourCalm, CauseFlood, "too many requests under way were reset"}
	}
	return c.spend(points)
}

func (c *Conn) refund() { c.guard.points = max(0, c.guard.points-guardAnswer) }
