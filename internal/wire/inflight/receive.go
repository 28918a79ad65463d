package inflight

// receiveLocked reports false with the reason when the connection must end.
func (c *Conn) receiveLocked(chunk []byte, now int64) (reason Reason, ok bool) {
	if c.gone {
		return 0, true
	}
	if c.skip > 0 {
		n := min(c.skip, len(chunk))
		c.skip -= n
		chunk = chunk[n:]
	}
	blocked := c.blockedLocked(now)
	held, continued := c.held.Load(), true
	for {
		var more bool
		if chunk, more = c.received.next(chunk); !more {
			break
		}
		continued, c.greeted, c.begun = false, c.begun, true
		bytes, bad := c.frameLocked(chunk, now, blocked)
		if bad != reasons {
			return bad, false
		}
		held += bytes
	}
	c.greeted = c.greeted || c.begun && c.received.left == 0
	c.held.Store(held - c.sentLargeLocked())
	switch {
	case !c.received.partial():
		c.partial = 0
	case c.partial == 0 || !continued: // the frame has begun in this chunk
		c.partial = now
	}
	return 0, true
}

// frameLocked counts one frame: the bytes that the connection holds from now on, or less than none.
// Another reason than reasons must end the connection.
func (c *Conn) frameLocked(payload []byte, now int64, blocked bool) (bytes int64, reason Reason) {
	f := &c.received
	length := int64(f.length())
	switch f.kind() {
	case frameHeaders:
		c.series = 0
		return c.headersLocked(f, now, blocked)
	case frameContinuation:
		if c.series++; c.series > maxContinuations {
			return 0, BadFrames
		}
		if s := c.streams.find(f.stream()); s != nil {
			s.bytes += headerFactor * length
			return headerFactor * length, reasons
		}
		return 0, reasons
	case frameData:
		s := c.streams.find(f.stream())
		if s == nil || s.complete && length == 0 {
			return 0, reasons
		}
		if s.got == 0 {
			s.want = f.message(payload)
		}
		s.got += length
		s.complete = s.complete || f.has(flagEndStream) || s.want > 0 && s.got >= s.want
		s.bytes += messageFactor * length
		return messageFactor * length, reasons
	case frameReset:
		bytes := c.streams.end(f.stream()) + c.sentLargeLocked()
		if c.writes.Load()&1 == 1 { // the answer may wait behind the Write
			c.backlog += bytes
			return 0, reasons
		}
		c.reset += bytes
		return 0, reasons
	case frameSettings:
		if length > maxSettings {
			return 0, BadFrames
		}
	}
	if blocked {
		c.backlog += replyBytes + 2*length
		return replyBytes + 2*length, reasons
	}
	return 0, reasons
}

// headersLocked counts a HEADERS frame: of a new stream, or trailers.
func (c *Conn) headersLocked(f *frames, now int64, blocked bool) (bytes int64, reason Reason) {
	bytes = headerFactor * int64(f.length())
	id := f.stream()
	if id <= c.streams.last {
		s := c.streams.find(id)
		if s == nil {
			return 0, reasons // gRPC ends the connection
		}
		s.bytes += bytes
		s.complete = s.complete || f.has(flagEndStream)
		return bytes, reasons
	}
	bytes += StreamBytes
	if blocked {
		bytes = max(bytes, blockedBytes)
	}
	s := c.streams.add(id, bytes, now)
	s.complete = f.has(flagEndStream)
	if c.streams.open > c.bound.options.MaxStreams {
		return 0, tooManyStreams
	}
	return bytes, reasons
}

// blockedLocked reports whether a Write has waited for the client for some milliseconds.
func (c *Conn) blockedLocked(now int64) bool {
	writes := c.writes.Load()
	if writes&1 == 0 {
		c.watched = 0
		return false
	}
	if c.watched != writes {
		c.watched, c.since = writes, now
		return false
	}
	return now-c.since > int64(blockedAfter) && c.fullLocked()
}
