package lane

import (
	"time"
)

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

func (c *Conn) spend(points int64) error { return c.spendOn(CauseFlood, points) }

func (c *Conn) spendOn(cause Cause, points int64) error {
	g := &c.guard
	if elapsed := c.now - g.at; elapsed > guardEvery {
		g.points = max(0, g.points-elapsed/guardEvery)
		g.at = c.now
	}
	if g.points += points; g.points > guardMost {
		return &ConnError{EnhanceYourCalm, cause, "too many frames without a request"}
	}
	return nil
}

// spendReset is spendOn for a stream that the client has reset, or made the machine reset. The
// Handler may still have its call: the calls of such streams are bounded too.
func (c *Conn) spendReset(cause Cause, points int64) error {
	if c.opened.gone > c.lane.options.MaxStreams {
		return &ConnError{EnhanceYourCalm, cause, "too many requests under way were reset"}
	}
	return c.spendOn(cause, points)
}
