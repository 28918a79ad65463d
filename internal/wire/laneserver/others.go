package laneserver

import (
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/weirproxy/weir/internal/lane"
)

// othersIdle is the time without a stream of another method after which the connection to their
// server ends.
const othersIdle = 10 * time.Second

// others is the streams of other methods on a connection that is ours. A lane.Back passes them
// through a pipe to the gRPC server, which sees a connection of its own. The zero value has no
// pipe. All fields and methods are under the lock of the connection.
type others struct {
	conn *Conn
	back *lane.Back // nil before the first stream
	pipe net.Conn   // our end; nil: not connected
	out  []byte     // for the pipe
	more sync.Cond  // there is something in out, or another pipe
	used int64      // instant of the last stream
}

// flushLocked passes the output of the Back on, and connects where there is no pipe.
func (o *others) flushLocked() {
	if o.back == nil {
		return
	}
	out := o.back.Output()
	if out == nil {
		return
	}
	o.out = append(o.out, out...)
	if o.pipe != nil {
		o.more.Broadcast()
		return
	}
	o.more.L = &o.conn.mu
	c := o.conn
	ours, theirs := net.Pipe()
	o.pipe = ours
	go func() {
		if !c.server.others.give(&Handed{Conn: &pipeEnd{theirs, c.conn}, Info: c.info}) {
			_ = ours.Close() // the reader sees it
		}
	}()
	go o.write(ours)
	go o.read(ours)
}

// write writes to the pipe until it ends.
func (o *others) write(pipe net.Conn) {
	mu := &o.conn.mu
	mu.Lock()
	defer mu.Unlock()
	for {
		for len(o.out) == 0 && o.pipe == pipe {
			o.more.Wait()
		}
		if o.pipe != pipe {
			return
		}
		out := o.out
		o.out = nil
		mu.Unlock()
		_, err := pipe.Write(out)
		mu.Lock()
		if err != nil {
			return // so does the reader
		}
	}
}

// read reads from the pipe until it ends, and writes to the client.
func (o *others) read(pipe net.Conn) {
	c := o.conn
	buffer := make([]byte, 16<<10)
	for {
		n, err := pipe.Read(buffer)
		c.mu.Lock()
		if o.pipe != pipe {
			c.mu.Unlock()
			return
		}
		if err == nil {
			err = o.back.Receive(buffer[:n], c.server.now())
		}
		if err != nil {
			o.closeLocked()
		}
		o.flushLocked()
		c.noteLocked()
		if c.takeLocked() {
			c.writeLocked(nil)
		}
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// closeLocked ends the pipe. Open streams get REFUSED_STREAM.
func (o *others) closeLocked() {
	if o.pipe == nil {
		return
	}
	_ = o.pipe.Close() // there is nothing to lose in memory
	o.pipe, o.out = nil, nil
	o.back.Lost()
	o.more.Broadcast()
}

// tickLocked ends a pipe without streams.
func (o *others) tickLocked(now int64) {
	switch {
	case o.back == nil || o.pipe == nil:
	case !o.back.Idle():
		o.used = now
	case now-o.used > int64(othersIdle):
		o.closeLocked()
		o.back = nil // with the tables of HPACK
	}
}

// Begin implements [lane.Foreign].
func (o *others) Begin(stream uint32, fields []hpack.HeaderField, end bool) {
	if o.back == nil {
		o.back = lane.NewBack()
		o.back.Attach(o.conn.machine)
	}
	o.used = o.conn.server.now()
	o.back.Begin(stream, fields, end)
}

// Data implements [lane.Foreign].
func (o *others) Data(stream uint32, data []byte, end bool) {
	if o.back != nil {
		o.back.Data(stream, data, end)
	}
}

// Reset implements [lane.Foreign].
func (o *others) Reset(stream uint32, code lane.Code) {
	if o.back != nil {
		o.back.Reset(stream, code)
	}
}

// Credit implements [lane.Foreign].
func (o *others) Credit(stream uint32, bytes int) {
	if o.back != nil {
		o.back.Credit(stream, bytes)
	}
}

// pipeEnd is the end of a pipe with the addresses of the connection that it is for.
type pipeEnd struct {
	net.Conn
	of net.Conn
}

// LocalAddr implements [net.Conn].
func (p *pipeEnd) LocalAddr() net.Addr { return p.of.LocalAddr() }

// RemoteAddr implements [net.Conn].
func (p *pipeEnd) RemoteAddr() net.Addr { return p.of.RemoteAddr() }
