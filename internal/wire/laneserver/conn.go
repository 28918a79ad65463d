package laneserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/wire"
)

// Sizes of buffers, in bytes.
const (
	readSize = 32 << 10
	keptSize = 64 << 10 // largest output buffer that is kept for the next use

	bufferFactor = 3 // memory of buffers that grow, by the bytes in them
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
	server  *Server
	conn    net.Conn      // as accepted
	socket  socket        // set by serve, before the machine
	mark    wire.Marker   // nil: nothing bounds the connections
	account *wire.Account // nil: nothing bounds the bytes

	mu      sync.Mutex // guards the rest
	idle    sync.Cond  // nobody writes
	writing bool
	machine *lane.Conn // nil during the handshake
	handler Handler    // the same
	back    back
	ended   int64  // instant since which the client should close the connection; 0: it should not
	busy    bool   // Begin of mark was last, not Done
	marked  uint64 // responses that mark has counted
	counted int64  // bytes that account has
	sending int64  // bytes that wait for the client, and bytes that the reader has read
	kept    int64  // bytes of calls that the Handler has
}

func (c *Conn) serve() {
	conn, ok := c.handshake()
	if !ok {
		_ = c.conn.Close() // nobody has sent a request
		return
	}
	s := c.server
	c.socket = newSocket(c.conn, conn)
	if s.options.Bytes != nil {
		c.account = s.options.Bytes.Open(c.conn)
		defer c.account.Close()
	}
	c.mu.Lock()
	c.mark, c.back.conn = wire.MarkerOf(c.conn), c
	c.handler = s.options.Handler(c)
	c.back.Back = lane.NewBack(s.options.Weigh)
	c.machine = s.options.Lane.Open(s.now(), c.handler, &c.back, s.age())
	c.back.Attach(c.machine)
	if s.isDraining() {
		_ = c.conn.SetDeadline(time.Time{}) // of shutdown
		c.machine.Shutdown(shutdownReason, s.now())
	}
	c.writing = true
	c.writeLocked(nil)
	c.mu.Unlock()
	for {
		b, n, err := c.socket.read(s)
		if err != nil {
			break
		}
		c.receive(b.in[:n], b)
		s.buffers.Put(b)
	}
	c.close()
	_ = conn.Close() // a client that is gone has closed it
}

// RemoteAddr returns the address of the client.
func (c *Conn) RemoteAddr() net.Addr { return c.conn.RemoteAddr() }

func (c *Conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.writing {
		c.idle.Wait()
	}
	c.ended = c.server.now()
	c.machine.Close()
	c.back.closeLocked()
	c.noteLocked()
}

func (c *Conn) handshake() (secured net.Conn, ok bool) {
	if c.server.options.Secure == nil {
		return c.conn, true
	}
	if c.conn.SetDeadline(time.Now().Add(wire.HandshakeTimeout)) != nil {
		return nil, false
	}
	if c.server.isDraining() { // after the line above, else shutdown could come between
		_ = c.conn.SetDeadline(time.Now().Add(lingerTime))
	}
	secured, _, err := c.server.options.Secure.ServerHandshake(c.conn)
	if err != nil || c.conn.SetDeadline(time.Time{}) != nil {
		return nil, false // ServerHandshake writes the log
	}
	return secured, true
}

// receive gives bytes to the machine and writes its output, as often as there is much.
func (c *Conn) receive(chunk []byte, b *buffers) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(chunk) > 0 && c.ended == 0 {
		for c.writing {
			c.idle.Wait()
		}
		c.writing = true
		c.machine.Lend(b.out)
		rest, err := c.machine.Receive(chunk, c.server.now())
		c.handler.Received()
		c.back.flushLocked()
		c.noteLocked()
		c.endLocked(err)
		c.writeLocked(b)
		chunk = rest
	}
}

// Finished is the answer to a call for which the Handler said Later, see [lane.Conn.Finish].
type Finished struct {
	Stream   uint32
	Response []byte
	Reply    lane.Reply
	Kept     int // bytes of Keep for the call
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

// Keep counts bytes that the Handler keeps for a call until Finish. The Handler calls Keep within
// Answer.
func (c *Conn) Keep(bytes int) { c.kept += int64(bytes) }

// Account returns the account of the connection in Options.Bytes, nil without.
func (c *Conn) Account() *wire.Account { return c.account }

func (c *Conn) tick() {
	now := c.server.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.machine == nil:
		return
	case c.ended != 0 && now-c.ended > int64(lingerTime): // a write waits for the client, or would
		_ = c.conn.Close()
		return
	case c.ended != 0:
		return
	}
	c.back.tickLocked(now)
	c.endLocked(c.machine.Tick(now))
	c.back.flushLocked()
	c.noteLocked()
	c.writeLaterLocked()
}

func (c *Conn) shutdown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.machine == nil { // the client may be a stranger who never ends the handshake. Afterwards serve calls Shutdown
		_ = c.conn.SetDeadline(time.Now().Add(lingerTime))
		return
	}
	c.machine.Shutdown(shutdownReason, c.server.now())
	c.writeLaterLocked()
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
	// An age is no mistake of the client.
	if of, ok := errors.AsType[*lane.ConnError](err); ok && c.account != nil && of.Cause != lane.CauseAge {
		c.account.Ended(reasonOf(of.Cause))
	}
	c.server.options.Logger.LogAttrs(context.Background(), slog.LevelDebug, "a connection ends",
		slog.String("client", c.conn.RemoteAddr().String()), slog.String("reason", err.Error()))
	if c.conn.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		_ = c.conn.Close() // closed already
	}
}

func reasonOf(cause lane.Cause) wire.Reason {
	switch cause {
	case lane.CauseFlood:
		return wire.BadFrames
	case lane.CauseResets:
		return wire.Resets
	case lane.CauseSlow:
		return wire.SlowMessage
	case lane.CauseUnread:
		return wire.UnreadAnswers
	case lane.CauseSilent:
		return wire.Silent
	default:
		return wire.ProtocolError
	}
}

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

// flushLocked notes and writes the answers of the gRPC server.
func (c *Conn) flushLocked() {
	c.back.flushLocked()
	c.noteLocked()
	if c.takeLocked() {
		c.writeLocked(nil)
	} else {
		c.countLocked() // the answers wait for the writer
	}
}

func (c *Conn) writeLaterLocked() {
	if !c.takeLocked() {
		return
	}
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.writeLocked(nil)
	}()
}

// takeLocked makes the caller the writer, unless there is one.
func (c *Conn) takeLocked() bool {
	if c.writing {
		return false
	}
	c.writing = true
	return true
}

// writeLocked writes all output of the machine. The caller must be the writer, and is not
// afterwards. mu is free during a write. b is the memory that the machine was lent, or nil.
func (c *Conn) writeLocked(b *buffers) {
	for {
		out := c.machine.Output()
		if out == nil { // the machine has no memory of b from now on
			break
		}
		c.mu.Unlock()
		err := c.send(out)
		c.mu.Lock()
		if b != nil && cap(out) <= keptSize {
			b.out = out[:0]
		}
		if err != nil {
			c.endLocked(err)
			_ = c.conn.Close() // nothing more can be written
			break
		}
	}
	if c.machine.Finished() {
		c.endLocked(errFinished)
	}
	c.sending = 0
	c.countLocked()
	c.writing = false
	c.idle.Broadcast()
}

// send writes bytes to the socket. While send waits for the client, the connection buffers these
// bytes, and the reader's.
func (c *Conn) send(out []byte) error {
	rest, err := c.socket.try(out)
	if err != nil || len(rest) == 0 {
		return err
	}
	c.mu.Lock()
	c.sending = readSize + int64(cap(out))
	c.countLocked()
	c.mu.Unlock()
	return c.socket.write(rest)
}

// countLocked gives the account the bytes that the connection buffers.
func (c *Conn) countLocked() {
	if c.account == nil {
		return
	}
	bytes := bufferFactor*(int64(c.machine.Held())+c.sending) + c.kept + c.back.heldLocked()
	if bytes != c.counted || bytes != 0 {
		c.counted = bytes
		c.account.Set(bytes, c.machine.Streams(), c.machine.Answered())
	}
}
