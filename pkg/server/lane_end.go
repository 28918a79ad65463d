package server

import (
	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/wire/inflight"
	"github.com/weirproxy/weir/internal/wire/laneserver"
)

// countEnd counts a connection that the lane has ended. The end at the age of a connection is no
// mistake of its client.
func countEnd(account laneserver.Account, cause lane.Cause) {
	c, ok := account.(*inflight.Conn)
	if !ok {
		return
	}
	switch cause {
	case lane.CauseProtocol:
		c.Ended(inflight.ProtocolError)
	case lane.CauseFlood:
		c.Ended(inflight.BadFrames)
	case lane.CauseSlow:
		c.Ended(inflight.SlowMessage)
	case lane.CauseUnread:
		c.Ended(inflight.UnreadAnswers)
	case lane.CauseSilent:
		c.Ended(inflight.Silent)
	case lane.CauseAge:
	}
}
