package laneserver

import (
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/mem"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/wire"
)

// backIdle is the time without a stream of another method after which the connection to their
// server ends.
const backIdle = 10 * time.Second

// back is the streams of other methods on a connection: a [lane.Foreign] that speaks to the gRPC
// server over a pipe. All fields and methods are under the lock of the connection.
type back struct {
	*lane.Back
	conn *Conn
	pipe *pipe     // nil: not connected
	out  []byte    // for the pipe
	more sync.Cond // there is something in out, or the pipe has ended
	used int64     // instant of the last stream
	seen int       // bytes of reset streams; the server has read their frames
}

// flushLocked passes the output of the Back on, and connects where there is no pipe.
func (b *back) flushLocked() {
	out := b.Output()
	if out == nil {
		return
	}
	b.out = append(b.out, out...)
	b.more.Broadcast()
	if b.pipe != nil {
		return
	}
	p := &pipe{of: b}
	b.pipe, b.more.L = p, &b.conn.mu
	go func() {
		if !b.conn.server.others.Give(p) {
			_ = p.Close()
		}
	}()
}

// heldLocked returns the bytes of memory of the streams, here and in the gRPC server.
func (b *back) heldLocked() int64 {
	return int64(b.Held()) + bufferFactor*int64(len(b.out))
}

// closeLocked ends the pipe. Open streams get REFUSED_STREAM.
func (b *back) closeLocked() {
	if b.pipe == nil {
		return
	}
	b.pipe, b.out, b.seen = nil, nil, 0
	b.Lost()
	b.more.Broadcast()
}

func (b *back) tickLocked(now int64) {
	switch {
	case b.pipe == nil:
	case !b.Idle():
		b.used = now
	case now-b.used > int64(backIdle):
		b.closeLocked()
	}
}

// Begin implements [lane.Foreign].
func (b *back) Begin(stream uint32, fields []hpack.HeaderField, end bool) {
	c := b.conn
	if c.account != nil && c.server.options.Bytes.Crowded() && !c.server.options.Bytes.Admits(c.account) {
		c.machine.ForeignHeaders(stream, []hpack.HeaderField{
			{Name: ":status", Value: "200"},
			{Name: "content-type", Value: "application/grpc"},
			{Name: "grpc-status", Value: "8"}, // RESOURCE_EXHAUSTED
			{Name: "grpc-message", Value: wire.TextCrowded},
		}, true)
		c.machine.ForeignReset(stream, lane.NoError) // the client may have more to send
		return
	}
	b.used = c.server.now()
	var mark uint64
	if path := c.server.options.Marked; path != "" && slices.Contains(fields, hpack.HeaderField{Name: ":path", Value: path}) {
		mark = c.server.marks.Add(1)
		fields = slices.DeleteFunc(fields, func(f hpack.HeaderField) bool { return f.Name == MarkHeader })
		fields = append(fields, hpack.HeaderField{Name: MarkHeader, Value: strconv.FormatUint(mark, 10)})
		giveUp(c.conn, arrivalTimeout)
	}
	b.Back.Begin(stream, fields, end)
	if mark != 0 {
		c.machine.ForeignMark(stream, mark)
		b.Long(stream)
	}
}

// Arrived implements [lane.Foreign].
func (b *back) Arrived(mark uint64, bytes int64) { b.conn.server.options.Arrived(mark, bytes) }

// pipe is the gRPC server's end of a connection in memory. The server has one reader and one
// writer. Deadlines do nothing: the bytes of a handshake are there from the beginning.
type pipe struct{ of *back }

func (p *pipe) Read(to []byte) (int, error) {
	return p.readInto(func() []byte { return to })
}

// ReadOnReady takes a buffer only when there is something to read. The library of gRPC looks for
// this method.
func (p *pipe) ReadOnReady(size int, pool mem.BufferPool) (buffer *[]byte, n int, err error) {
	n, err = p.readInto(func() []byte {
		buffer = pool.Get(size)
		return *buffer
	})
	return buffer, n, err
}

// readInto waits for bytes, and copies them to the result of into. A server that reads on has seen
// the frames that it has read before.
func (p *pipe) readInto(into func() []byte) (int, error) {
	b := p.of
	mu := &b.conn.mu
	mu.Lock()
	defer mu.Unlock()
	if gone := b.seen; gone > 0 && b.pipe == p {
		mu.Unlock()
		wire.AwaitTurns()
		mu.Lock()
		if b.pipe == p {
			b.Forget(gone)
			b.seen -= gone
			b.conn.countLocked()
		}
	}
	for len(b.out) == 0 && b.pipe == p {
		b.more.Wait()
	}
	if b.pipe != p {
		return 0, io.EOF
	}
	n := copy(into(), b.out)
	if b.out = b.out[n:]; len(b.out) == 0 {
		b.out = nil
		b.seen = b.ResetBytes()
	}
	return n, nil
}

// Write implements [net.Conn]. The bytes go to the client as far as it takes them.
func (p *pipe) Write(from []byte) (int, error) {
	b := p.of
	c := b.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.pipe != p {
		return 0, net.ErrClosed
	}
	if err := b.Receive(from, c.server.now()); err != nil {
		b.closeLocked()
		return 0, err
	}
	c.flushLocked()
	return len(from), nil
}

func (p *pipe) Close() error {
	c := p.of.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.of.pipe == p {
		p.of.closeLocked()
		c.flushLocked()
	}
	return nil
}

func (p *pipe) LocalAddr() net.Addr { return p.of.conn.conn.LocalAddr() }

func (p *pipe) RemoteAddr() net.Addr { return p.of.conn.conn.RemoteAddr() }

func (p *pipe) SetDeadline(time.Time) error { return nil }

func (p *pipe) SetReadDeadline(time.Time) error { return nil }

func (p *pipe) SetWriteDeadline(time.Time) error { return nil }
