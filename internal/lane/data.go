package lane

import "encoding/binary"

// whole returns the payload of the DATA frame at the beginning of rest. The payload must be the
// whole message of the request, and small enough to be answered at once.
func (c *Conn) whole(id uint32, h *head, rest []byte) (payload []byte, ok bool) {
	if len(rest) < frameHead+messageHead {
		return nil, false
	}
	f := parseFrame(rest)
	if f.kind != frameData || f.flags != flagEndStream || f.stream != id || f.length < messageHead || f.length > len(rest)-frameHead {
		return nil, false
	}
	payload = rest[frameHead : frameHead+f.length]
	size, o := f.length-messageHead, &c.lane.options
	return payload, payload[0] == 0 && binary.BigEndian.Uint32(payload[1:]) == uint32(size) && size <= min(o.MaxInPlace, o.MaxMessage) &&
		f.length <= c.flow.window && (h.length < 0 || h.length == int64(f.length))
}

func (c *Conn) data(f frame, payload []byte) error {
	if f.stream == 0 {
		return protocolError("DATA on stream 0")
	}
	if f.length > c.flow.window {
		return &ConnError{FlowControlError, CauseProtocol, "more DATA than the window of the connection"}
	}
	c.flow.window -= f.length
	payload, ok := unpad(f, payload)
	if !ok {
		return protocolError("DATA with more padding than payload")
	}
	s := c.opened.find(f.stream)
	if s == nil {
		return c.lateData(f)
	}
	end := f.has(flagEndStream)
	s.got += int64(len(payload))
	code := NoError
	switch {
	case s.ended:
		code = StreamClosed
	case f.length > s.window:
		code = FlowControlError
	case s.head.length >= 0 && (s.got > s.head.length || end && s.got < s.head.length):
		code = ProtocolError
	}
	if code != NoError {
		c.credit(f.length)
		return c.resetStream(s.id, code)
	}
	s.window -= f.length
	if len(payload) == 0 && !end {
		if err := c.spend(costEmpty); err != nil {
			return err
		}
	}
	taken := f.length
	if s.foreign {
		taken -= len(payload) // the Foreign credits these
	}
	c.credit(taken)
	if end {
		return c.endOfData(s, payload)
	}
	c.creditStream(s, taken)
	if s.foreign {
		if len(payload) > 0 {
			c.passMessage(s, payload)
			c.foreign.Data(s.id, payload, false)
		}
		return nil
	}
	if r := c.take(s, payload); r != nil {
		c.refuseStream(s, r)
	}
	return nil
}

func (c *Conn) lateData(f frame) error {
	c.credit(f.length)
	switch {
	case c.tooLate(f.stream):
		return c.spend(costUnknown)
	case c.idle(f.stream):
		return protocolError("DATA on stream %d, which is idle", f.stream)
	case c.wasQuit(f.stream):
		return c.spend(costUnknown)
	}
	return c.resetStream(f.stream, StreamClosed)
}

func (c *Conn) endOfData(s *stream, payload []byte) error {
	if s.head.length >= 0 && s.got != s.head.length { // trailers came too early
		return c.resetStream(s.id, ProtocolError)
	}
	if s.foreign {
		s.ended = true
		c.complete(s)
		id := s.id
		c.foreign.Data(id, payload, true)
		if s = c.opened.find(id); s != nil && s.over && len(s.queue) == s.sent {
			c.closeStream(s)
		}
		return nil
	}
	if s.head.timeout > 0 && instant(s.opened, s.head.timeout) <= c.now {
		return c.resetStream(s.id, Cancel) // as Tick would
	}
	r := c.take(s, payload)
	s.ended = true
	c.complete(s)
	if r == nil {
		r = s.message.end()
	}
	if r != nil {
		c.refuseStream(s, r)
		return nil
	}
	return c.ask(s.id, &s.head, s.message.bytes, s)
}

// message is the message of a call, as far as it is there.
type message struct {
	bytes []byte // of the first message
	count int    // complete messages
	have  int    // bytes of head
	left  int    // bytes that are still to come, of the message whose head is there
	head  [messageHead]byte
}

// take adds bytes to the message of a stream. A refusal ends the stream.
func (c *Conn) take(s *stream, payload []byte) *refusal {
	m := &s.message
	for len(payload) > 0 {
		if m.have < messageHead {
			n := copy(m.head[m.have:], payload)
			m.have += n
			payload = payload[n:]
			if m.have < messageHead {
				return nil
			}
			size := binary.BigEndian.Uint32(m.head[1:])
			if most := c.lane.options.MaxMessage; uint64(size) > uint64(most) {
				return refused(statusResourceExhausted, "grpc: received message larger than max (%d vs. %d)", size, most)
			}
			m.left = int(size)
		}
		n := min(m.left, len(payload))
		if m.count == 0 {
			m.bytes = append(m.bytes, payload[:n]...)
			c.opened.messages += n
		}
		m.left -= n
		payload = payload[n:]
		if m.left > 0 {
			return nil
		}
		if r := m.complete(); r != nil {
			return r
		}
	}
	return nil
}

// passMessage notes when the first message of a foreign stream is complete.
func (c *Conn) passMessage(s *stream, payload []byte) {
	m := &s.message
	m.have += copy(m.head[m.have:], payload)
	if m.have == messageHead && s.got >= messageHead+int64(binary.BigEndian.Uint32(m.head[1:])) {
		c.complete(s)
	}
}

func (m *message) complete() *refusal {
	m.count++
	m.have = 0
	switch {
	case m.head[0] == 1:
		return refused(statusInternal, "grpc: compressed flag set with identity or empty encoding")
	case m.head[0] != 0:
		return refused(statusInternal, "grpc: received unexpected payload format %d", m.head[0])
	case m.count > 1:
		return refused(statusInternal, "cardinality violation: received multiple request messages for non-client-streaming RPC")
	}
	return nil
}

// end returns the refusal of a stream that ends here, or nil when one message is there.
func (m *message) end() *refusal {
	switch {
	case m.have > 0:
		return refused(statusInternal, "unexpected EOF")
	case m.count == 0:
		return noMessage()
	}
	return nil
}

func noMessage() *refusal {
	return refused(statusInternal, "cardinality violation: received no request message from non-client-streaming RPC")
}
