package lane

import (
	"encoding/binary"
	"fmt"
)

// fullOutput is the output at which Receive takes no more frames, in bytes. Answers to 32 KiB of
// usual requests are of that size.
const fullOutput = 64 << 10

// Receive takes the next bytes from the client, which may be cut anywhere. Receive stops when the
// output has more than 64 KiB: a request of 20 bytes may get a refusal of 14 KB. The caller writes
// the output, and goes on with the rest. Bytes of an incomplete frame are copied.
//
// An error ends the connection: the caller writes the output, closes the socket, and calls Close.
// The error is a *ConnError or ErrNotHTTP2.
func (c *Conn) Receive(chunk []byte, now int64) (rest []byte, err error) {
	if c.err != nil || len(chunk) == 0 {
		return nil, c.err
	}
	c.now = now
	c.alive.heard, c.alive.pinged = now, 0
	chunk, err = c.resume(chunk)
	for err == nil && len(chunk) > 0 {
		if len(c.out) > fullOutput {
			return chunk, nil
		}
		var n int
		if n, err = c.step(chunk); n == 0 {
			break
		}
		chunk = chunk[n:]
	}
	if err != nil {
		return nil, c.fail(err)
	}
	if len(chunk) > 0 { // with an incomplete frame before it, the chunk is empty by now
		c.input.partial = append(c.input.partial, chunk...)
		c.alive.partial = now
		c.tickIn(MessageTimeout)
	}
	return nil, nil
}

// keptPartial is the memory that an idle connection keeps for the next incomplete frame, in bytes.
const keptPartial = 512

// resume completes the frame whose beginning came before, and returns the bytes behind it.
func (c *Conn) resume(chunk []byte) (rest []byte, err error) {
	for len(c.input.partial) > 0 && len(chunk) > 0 {
		want := frameHead
		switch {
		case !c.input.begun:
			want = len(preface)
		case len(c.input.partial) >= frameHead:
			f := parseFrame(c.input.partial)
			want += f.length
		}
		n := min(want-len(c.input.partial), len(chunk))
		c.input.partial = append(c.input.partial, chunk[:n]...)
		chunk = chunk[n:]
		n, err := c.step(c.input.partial)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			continue
		}
		c.alive.partial = 0
		if c.input.partial = c.input.partial[:0]; cap(c.input.partial) > keptPartial {
			c.input.partial = nil
		}
	}
	return chunk, nil
}

// step takes one frame, or the two of a request, and returns their length; 0 when the frame is
// incomplete.
func (c *Conn) step(chunk []byte) (n int, err error) {
	if !c.input.begun {
		return c.preface(chunk)
	}
	if len(chunk) < frameHead {
		return 0, nil
	}
	f := parseFrame(chunk)
	switch {
	case f.length > maxFrame:
		return 0, &ConnError{FrameSizeError, CauseProtocol, fmt.Sprintf("a frame of %d bytes: the bound is %d", f.length, maxFrame)}
	case !c.input.greeted && (f.kind != frameSettings || f.has(flagAck)):
		return 0, protocolError("the first frame is not SETTINGS")
	case c.input.block.stream != 0 && (f.kind != frameContinuation || f.stream != c.input.block.stream):
		return 0, protocolError("a header block is not continued")
	}
	n = frameHead + f.length
	if len(chunk) < n {
		return 0, nil
	}
	payload := chunk[frameHead:n]
	if f.kind == frameHeaders {
		more, err := c.headers(f, payload, chunk[n:])
		return n + more, err
	}
	return n, c.frame(f, payload)
}

func (c *Conn) preface(chunk []byte) (n int, err error) {
	n = min(len(preface), len(chunk))
	if string(chunk[:n]) != preface[:n] {
		return 0, ErrNotHTTP2
	}
	if n < len(preface) {
		return 0, nil
	}
	c.input.begun = true
	return n, nil
}

func (c *Conn) frame(f frame, payload []byte) error {
	switch f.kind {
	case frameData:
		return c.data(f, payload)
	case framePriority:
		return c.priority(f, payload)
	case frameReset:
		return c.resetByClient(f, payload)
	case frameSettings:
		return c.settings(f, payload)
	case framePush:
		return protocolError("PUSH_PROMISE from a client")
	case framePing:
		return c.ping(f, payload)
	case frameGoAway:
		if f.stream != 0 {
			return protocolError("GOAWAY on a stream")
		}
		if f.length < 8 {
			return &ConnError{FrameSizeError, CauseProtocol, "GOAWAY is too short"}
		}
		return c.spend(costGoAway)
	case frameWindow:
		return c.windowUpdate(f, payload)
	case frameContinuation:
		return c.continuation(f, payload)
	}
	return c.spend(costUnknown)
}

// priority checks a PRIORITY frame. Priorities change nothing.
func (c *Conn) priority(f frame, payload []byte) error {
	if f.stream == 0 {
		return protocolError("PRIORITY on stream 0")
	}
	if f.length != 5 {
		return c.resetStream(f.stream, FrameSizeError)
	}
	if binary.BigEndian.Uint32(payload)&maxStreamID == f.stream {
		return c.resetStream(f.stream, ProtocolError)
	}
	return c.spend(costPriority)
}

func (c *Conn) resetByClient(f frame, payload []byte) error {
	switch {
	case f.stream == 0 || c.idle(f.stream):
		return protocolError("RST_STREAM on stream %d, which is idle", f.stream)
	case f.length != 4:
		return &ConnError{FrameSizeError, CauseProtocol, fmt.Sprintf("RST_STREAM of %d bytes", f.length)}
	}
	s := c.opened.find(f.stream)
	if s == nil {
		return c.spendOn(CauseResets, costReset)
	}
	cost := int64(costReset)
	if !s.ended || s.foreign && !s.over {
		cost = costUnfinished
	}
	c.abandon(s, Code(binary.BigEndian.Uint32(payload)))
	return c.spendReset(CauseResets, cost)
}

// maxSettings bounds one SETTINGS frame, in bytes: 170 settings.
const maxSettings = 1 << 10

func (c *Conn) settings(f frame, payload []byte) error {
	switch {
	case f.stream != 0:
		return protocolError("SETTINGS on stream %d", f.stream)
	case f.length%6 != 0 || f.has(flagAck) && f.length > 0:
		return &ConnError{FrameSizeError, CauseProtocol, fmt.Sprintf("SETTINGS of %d bytes", f.length)}
	case f.has(flagAck):
		return c.spend(costUnknown)
	case f.length > maxSettings:
		return &ConnError{EnhanceYourCalm, CauseFlood, "SETTINGS is too large"}
	}
	c.input.greeted = true
	old, most := c.peer.window, int64(0)
	for ; len(payload) > 0; payload = payload[6:] {
		if err := c.setting(binary.BigEndian.Uint16(payload), binary.BigEndian.Uint32(payload[2:])); err != nil {
			return err
		}
		most = max(most, c.peer.window)
	}
	if err := c.moveWindows(c.peer.window-old, most-old); err != nil {
		return err
	}
	c.out = appendFrame(c.out, 0, frameSettings, flagAck, 0)
	c.flushAll()
	return c.spend(costSettings)
}

func (c *Conn) setting(id uint16, value uint32) error {
	switch id {
	case settingTableSize: // this encoder uses no table, but must say so after a reduction: RFC 9113, section 4.3.1
		c.peer.tableUpdate = c.peer.tableUpdate || value < c.peer.tableSize
		c.peer.tableSize = value
	case settingPush:
		if value > 1 {
			return protocolError("SETTINGS_ENABLE_PUSH %d", value)
		}
	case settingWindow:
		if value > maxWindow {
			return &ConnError{FlowControlError, CauseProtocol, "SETTINGS_INITIAL_WINDOW_SIZE is above 2^31-1"}
		}
		c.peer.window = int64(value)
	case settingMaxFrame:
		if value < maxFrame || value > 1<<24-1 {
			return protocolError("SETTINGS_MAX_FRAME_SIZE %d", value)
		}
		c.peer.maxFrame = int(value)
	case settingMaxHeaderList:
		c.peer.maxHeaderList = value
	}
	return nil
}

// moveWindows adds bytes to the windows of all streams, once for all settings of a frame: a frame
// may have 170 of them. most is the largest change on the way, which must be allowed too.
func (c *Conn) moveWindows(by, most int64) error {
	if by == 0 && most <= 0 {
		return nil
	}
	for _, s := range c.opened.byID {
		if s.sendWindow+most > maxWindow {
			return &ConnError{FlowControlError, CauseProtocol, "SETTINGS_INITIAL_WINDOW_SIZE makes a window larger than 2^31-1"}
		}
		s.sendWindow += by
	}
	return nil
}
