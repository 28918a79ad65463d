package lane

import (
	"golang.org/x/net/http2/hpack"
)

// stream is an open stream, or a call under way whose stream is gone.
type stream struct {
	id         uint32
	foreign    bool
	later      bool // the Handler has the call
	gone       bool // the client does not wait: only the Handler still has it
	incomplete bool // the first message is not complete
	ended      bool // the client has nothing more to send
	answered   bool // with OK, or DATA of another method; counts when the response has gone out
	over       bool // the end of the response is in the queue, or has gone out
	quit       bool // RST_STREAM with NoError follows the end of the response

	head    head
	opened  int64 // instant
	got     int64 // bytes of DATA so far, without padding
	message message

	window   int // bytes of DATA that the client may send now
	consumed int // bytes to open window by

	sendWindow int64  // of the client; may be negative
	queue      []byte // of the response: waits for the client's windows, from sent on
	sent       int
	trailer    []byte // header block behind the queue; nil: none
	since      int64  // instant from which on the queue waits, in Conn.waiting; 0: it does not

	mark    uint64 // of ForeignMark; 0: none
	passed  int64  // bytes of DATA that have gone out, of a stream with a mark
	behind  int64  // of these, the bytes before the last PING of marks
	arrived int64  // of these, the bytes that the Foreign has been told of
}

type streams struct {
	byID       map[uint32]*stream
	most       int // streams at once since the map was made
	open       int // as the client counts: without the gone ones
	gone       int
	incomplete int // streams without a whole message
	heads      int // bytes of heads
	messages   int // bytes of messages
	queued     int // bytes of queues
}

// find returns the stream with that number, or nil when the client does not have it open.
func (s *streams) find(id uint32) *stream {
	if f := s.byID[id]; f != nil && !f.gone {
		return f
	}
	return nil
}

// Memory that is kept for the next streams.
const (
	keptStreams = 64      // in the map of an idle connection
	keptQueue   = 4 << 10 // bytes, of a stream that waits for its next use
)

func (c *Conn) begin(id uint32, h *head, ended bool) *stream {
	s, _ := c.lane.streams.Get().(*stream)
	*s = stream{
		id: id, head: *h, ended: ended, incomplete: !ended, opened: c.now, queue: s.queue[:0], message: message{bytes: s.message.bytes[:0]},
		window: StreamWindow, sendWindow: c.peer.window,
	}
	if c.opened.byID == nil {
		c.opened.byID = make(map[uint32]*stream)
	}
	c.opened.byID[id] = s
	c.opened.heads += s.head.size()
	c.opened.open++
	c.opened.most = max(c.opened.most, len(c.opened.byID))
	if !ended {
		c.opened.incomplete++
		c.tickIn(MessageTimeout)
	}
	return s
}

func (c *Conn) complete(s *stream) {
	if s.incomplete {
		s.incomplete = false
		c.opened.incomplete--
	}
}

// release forgets a stream that nobody has any more.
func (c *Conn) release(s *stream) {
	c.dropMessage(s)
	c.opened.queued -= len(s.queue) - s.sent
	c.unwait(s)
	delete(c.opened.byID, s.id)
	if len(c.opened.byID) == 0 && c.opened.most > keptStreams {
		c.opened.byID, c.opened.most = nil, 0
	}
	if cap(s.queue) > keptQueue {
		s.queue = nil
	}
	c.opened.heads -= s.head.size()
	s.head, s.trailer = head{}, nil
	c.lane.streams.Put(s)
}

// dropMessage forgets the message of a stream. The memory of a small one serves again; a large one
// belongs to the Handler.
func (c *Conn) dropMessage(s *stream) {
	c.opened.messages -= len(s.message.bytes)
	if kept := s.message.bytes; cap(kept) <= c.lane.options.MaxInPlace {
		s.message = message{bytes: kept[:0]}
	} else {
		s.message = message{}
	}
}

// closeStream ends an open stream for the client. A call that the Handler has stays until Finish.
func (c *Conn) closeStream(s *stream) {
	c.opened.open--
	c.complete(s)
	if !s.later {
		c.release(s)
		return
	}
	s.gone = true
	c.opened.gone++
	c.handler.Cancel(s.id)
}

// abandon ends an open stream before its response is complete. The Handler or the Foreign is told.
func (c *Conn) abandon(s *stream, code Code) {
	if s.foreign {
		c.foreign.Reset(s.id, code)
		if n := len(s.queue) - s.sent; n > 0 {
			c.foreign.Credit(s.id, n)
		}
	}
	c.closeStream(s)
}

func (c *Conn) resetStream(id uint32, code Code) error {
	if s := c.opened.find(id); s != nil {
		c.abandon(s, code)
	}
	c.sendReset(id, code)
	return c.spendReset(CauseFlood, costStreamError)
}

// sendReset sends RST_STREAM. Frames of the stream may still be on the way.
func (c *Conn) sendReset(id uint32, code Code) {
	c.out = appendReset(c.out, id, code)
	if id <= c.ids.last {
		c.ids.quit |= 1 << (ordinal(c.ids.last) - ordinal(id))
	}
}

// ordinal is the position of a stream of the client among all that it may open.
func ordinal(id uint32) uint32 { return (id + 1) / 2 }

func (c *Conn) markOpened(id uint32) {
	skipped := ordinal(id) - ordinal(c.ids.last)
	c.ids.used = c.ids.used<<skipped | 1
	c.ids.quit <<= skipped
	c.ids.last = id
}

// wasQuit reports whether the machine has reset the stream, one of the last 64.
func (c *Conn) wasQuit(id uint32) bool { return c.ids.quit>>(ordinal(c.ids.last)-ordinal(id))&1 != 0 }

func (c *Conn) idle(id uint32) bool { return id > c.ids.last || id&1 == 0 }

func (c *Conn) beginForeign(id uint32, h *head, end bool) {
	fields := h.foreign
	h.foreign = nil
	s := c.begin(id, h, end)
	s.foreign = true
	c.foreign.Begin(id, fields, end)
}

// foreignStream returns an open foreign stream whose response goes on, or nil.
func (c *Conn) foreignStream(id uint32) *stream {
	if s := c.opened.find(id); c.err == nil && s != nil && s.foreign && !s.over {
		return s
	}
	return nil
}

// ForeignHeaders sends header fields of a foreign stream: the headers, or with end the trailers.
// ForeignHeaders keeps no field.
func (c *Conn) ForeignHeaders(id uint32, fields []hpack.HeaderField, end bool) {
	s := c.foreignStream(id)
	if s == nil {
		return
	}
	block, ok := c.encode(id, fields)
	if !ok {
		c.abandon(s, InternalError)
		return
	}
	if !end {
		c.out = c.appendBlock(c.out, id, block, false)
		return
	}
	s.trailer, s.over = block, true
	c.flush(s)
}

// ForeignData sends DATA of a foreign stream. Bytes beyond the client's windows wait as a copy;
// Foreign.Credit says when bytes have gone out. The caller bounds the bytes that wait with that.
func (c *Conn) ForeignData(id uint32, data []byte, end bool) {
	s := c.foreignStream(id)
	if s == nil {
		if c.foreign != nil && len(data) > 0 {
			c.foreign.Credit(id, len(data))
		}
		return
	}
	if end && len(data) == 0 && s.sent == len(s.queue) {
		c.out = appendFrame(c.out, 0, frameData, flagEndStream, id)
	}
	s.queue = append(s.queue, data...)
	s.answered = s.answered || len(data) > 0
	c.opened.queued += len(data)
	s.over = end
	c.flush(s)
}

// ForeignReset ends a foreign stream. With NoError it does so behind the response.
func (c *Conn) ForeignReset(id uint32, code Code) {
	s := c.opened.find(id)
	if c.err != nil || s == nil || !s.foreign {
		return
	}
	if code == NoError && s.over && s.sent < len(s.queue) {
		s.quit = true
		return
	}
	c.sendReset(id, code)
	c.closeStream(s)
}

// ForeignCredit says that so many bytes from Foreign.Data have been consumed: the client may send
// as many more.
func (c *Conn) ForeignCredit(id uint32, bytes int) {
	if c.err != nil {
		return
	}
	c.credit(bytes)
	if s := c.opened.find(id); s != nil && s.foreign && !s.ended {
		c.creditStream(s, bytes)
	}
}
