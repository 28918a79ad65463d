package laneserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/wire/connections"
)

// Sizes of buffers, in bytes.
const (
	readSize = 32 << 10
	keptSize = 64 << 10 // largest output buffer that is kept for the next use

	heldFactor = 3 // memory of buffers that grow, by the bytes in them
)

// buffers is the memory to read and answer one batch of requests.
type buffers struct {
	in  [readSize]byte
	out []byte
}

// Conn is a connection of the lane. Finish and the methods for a Server are safe for concurrent
// use.
//
// Only one goroutine at a time writes, see takeLocked and writeLocked: it takes the output of the
// machine as long as there is some. Others leave their output in the machine for it. The reader
// waits while another one writes, so a client that does not read is not read from.
type Conn struct {
	server *Server
	conn   net.Conn              // as accepted
	info   any                   // of the handshake
	socket socket                // set by serve, before the machine
	mark   connections.Marker    // nil: nobody wants to know
	plain  connections.Decrypter // the same
	counts Account               // nil: nobody counts

	mu      sync.Mutex // guards the rest
	idle    sync.Cond  // nobody writes
	writing bool
	machine *lane.Conn // nil during the handshake
	handler Handler    // the same
	others  others
	early   *early // nil: a request has come
	handed  bool   // to another server: nothing is written any more
	ended   int64  // instant since which the client should close the connection; 0: it should not
	busy    bool   // as mark knows
	marked  uint64 // responses that mark knows
	held    int64  // bytes that counts knows
	sending int64  // bytes that wait for the client, and bytes that the reader has read
	kept    int64  // bytes of calls that the Handler has
}

// serve serves the connection to its end.
func (c *Conn) serve() {
	conn, ok := c.handshake()
	if !ok {
		_ = c.conn.Close() // nobody has sent a request
		return
	}
	c.mark, c.plain = connections.Below(conn)
	c.socket = newSocket(conn, c.plain)
	s := c.server
	if s.options.Account != nil {
		c.counts = s.options.Account(conn)
		defer c.counts.Leave()
	}
	c.mu.Lock()
	c.early, c.others.conn = &early{conn: conn}, c
	c.handler = s.options.Handler(c)
	c.machine = s.options.Lane.Open(s.now(), c.handler, &c.others, s.age())
	if s.isDraining() {
		_ = c.conn.SetDeadline(time.Time{}) // of shutdown
		c.machine.Shutdown(shutdownReason, s.now())
	}
	c.writing = true
	c.writeLocked(nil)
	c.mu.Unlock()
	var handed *Handed
	for handed == nil {
		b, n, err := c.socket.read(s)
		if err != nil {
			break
		}
		handed = c.receive(b.in[:n], b)
		s.buffers.Put(b)
	}
	c.close()
	if handed != nil && c.counts != nil {
		c.counts.Leave()
	}
	if handed != nil && s.others.give(handed) {
		return
	}
	if handed != nil { // there is no other server any more: nobody has seen a request of the client
		_ = http2.NewFramer(conn, nil).WriteGoAway(0, http2.ErrCodeNo, nil)
	}
	_ = conn.Close() // a client that is gone has closed it
}

// RemoteAddr returns the address of the client.
func (c *Conn) RemoteAddr() net.Addr { return c.conn.RemoteAddr() }

// close ends the machine, after the last write.
func (c *Conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.writing {
		c.idle.Wait()
	}
	c.ended = c.server.now()
	c.machine.Close()
	c.others.closeLocked()
	c.noteLocked()
}

// handshake secures the connection.
func (c *Conn) handshake() (secured net.Conn, ok bool) {
	if c.server.options.Handshake == nil {
		return c.conn, true
	}
	if c.conn.SetDeadline(time.Now().Add(handshakeTimeout)) != nil {
		return nil, false
	}
	if c.server.isDraining() { // after the line above, else shutdown could come between
		_ = c.conn.SetDeadline(time.Now().Add(lingerTime))
	}
	secured, info, err := c.server.options.Handshake(c.conn)
	if err != nil || c.conn.SetDeadline(time.Time{}) != nil {
		return nil, false // the function writes the log
	}
	c.info = info
	return secured, true
}

// receive gives bytes to the machine and writes its output, as often as there is much. A result but
// nil is for another server.
func (c *Conn) receive(chunk []byte, b *buffers) *Handed {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(chunk) > 0 && c.ended == 0 {
		for c.writing {
			c.idle.Wait()
		}
		c.writing = true
		c.machine.Lend(b.out)
		rest, err := c.machine.ReceiveSome(chunk, c.server.now())
		c.handler.Received()
		if c.early != nil {
			if handed := c.earlyLocked(chunk[:len(chunk)-len(rest)], err); handed != nil {
				c.machine.Output() // the other server answers the same bytes
				c.handed, c.writing = true, false
				return handed
			}
		}
		c.others.flushLocked()
		c.noteLocked()
		c.endLocked(err)
		c.writeLocked(b)
		chunk = rest
	}
	return nil
}

// earlyLocked notes bytes before the first request. A connection whose first request is for another
// method is for another server, unless there were too many bytes.
func (c *Conn) earlyLocked(chunk []byte, err error) *Handed {
	switch {
	case errors.Is(err, lane.ErrForeignFirst):
		return c.early.hand(c, chunk)
	case c.machine.Asked(), err != nil:
		c.early = nil
	case len(c.early.bytes)+len(chunk) > maxEarly:
		c.keepLocked()
	default:
		c.early.bytes = append(c.early.bytes, chunk...)
	}
	return nil
}

// keepLocked keeps the connection, also when its first request is for another method.
func (c *Conn) keepLocked() {
	c.early = nil
	c.machine.Keep()
}

// Finished is the answer to a call for which the Handler said Later, see [lane.Conn.Finish].
type Finished struct {
	Stream   uint32
	Response []byte
	Reply    lane.Reply
	Kept     int // bytes that Keep was told for the call
}

// Finish answers calls, in one write if the client takes it. Answers that are ready at the same
// time go out together: while other calls are open, the writer first lets other goroutines run.
func (c *Conn) Finish(answers ...Finished) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.server.now()
	for i := range answers {
		a := &answers[i]
		c.kept -= int64(a.Kept)
		c.endLocked(c.machine.Finish(a.Stream, a.Response, a.Reply, now))
	}
	c.noteLocked()
	if c.takeLocked() {
		if c.machine.Streams() > 0 {
			c.mu.Unlock()
			runtime.Gosched()
			c.mu.Lock()
		}
		c.writeLocked(nil)
	} else {
		c.countLocked() // the answers wait for the writer
	}
}

// tick lets the machine do its due work.
func (c *Conn) tick() {
	now := c.server.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.machine == nil, c.handed:
		return
	case c.ended != 0 && now-c.ended > int64(lingerTime): // a write waits for the client, or would
		_ = c.conn.Close()
		return
	case c.ended != 0:
		return
	}
	c.others.tickLocked(now)
	c.endLocked(c.machine.Tick(now))
	c.others.flushLocked()
	c.noteLocked()
	c.writeLaterLocked()
}

// shutdown tells the client to connect again.
func (c *Conn) shutdown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.machine == nil { // the client may be a stranger who never ends the handshake. Afterwards serve calls Shutdown
		_ = c.conn.SetDeadline(time.Now().Add(lingerTime))
		return
	}
	if !c.handed {
		c.machine.Shutdown(shutdownReason, c.server.now())
		c.writeLaterLocked()
	}
}

// errFinished is the end of a connection in good order.
var errFinished = errors.New("the connection is drained")

// endLocked begins the end of the connection after an error: the client has a second to read the
// output and to close.
func (c *Conn) endLocked(err error) {
	if err == nil || c.ended != 0 {
		return
	}
	c.ended = c.server.now()
	if errors.Is(err, lane.ErrNotHTTP2) {
		_ = c.conn.Close() // there is nothing to read for the client
		return
	}
	if of, ok := errors.AsType[*lane.ConnError](err); ok && c.server.options.Ended != nil {
		c.server.options.Ended(c.counts, of.Cause)
	}
	c.server.options.Logger.LogAttrs(context.Background(), slog.LevelDebug, "a connection ends",
		slog.String("client", c.conn.RemoteAddr().String()), slog.String("reason", err.Error()))
	if c.conn.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		_ = c.conn.Close() // closed already
	}
}

// noteLocked tells mark about requests.
func (c *Conn) noteLocked() {
	if c.mark == nil {
		return
	}
	if busy := c.machine.Streams() > 0; busy != c.busy {
		if c.busy = busy; busy {
			c.mark.Begin()
		} else {
			c.mark.Done()
		}
	}
	if replied := c.machine.Replied(); replied != c.marked {
		c.marked = replied
		c.mark.Answered()
	}
}
