package lane

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// credit gives back bytes of the connection's window to the client, in portions of half the window.
func (c *Conn) credit(bytes int) {
	c.flow.consumed += bytes
	if c.flow.consumed >= ConnWindow/2 {
		c.out = appendWindow(c.out, 0, c.flow.consumed)
		c.flow.window += c.flow.consumed
		c.flow.consumed = 0
	}
}

func (c *Conn) creditStream(s *stream, bytes int) {
	s.consumed += bytes
	if s.consumed >= StreamWindow/2 {
		c.out = appendWindow(c.out, s.id, s.consumed)
		s.window += s.consumed
		s.consumed = 0
	}
}

func (c *Conn) windowUpdate(f frame, payload []byte) error {
	if f.length != 4 {
		return &ConnError{FrameSizeError, CauseProtocol, fmt.Sprintf("WINDOW_UPDATE of %d bytes", f.length)}
	}
	increment := int64(binary.BigEndian.Uint32(payload) & maxWindow)
	cost := int64(costWindow)
	if f.stream == 0 {
		cost += int64(len(c.waiting) / costWaiting)
	}
	if err := c.spend(cost); err != nil {
		return err
	}
	if f.stream == 0 {
		switch c.flow.send += increment; {
		case increment == 0:
			return protocolError("WINDOW_UPDATE of 0")
		case c.flow.send > maxWindow:
			return &ConnError{FlowControlError, CauseProtocol, "the window of the connection is above 2^31-1"}
		}
		c.flushAll()
		return nil
	}
	if c.idle(f.stream) {
		if c.tooLate(f.stream) {
			return nil
		}
		return protocolError("WINDOW_UPDATE on stream %d, which is idle", f.stream)
	}
	s := c.opened.find(f.stream)
	switch {
	case increment == 0:
		return c.resetStream(f.stream, ProtocolError)
	case s == nil:
		return nil
	case s.sendWindow+increment > maxWindow:
		return c.resetStream(f.stream, FlowControlError)
	}
	s.sendWindow += increment
	c.flush(s)
	return nil
}

// flushAll sends the queues, the oldest first, as far as the windows allow.
func (c *Conn) flushAll() {
	for i := 0; i < len(c.waiting) && c.flow.send > 0; {
		s := c.waiting[i]
		if c.flush(s); i < len(c.waiting) && c.waiting[i] == s {
			i++
		}
	}
}

func (c *Conn) flush(s *stream) {
	for {
		left := len(s.queue) - s.sent
		n := int(min(int64(left), c.flow.send, s.sendWindow, int64(c.peer.maxFrame)))
		if left == 0 || n <= 0 {
			break
		}
		flags := byte(0)
		if n == left && s.over && s.trailer == nil {
			flags = flagEndStream
		}
		c.out = append(appendFrame(c.out, n, frameData, flags, s.id), s.queue[s.sent:s.sent+n]...)
		c.alive.spoke = true
		s.sent += n
		s.sendWindow -= int64(n)
		c.flow.send -= int64(n)
		c.opened.queued -= n
		s.passed += int64(n)
		if s.foreign {
			if s.since != 0 && s.mark == 0 {
				s.since = c.now // a stream may last for hours
			}
			c.foreign.Credit(s.id, n)
		}
	}
	if s.sent < len(s.queue) {
		if s.sent > len(s.queue)/2 { // a queue that is never empty must not grow with all bytes so far
			s.queue, s.sent = append(s.queue[:0], s.queue[s.sent:]...), 0
		}
		if s.since == 0 {
			s.since = c.now
			c.waiting = append(c.waiting, s)
			c.tickIn(s.responseTimeout())
		}
		return
	}
	s.queue, s.sent = s.queue[:0], 0
	c.unwait(s)
	if s.mark != 0 {
		c.sendMark()
	}
	if s.over {
		c.endResponse(s)
	}
}

func (c *Conn) unwait(s *stream) {
	if s.since == 0 {
		return
	}
	s.since = 0
	i := slices.Index(c.waiting, s)
	if c.waiting = slices.Delete(c.waiting, i, i+1); len(c.waiting) == 0 {
		c.waiting = nil
	}
}

// endResponse sends the trailers of a stream whose queue is empty, and closes the stream when the
// client is done too.
func (c *Conn) endResponse(s *stream) {
	if s.trailer != nil {
		c.out = c.appendBlock(c.out, s.id, s.trailer, true)
		s.trailer = nil
	}
	if s.foreign {
		c.replies.replied++
		if s.answered {
			c.replies.answered++
		}
	}
	switch {
	case s.answered && !s.foreign:
		c.spoke(s)
	case s.quit:
		c.sendReset(s.id, NoError)
		c.closeStream(s)
	case s.ended:
		c.closeStream(s)
	}
}
