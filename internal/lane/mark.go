package lane

import "time"

// markPing is the data of a PING behind DATA of streams with marks.
const markPing = "\x52\x4c\x51\x53mark"

// MarkTimeout is the time in which DATA of a stream with a mark must go out. Older DATA is dropped
// with its stream: it must not arrive much later.
const MarkTimeout = 3 * time.Second

func (s *stream) responseTimeout() time.Duration {
	if s.mark != 0 {
		return MarkTimeout
	}
	return ResponseTimeout
}

// ForeignMark lets the client acknowledge the DATA of an open foreign stream: a PING follows it.
// One PING at a time is on its way on a connection. When it comes back, [Foreign.Arrived] gets
// mark, which is not 0, and the number of bytes before that PING. The client has then read these
// bytes; that it has used them is not said.
func (c *Conn) ForeignMark(id uint32, mark uint64) {
	if s := c.foreignStream(id); s != nil {
		s.mark = mark
	}
}

func (c *Conn) sendMark() {
	if c.alive.marking {
		return
	}
	for _, s := range c.opened.byID {
		if s.mark != 0 {
			s.behind = s.passed
		}
	}
	c.alive.marking = true
	c.out = appendPing(c.out, 0, []byte(markPing))
}

func (c *Conn) endMark() {
	c.alive.marking = false
	again := false
	for _, s := range c.opened.byID {
		if s.mark != 0 && s.behind > s.arrived {
			s.arrived = s.behind
			c.foreign.Arrived(s.mark, s.arrived)
		}
		again = again || s.mark != 0 && s.passed > s.behind
	}
	if again {
		c.sendMark()
	}
}
