package inflight

import "slices"

// LargeAnswerBytes is an answer that is much larger than its request, such as the descriptors of
// reflection. grpc-go takes 64 KiB of answers that a client does not read, and one message more.
const LargeAnswerBytes = 128 << 10

// Stranger notes whether the client has shown no credentials. Answers to strangers do not protect
// their connection from new ones. A nil c does nothing.
func (c *Conn) Stranger(yes bool) {
	if c != nil {
		c.stranger.Store(yes)
	}
}

// Continues notes that an answer goes on: a client that watches is not silent, also before the
// answer ends. A nil c does nothing.
func (c *Conn) Continues() {
	if c != nil && c.mark != nil {
		c.mark.Answered()
	}
}

// LargeAnswer counts LargeAnswerBytes for one of the open streams, until so many streams have ended
// that the answer must have gone out. Call LargeAnswer at the start of a call. All large answers
// together may fill a quarter of the bound. Without room, and when the connection or the stream has
// ended, LargeAnswer reports false: the call should be refused. For a nil c the result is true.
func (c *Conn) LargeAnswer() bool {
	if c == nil {
		return true
	}
	crowded, ok := c.countAnswer()
	if crowded {
		c.bound.relieve()
	}
	if !ok {
		c.bound.refused.Add(1)
		c.bound.log("requests are refused: too many bytes are in flight", c.RemoteAddr())
	}
	return ok
}

// countAnswer reports whether the bound is exceeded, and whether there was room.
func (c *Conn) countAnswer() (crowded, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return false, false
	}
	before := c.held.Load()
	held := before - c.sentLargeLocked()
	if ok = len(c.large) < c.streams.open; ok { // otherwise the client has reset the stream
		if ok = c.bound.answers.Add(1) <= c.bound.mayAnswer(); ok {
			c.large = append(c.large, c.streams.last)
			held += LargeAnswerBytes
		} else {
			c.bound.answers.Add(-1)
		}
	}
	c.held.Store(held)
	return c.settleLocked(before, c.streams.open), ok
}

// sentLargeLocked returns the bytes of large answers that are no more. No stream has more than one.
// An answer has gone out when all streams up to its own have ended.
func (c *Conn) sentLargeLocked() int64 {
	sent := max(len(c.large)-c.streams.open, 0)
	for s := c.streams.oldest(); s != nil && sent < len(c.large) && c.large[sent] < s.id; {
		sent++
	}
	if sent == 0 {
		return 0
	}
	c.large = slices.Delete(c.large, 0, sent)
	c.bound.answers.Add(-int64(sent))
	return int64(sent) * LargeAnswerBytes
}

// answersWeight is the number of large answers of a connection with an old stream, and 0 for
// others.
func (c *Conn) answersWeight(now int64) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ageLocked(now) < int64(fullAge) {
		return 0
	}
	return float64(len(c.large))
}

// mayAnswer returns the bound of large answers.
func (b *Bound) mayAnswer() int64 { return max(b.options.MaxBytes/takenPart/LargeAnswerBytes, 1) }
