package lane

import (
	"bytes"
	"encoding/binary"
)

// Bounds of a header block in several frames.
const (
	maxContinuations = 16 // frames
	maxBlockFactor   = 2  // times Options.MaxHeaderList, in bytes
)

type block struct {
	stream uint32 // 0: none
	end    bool   // of the stream
	self   bool   // the stream depends on itself
	bytes  []byte
	frames int
	since  int64 // instant
}

// headers takes a HEADERS frame. rest is behind the frame; more is the length of a DATA frame in
// rest that was taken too.
func (c *Conn) headers(f frame, payload, rest []byte) (more int, err error) {
	if f.stream&1 == 0 {
		return 0, protocolError("HEADERS on stream %d", f.stream)
	}
	payload, ok := unpad(f, payload)
	if !ok {
		return 0, protocolError("HEADERS with more padding than payload")
	}
	self := false
	if f.has(flagPriority) {
		if len(payload) < 5 {
			return 0, &ConnError{FrameSizeError, CauseProtocol, "HEADERS is too short"}
		}
		self = binary.BigEndian.Uint32(payload)&maxStreamID == f.stream
		payload = payload[5:]
	}
	if !f.has(flagEndHeaders) {
		c.input.block = block{stream: f.stream, end: f.has(flagEndStream), self: self, bytes: bytes.Clone(payload), since: c.now}
		c.tickIn(MessageTimeout)
		return 0, nil
	}
	more, err = c.headerBlock(f.stream, f.has(flagEndStream), self, payload, rest)
	c.head = head{} // an idle connection keeps no headers
	return more, err
}

func (c *Conn) continuation(f frame, payload []byte) error {
	b := &c.input.block
	if b.stream == 0 {
		return protocolError("CONTINUATION without HEADERS")
	}
	b.frames++
	if b.frames > maxContinuations || len(b.bytes)+len(payload) > max(maxFrame, maxBlockFactor*MaxHeaderList) {
		return &ConnError{EnhanceYourCalm, CauseFlood, "a header block is too large"}
	}
	b.bytes = append(b.bytes, payload...)
	if err := c.spend(costContinuation); err != nil || !f.has(flagEndHeaders) {
		return err
	}
	whole := *b
	c.input.block = block{}
	_, err := c.headerBlock(whole.stream, whole.end, whole.self, whole.bytes, nil)
	c.head = head{} // as headers does
	return err
}

func (c *Conn) headerBlock(id uint32, end, self bool, block, rest []byte) (more int, err error) {
	if id <= c.ids.last || c.drain.final {
		return 0, c.lateBlock(id, end, block)
	}
	h := c.cache.find(block, c.decoder.changes)
	if h == nil {
		if h, err = c.decode(block); err != nil {
			return 0, err
		}
	}
	c.markOpened(id)
	switch {
	case self:
		return 0, c.resetStream(id, ProtocolError)
	case h.refused != nil && h.refused.reset != NoError:
		return 0, c.resetStream(id, h.refused.reset)
	case h.refused != nil:
		c.refuse(id, h.subtype, end, h.refused)
		return 0, c.spend(costRefused)
	case end && h.length > 0:
		return 0, c.resetStream(id, ProtocolError)
	case c.opened.open >= c.lane.options.MaxStreams:
		c.sendReset(id, RefusedStream)
		return 0, c.spend(costTooMany)
	case h.foreign != nil:
		c.beginForeign(id, h, end)
		return 0, nil
	case end:
		c.refuse(id, h.subtype, true, noMessage())
		return 0, nil
	}
	if data, ok := c.whole(id, h, rest); ok {
		c.flow.window -= len(data)
		c.credit(len(data))
		return frameHead + len(data), c.ask(id, h, data[messageHead:], nil)
	}
	c.begin(id, h, false)
	if h.timeout > 0 {
		c.tickIn(h.timeout)
	}
	return 0, nil
}

// decode decodes the header block of a request. The head is valid until the next call.
func (c *Conn) decode(block []byte) (*head, error) {
	from, _ := c.lane.fields.Get().(*fields)
	defer c.lane.fields.Put(from)
	from.reset(MaxHeaderList)
	before := c.decoder.changes
	if err := c.decoder.decode(block, from); err != nil {
		return nil, &ConnError{CompressionError, CauseProtocol, err.Error()}
	}
	c.head = c.lane.read(from, c.foreign != nil)
	if c.head.ours && c.decoder.changes == before && MaxHeaderList-from.left <= maxCachedList {
		c.cache.add(block, before, c.head)
	}
	return &c.head, nil
}

// lateBlock takes a header block that opens no stream: trailers, or a mistake. The table must
// follow it in any case.
func (c *Conn) lateBlock(id uint32, end bool, block []byte) error {
	from, _ := c.lane.fields.Get().(*fields)
	defer c.lane.fields.Put(from)
	from.reset(MaxHeaderList)
	if err := c.decoder.decode(block, from); err != nil {
		return &ConnError{CompressionError, CauseProtocol, err.Error()}
	}
	s := c.opened.find(id)
	switch {
	case c.tooLate(id):
		return c.spend(costUnknown)
	case s != nil && s.ended:
		return c.resetStream(id, StreamClosed)
	case s != nil && (!end || !validTrailers(from)):
		return c.resetStream(id, ProtocolError)
	case s != nil:
		return c.endOfData(s, nil)
	case ordinal(c.ids.last)-ordinal(id) >= 64 || c.wasQuit(id):
		return c.spend(costUnknown)
	case c.ids.used>>(ordinal(c.ids.last)-ordinal(id))&1 == 0:
		return protocolError("HEADERS on stream %d after stream %d", id, c.ids.last)
	}
	return &ConnError{StreamClosed, CauseProtocol, "HEADERS on a closed stream"}
}

func validTrailers(from *fields) bool {
	for i := range from.list {
		switch f := &from.list[i]; {
		case f.bad, f.kind.pseudo(), f.kind == kindConnection, f.kind == kindInvalid:
			return false
		}
	}
	return !from.over
}
