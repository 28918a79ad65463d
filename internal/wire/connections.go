// Package wire has the listeners of Weir: their bounds, TLS, and one address for gRPC and HTTP/1.
// All connections share one bound of buffered bytes. The package does not read requests.
package wire

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/loglimit"
)

// Ages at which a connection gives way to a new connection.
const (
	// newAge protects a connection that has not completed its first request, while the request is
	// under way.
	newAge = time.Second
	// idleAge protects a connection between two requests.
	idleAge = time.Second
	// silentAge protects a connection with open requests, after its last answer.
	silentAge = 10 * time.Second
)

// maxCandidates bounds the connections that a new one is compared with, and so the time of a flood
// of connections: some 20 µs each. Of more connections these are a random part.
const maxCandidates = 1024

// ConnectionOptions is the options of NewConnections. Logger must be set.
type ConnectionOptions struct {
	Server       string        // name in the log
	Max          int           // bound of the open connections of all listeners together; 0: no bound
	WriteTimeout time.Duration // longest time of one Write, then the connection ends; 0: no bound
	SocketBuffer int           // bytes that the system may buffer in each direction, see largestBuffer; 0: as the system is set. Linux takes twice as many
	Logger       *slog.Logger

	// At the bound the connection goes that has been quiet for longest, without regard to completed
	// requests and ages. HTTP/1 needs this rule: its clients connect again at once. Only Max new
	// connections in the time of one request keep a client out.
	QuietFirst bool
}

// While few connections are open, each has larger buffers of the system than
// ConnectionOptions.SocketBuffer. A small request or answer in a segment of its own takes 1 KB of a
// buffer. Where a process waits for a processor, a full buffer makes the system drop segments, or
// a write wait for an acknowledgment. Clients send dropped segments again after 200 ms and more.
const (
	largestBuffer = 256 << 10 // bytes in each direction
	fewOfMax      = 16        // a sixteenth of Max has buffers of twice the size, half as many have four times the size
)

// Connections bounds the open connections of listeners, and the time of a write.
//
// At the bound a new connection takes the place of an idle one, or of a busy one without answers.
// So quiet connections cannot keep clients out. The server of a connection reports its requests
// with [Conn.Begin], [Conn.Answered] and [Conn.Done]. All methods are safe for concurrent use.
type Connections struct {
	options  ConnectionOptions
	begun    time.Time     // the zero of all instants
	refused  atomic.Uint64 // new connections
	replaced atomic.Uint64 // idle and silent connections that a new one took the place of
	logged   loglimit.Limiter

	mu     sync.Mutex // guards the rest
	open   map[*Conn]struct{}
	buffer int // of the system for each connection, in bytes in each direction
}

// ConnectionStats is the state of Connections at one moment.
type ConnectionStats struct {
	Open     int    // connections now
	Max      int    // bound of Open; 0: no bound
	Refused  uint64 // new connections that were closed at once
	Replaced uint64 // idle and silent connections that were closed for a new one
}

// NewConnections returns Connections without any.
func NewConnections(o ConnectionOptions) *Connections {
	b := &Connections{options: o, begun: time.Now(), open: make(map[*Conn]struct{})}
	b.buffer = b.bufferOf(0)
	return b
}

// bufferOf returns the size of the system's buffers for each of so many connections.
func (b *Connections) bufferOf(open int) int {
	size := b.options.SocketBuffer
	for most := b.options.Max / fewOfMax; open <= most && most > 0 && 0 < size && size < largestBuffer; most /= 2 {
		size *= 2
	}
	return size
}

// shareLocked gives all connections smaller buffers if there are too many for the present size, or
// larger ones if twice as many could have these.
func (b *Connections) shareLocked() {
	size := b.bufferOf(len(b.open))
	if size > b.buffer {
		size = max(b.buffer, b.bufferOf(2*len(b.open)))
	}
	if size == b.buffer {
		return
	}
	b.buffer = size
	for c := range b.open {
		c.setBuffers(size)
	}
}

func (c *Conn) setBuffers(size int) {
	if size == 0 {
		return
	}
	switch conn := c.Conn.(type) {
	case *net.TCPConn:
		_ = conn.SetReadBuffer(size) // the system's own size does too
		_ = conn.SetWriteBuffer(size)
	case *net.UnixConn:
		_ = conn.SetWriteBuffer(size) // as above; the requests are in the client's buffer
	}
}

// Stats returns the counts of all listeners together.
func (b *Connections) Stats() ConnectionStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return ConnectionStats{Open: len(b.open), Max: b.options.Max, Refused: b.refused.Load(), Replaced: b.replaced.Load()}
}

// Listen returns l with bounded connections: each one is a [*Conn].
func (b *Connections) Listen(l net.Listener) net.Listener { return &listener{Listener: l, bound: b} }

type listener struct {
	net.Listener
	bound *Connections
}

// Accept implements [net.Listener]. Accept closes connections beyond the bound, and waits for the
// next one.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.bound.admit(raw); c != nil {
			return c, nil
		}
		_ = raw.Close() // the client sees it
	}
}

func (b *Connections) admit(raw net.Conn) *Conn {
	c := &Conn{Conn: raw, bound: b}
	c.quiet.Store(b.now())
	victim, ok := b.place(c)
	if victim != nil {
		b.replaced.Add(1)
		if !b.options.QuietFirst && victim.served.Load() && victim.busy.Load() {
			b.log("a new connection took the place of a silent one: its requests had no answer for a long time", victim.RemoteAddr())
		} else {
			b.log("a new connection took the place of an idle one", victim.RemoteAddr())
		}
		_ = victim.Close()
	}
	if !ok {
		b.refused.Add(1)
		b.log("a new connection was refused: all connections are busy", raw.RemoteAddr())
		return nil
	}
	return c
}

// place adds c, in the place of the victim where there is one. The result is false when there is no
// room.
func (b *Connections) place(c *Conn) (victim *Conn, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.options.Max > 0 && len(b.open) >= b.options.Max {
		if victim = b.idleLocked(); victim == nil {
			return nil, false
		}
		delete(b.open, victim)
	}
	b.open[c] = struct{}{}
	c.setBuffers(b.buffer)
	b.shareLocked()
	return victim, true
}

// idleLocked returns the connection that can best be missed; nil when all are busy. Connections
// that never completed a request come first, the oldest before all others. So a flood of
// connections replaces its own connections, and no client between two requests. A busy connection
// without answers comes last: the honest one among them is a health check that watches, and
// connects again.
func (b *Connections) idleLocked() *Conn {
	now, candidates := b.now(), 0
	var fresh, idle, silent *Conn
	for c := range b.open {
		if candidates++; candidates > maxCandidates {
			break
		}
		age := now - c.quiet.Load()
		switch {
		case b.options.QuietFirst:
			if !c.busy.Load() && (idle == nil || c.quiet.Load() < idle.quiet.Load()) {
				idle = c
			}
		case !c.served.Load():
			if (!c.busy.Load() || age >= int64(newAge)) && (fresh == nil || c.quiet.Load() < fresh.quiet.Load()) {
				fresh = c
			}
		case !c.busy.Load():
			if age >= int64(idleAge) && (idle == nil || c.quiet.Load() < idle.quiet.Load()) {
				idle = c
			}
		case now-c.silent() >= int64(silentAge) && (silent == nil || c.silent() < silent.silent()):
			silent = c
		}
	}
	return cmp.Or(fresh, idle, silent)
}

// now returns the nanoseconds since begun.
func (b *Connections) now() int64 { return int64(time.Since(b.begun)) }

// log writes at most one line per second. The metrics have the counts.
func (b *Connections) log(text string, client net.Addr) {
	if _, due := b.logged.Due(time.Second); !due {
		return
	}
	s := b.Stats()
	//nolint:sloglint // the callers give constants
	b.options.Logger.LogAttrs(context.Background(), slog.LevelWarn, text, slog.String("server", b.options.Server),
		slog.String("client", client.String()), slog.Int("max_connections", s.Max),
		slog.Uint64("refused", s.Refused), slog.Uint64("replaced", s.Replaced))
}

// Conn is an open connection. Begin, Answered and Done, as the methods of net.Conn, are safe for
// concurrent use.
type Conn struct {
	net.Conn
	bound  *Connections
	closed atomic.Bool
	quiet  atomic.Int64 // nanoseconds after begun of the last Answered, or of the start
	asked  atomic.Int64 // nanoseconds after begun of the first Begin since the last Answered
	busy   atomic.Bool  // between Begin and Done
	served atomic.Bool  // Answered was called

	writing  sync.Mutex // guards deadline
	deadline time.Time  // of writes, set on Conn; zero: no deadline
}

// Begin marks the connection as busy: it does not give way to a new one. The exceptions are a first
// request of more than a second, and ten seconds without an answer.
func (c *Conn) Begin() {
	if c.asked.Load() <= c.quiet.Load() { // a request that is given up and begins anew does not end the silence
		c.asked.Store(c.bound.now())
	}
	c.busy.Store(true)
}

// silent returns the instant, in nanoseconds after begun, since which a busy connection has no
// answer.
func (c *Conn) silent() int64 { return max(c.asked.Load(), c.quiet.Load()) }

// Done marks the connection as idle: no request is open.
func (c *Conn) Done() { c.busy.Store(false) }

// Answered makes the connection the connection of a client, which gives way last, also while other
// requests are open.
func (c *Conn) Answered() {
	c.quiet.Store(c.bound.now())
	c.served.Store(true)
}

// Marker is the part of a connection that its server reports requests to, such as a [Conn]. All
// methods are safe for concurrent use.
type Marker interface {
	Begin()    // the first request is open
	Answered() // a request is answered
	Done()     // no request is open
}

// MarkerOf returns the first Marker among a connection and the connections below it; nil: none.
func MarkerOf(conn net.Conn) Marker {
	for {
		if m, ok := conn.(Marker); ok {
			return m
		}
		below, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		conn = below.NetConn()
	}
}

// NetConn returns the connection below, as [crypto/tls.Conn.NetConn] does.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Write writes within the write timeout. After the timeout the connection is closed: its client
// does not read.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.delay(); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	if err != nil && c.bound.options.WriteTimeout > 0 {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			c.bound.log("a connection was closed: the client does not read", c.RemoteAddr())
			_ = c.Close()
		}
	}
	return n, err
}

// delay moves the deadline of writes, unless at least half of the time is left.
func (c *Conn) delay() error {
	timeout := c.bound.options.WriteTimeout
	if timeout <= 0 {
		return nil
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	now := time.Now()
	if c.deadline.Sub(now) >= timeout/2 {
		return nil
	}
	if err := c.Conn.SetWriteDeadline(now.Add(timeout)); err != nil {
		return err
	}
	c.deadline = now.Add(timeout)
	return nil
}

// SetDeadline implements [net.Conn]. With a write timeout it is for reads alone.
func (c *Conn) SetDeadline(t time.Time) error {
	if c.bound.options.WriteTimeout > 0 {
		return c.Conn.SetReadDeadline(t)
	}
	return c.Conn.SetDeadline(t)
}

// SetWriteDeadline implements [net.Conn]. With a write timeout it does nothing.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.bound.options.WriteTimeout > 0 {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}

// Close closes the connection, and makes room for another one.
func (c *Conn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.bound.mu.Lock()
		delete(c.bound.open, c)
		c.bound.shareLocked()
		c.bound.mu.Unlock()
	}
	return c.Conn.Close()
}
