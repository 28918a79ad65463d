package lane

import "golang.org/x/net/http2/hpack"

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
