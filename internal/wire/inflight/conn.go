package inflight

import (
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/weirproxy/weir/internal/wire/connections"
)

// Conn is the server's end of an HTTP/2 connection. One goroutine may read, another one write; the
// rest is safe for concurrent use.
type Conn struct {
	net.Conn
	bound *Bound
	raw   syscall.RawConn       // without TLS; may be nil
	mark  connections.Marker    // nil: nobody wants to know
	plain connections.Decrypter // the same
	held  atomic.Int64          // bytes of the connection; changes under mu
	open  atomic.Int64          // streams; changes under mu

	// answered is the history of answers that the client has taken, as far as the system tells:
	// answerUnit for each, which fades. Errors and streams that the client has reset do not count.
	// Changes under mu.
	answered atomic.Int64

	stranger atomic.Bool // answers do not protect the connection from new ones

	writes atomic.Uint64 // odd while a Write is under way

	sent     frames // used by Write alone
	resetAny bool   // the last Read has seen a reset; used by Read alone

	mu       sync.Mutex // guards the rest
	gone     bool       // nothing counts any more
	left     int64      // bytes that the connection held in the end, until leave
	kept     int64      // bytes that the most streams leave behind
	peaked   int64      // instant of the last change of kept
	received frames
	skip     int  // bytes of the preface still to come
	begun    bool // the head of a frame has come
	greeted  bool // a whole frame has come
	streams  streams
	backlog  int64    // bytes that are held until the Write under way has ended
	reset    int64    // bytes of streams that the client has reset, in frames that the server may not have seen
	going    int64    // bytes of streams that the client has reset before, until letGo
	letting  bool     // letGo runs
	large    []uint32 // for each large answer that may not have gone out: the last stream when its call began
	series   int      // CONTINUATION frames since the last HEADERS
	partial  int64    // instant since which a frame is incomplete; 0: none is

	told    bool   // by Hold: no frames are seen
	answers uint64 // in the last Hold
	holding int64  // instant of the last answer, or since which the connection holds bytes

	watched uint64 // the Write that was under way when the reader last looked
	since   int64  // instant of the first such look
}

// Follow returns the server's end of a connection, counted from now on until Close. Behind TLS the
// connection must be the decrypted one.
func (b *Bound) Follow(raw net.Conn) *Conn {
	c := &Conn{Conn: raw, bound: b, raw: system(raw), skip: preface}
	c.mark, c.plain = connections.Below(raw)
	b.add(c)
	return c
}

// Read implements [net.Conn].
func (c *Conn) Read(p []byte) (int, error) {
	c.sawResets()
	n, err := c.Conn.Read(p)
	if c.plain != nil && n > 0 {
		c.plain.Decrypted()
	}
	if n > 0 && !c.receive(p[:n]) {
		return 0, net.ErrClosed
	}
	return n, err
}

// Write implements [net.Conn].
func (c *Conn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	n, err := c.Conn.Write(p)
	c.wrote(p[:n])
	return n, err
}

// Close implements [net.Conn].
func (c *Conn) Close() error {
	c.bound.remove(c)
	err := c.Conn.Close()
	c.leave()
	return err
}

// receive counts the frames of a client. The result is false when the connection has ended: the
// server must not see frames that would open streams without a bound.
func (c *Conn) receive(chunk []byte) (open bool) {
	now := c.bound.now()
	c.mu.Lock()
	before, opened := c.held.Load(), c.streams.open
	reason, ok := c.receiveLocked(chunk, now)
	c.markLocked(opened)
	crowded := c.settleLocked(before, opened)
	overfull := c.keepLocked(now)
	c.resetAny = c.reset > 0
	open = !c.gone
	c.mu.Unlock()
	if !ok {
		c.bound.end(c, reason)
	} else if crowded || overfull {
		c.bound.relieve()
	}
	c.bound.catchUp()
	if ok && !crowded && !overfull {
		return open
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.gone
}

// wrote gives back the bytes of answers that have gone out.
func (c *Conn) wrote(chunk []byte) {
	c.mu.Lock()
	before, opened := c.held.Load(), c.streams.open
	held := before - c.backlog
	c.backlog = 0
	for {
		var more bool
		if chunk, more = c.sent.next(chunk); !more {
			break
		}
		switch c.sent.kind() {
		case frameData:
			if s := c.streams.find(c.sent.stream()); s != nil {
				s.replied = true
			}
		case frameHeaders:
			if !c.sent.has(flagEndStream) {
				continue
			}
			c.answeredLocked(c.streams.find(c.sent.stream()))
			held -= c.streams.end(c.sent.stream())
		case frameReset:
			held -= c.streams.end(c.sent.stream())
		}
	}
	if !c.gone {
		c.held.Store(held - c.sentLargeLocked())
	}
	c.writes.Add(1)
	c.markLocked(opened)
	c.settleLocked(before, opened)
	c.mu.Unlock()
}

// answeredLocked notes the end of an answer, also of an error. s is its stream, nil when the client
// has reset the stream.
func (c *Conn) answeredLocked(s *stream) {
	if s == nil {
		return
	}
	if s.replied {
		c.answered.Add(answerUnit)
	}
	if c.mark != nil && !c.stranger.Load() {
		c.mark.Answered()
	}
}

// markLocked tells the connection below when its first stream begins, and when its last stream
// ends.
func (c *Conn) markLocked(opened int) {
	switch {
	case c.mark == nil:
	case opened == 0 && c.streams.open > 0:
		c.mark.Begin()
	case opened > 0 && c.streams.open == 0:
		c.mark.Done()
	}
}

// settleLocked adds the changes since before to the sums of the bound, and reports whether the
// bound is exceeded.
func (c *Conn) settleLocked(before int64, opened int) (crowded bool) {
	if c.gone {
		return false
	}
	now := c.held.Load()
	if n := c.streams.open - opened; n != 0 {
		c.bound.streams.Add(int64(n))
		c.open.Add(int64(n))
	}
	switch {
	case before == now:
		return false
	case before == 0:
		c.bound.busy.Add(1)
	case now == 0:
		c.bound.busy.Add(-1)
	}
	return c.bound.held.Add(now-before) > c.bound.options.MaxBytes
}

// keepLocked counts the bytes that the most streams leave behind, and reports whether all
// connections together keep too much.
func (c *Conn) keepLocked(now int64) (overfull bool) {
	kept := int64(c.streams.most-freeStreams) * keptBytes
	if kept <= c.kept {
		return false
	}
	more := kept - c.kept
	c.kept, c.peaked = kept, now
	return c.bound.kept.Add(more) > c.bound.mayKeep()
}

// release gives back all bytes of the connection. A second release does nothing and reports false.
func (c *Conn) release() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return false
	}
	before, opened := c.held.Swap(0), c.streams.open
	c.left = before
	c.bound.leaving.Add(before)
	c.bound.kept.Add(-c.kept)
	c.bound.answers.Add(-int64(len(c.large)))
	c.streams, c.large = streams{}, nil
	c.settleLocked(before, opened)
	c.gone = true
	return true
}

// weight returns the bytes of the connection times the age of its oldest stream, in seconds,
// divided by the answers that its client has taken. An honest client whose requests wait behind the
// requests of others may hold as much as a hostile one, but has a history.
func (c *Conn) weight(now int64) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.weighLocked(c.held.Load(), c.ageLocked(now))
}

// oldWeight is weight for a connection with an old stream and more than its share, and 0 for
// others.
func (c *Conn) oldWeight(now int64) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ageLocked(now) < int64(fullAge) || c.held.Load() <= c.bound.share() {
		return 0
	}
	return c.weighLocked(c.held.Load(), int64(fullAge))
}

// keptWeight is weight for the bytes that the most streams leave behind. These bytes stay as long
// as the connection. So the age counts up to firstAnswers alone.
func (c *Conn) keptWeight(now int64) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.weighLocked(c.kept, min(now-c.peaked, int64(firstAnswers)))
}

// ageLocked returns the age of the oldest stream in nanoseconds, at most fullAge.
func (c *Conn) ageLocked(now int64) int64 {
	if c.told {
		if c.held.Load() == 0 {
			return 0
		}
		return min(now-c.holding, int64(fullAge))
	}
	if s := c.streams.oldest(); s != nil {
		return min(now-s.opened, int64(fullAge))
	}
	return 0
}

func (c *Conn) weighLocked(bytes, age int64) float64 {
	return float64(bytes) * float64(max(age, int64(youngAge))) / 1e9 / (1 + float64(c.answered.Load())/answerUnit)
}

// look lets the history fade, and reports whether a frame or a first message that began before the
// cutoff is incomplete.
func (c *Conn) look(cutoff int64) (slow bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered.Add(-(c.answered.Load() + answerFade - 1) / answerFade)
	return c.partial != 0 && c.partial < cutoff || c.streams.waits(cutoff)
}
