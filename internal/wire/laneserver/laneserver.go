// Package laneserver serves the connections of package lane on sockets: it reads, writes, ticks and
// drains.
//
// Each connection has one goroutine, which reads up to 32 KiB, gives the bytes to the machine, and
// writes its output at once. An idle connection holds no buffer. On Linux the system calls for
// plain TCP and Unix sockets bypass the bookkeeping of Go's scheduler, as they never block (see
// socket_linux.go). Elsewhere and under TLS package net makes the system calls.
//
// Streams of other methods go to a gRPC server through a pipe in memory, see [Server.Others].
package laneserver

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/lane"
	"github.com/weirproxy/weir/internal/wire"
)

// Times of a connection that no option changes.
const (
	tickEvery  = time.Second
	lingerTime = time.Second // for the client to close a connection that has ended
)

// MarkHeader is the metadata with the mark of a stream, see Options.Marked. The lane removes such
// a header of a client.
const MarkHeader = "x-weir-mark"

// arrivalTimeout is the time after which TCP gives up bytes that the client does not acknowledge,
// on connections with streams of Options.Marked.
const arrivalTimeout = 5 * time.Second

// shutdownReason is the debug data of a GOAWAY, as in grpc-go.
const shutdownReason = "graceful_stop"

// Options is the options of New. Lane, Handler and Logger must be set.
type Options struct {
	Lane    *lane.Lane
	Handler func(c *Conn) Handler // of a new connection
	Logger  *slog.Logger

	Secure *wire.Secure          // TLS, with a handshake of at most ten seconds; nil: none
	Bytes  *wire.Bytes           // bounds the buffers of the connections; nil: no bound
	Weigh  func(path string) int // the memory of a stream of another method, see [lane.NewBack]

	// Marked is the path of a method whose clients acknowledge DATA. The gRPC server finds the mark of
	// a stream, which is unique, under MarkHeader. Arrived gets the mark and the bytes that have
	// arrived, under the lock of the connection. Both or none must be set.
	Marked  string
	Arrived func(mark uint64, bytes int64)

	MaxConnectionAge time.Duration // at which a client must connect again, plus or minus a tenth; 0: no bound
}

// Handler answers the calls of a connection.
type Handler interface {
	lane.Handler
	// Received says that all calls of one read have been given to Answer. Like Answer it must not call
	// Conn.Finish itself.
	Received()
}

// Server serves connections of the lane. All methods are safe for concurrent use.
type Server struct {
	options Options
	begun   time.Time // the zero of all instants
	others  *wire.Handoff
	buffers sync.Pool // of *buffers
	serving sync.WaitGroup
	stopped chan struct{} // closed by the first GracefulStop or Stop
	stop    func()        // closes stopped, once
	marks   atomic.Uint64 // given so far

	mu        sync.Mutex // guards the rest
	listeners map[net.Listener]struct{}
	open      map[*Conn]struct{}
	ticking   bool // a timer runs tick
}

// New returns a server without listeners.
func New(o Options) *Server {
	s := &Server{
		options: o, begun: time.Now().Add(-time.Nanosecond), stopped: make(chan struct{}),
		others:    wire.NewHandoff(&net.UnixAddr{Name: "pipes", Net: "unix"}),
		listeners: make(map[net.Listener]struct{}), open: make(map[*Conn]struct{}),
	}
	s.stop = sync.OnceFunc(func() { close(s.stopped) })
	s.buffers.New = func() any { return new(buffers) }
	return s
}

// Others returns the listener of the gRPC server for other methods. Each connection is a pipe in
// memory, with the addresses of its client. The server must outlive GracefulStop.
func (s *Server) Others() net.Listener { return s.others }

// Begun returns the instant 0 of [lane.Call.Arrived].
func (s *Server) Begun() time.Time { return s.begun }

// Serve serves the connections of l, and closes l in the end. The result is nil after a stop, also
// a stop before.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.isDraining() {
		s.mu.Unlock()
		return l.Close()
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
		_ = l.Close() // closed already after a stop
	}()
	return wire.Accept(l, s.stopped, func(err error, pause time.Duration) {
		s.options.Logger.LogAttrs(context.Background(), slog.LevelWarn, "a connection was not accepted",
			slog.String("error", err.Error()), slog.String("next_attempt_in", pause.String()))
	}, s.begin)
}

func (s *Server) begin(raw net.Conn) {
	c := &Conn{server: s, conn: raw}
	c.idle.L = &c.mu
	s.mu.Lock()
	if s.isDraining() {
		s.mu.Unlock()
		_ = raw.Close() // as if the listener were closed already
		return
	}
	s.open[c] = struct{}{}
	s.serving.Add(1)
	if !s.ticking {
		s.ticking = true
		time.AfterFunc(tickEvery, s.tick)
	}
	s.mu.Unlock()
	go func() {
		defer s.serving.Done()
		c.serve()
		s.mu.Lock()
		delete(s.open, c)
		s.mu.Unlock()
	}()
}

// tick ticks all connections, and calls itself again while there are connections.
func (s *Server) tick() {
	for _, c := range s.all() {
		c.tick()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ticking = len(s.open) > 0; s.ticking {
		time.AfterFunc(tickEvery, s.tick)
	}
}

func (s *Server) all() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.open))
}

// GracefulStop closes the listeners, tells clients to connect elsewhere, and returns when all
// connections have ended. Stop ends the wait.
func (s *Server) GracefulStop() {
	s.close()
	for _, c := range s.all() {
		c.shutdown()
	}
	s.serving.Wait()
}

// Stop closes the listeners and all connections at once. GracefulStop returns afterwards.
func (s *Server) Stop() {
	s.close()
	for _, c := range s.all() {
		_ = c.conn.Close() // the goroutine of the connection sees the end
	}
}

func (s *Server) close() {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.listeners {
		_ = l.Close() // Accept returns
	}
}

func (s *Server) isDraining() bool {
	select {
	case <-s.stopped:
		return true
	default:
		return false
	}
}

// now returns the nanoseconds since begun: never 0.
func (s *Server) now() int64 { return int64(time.Since(s.begun)) }

// age draws the age of a new connection: within a tenth of the option, so that clients do not
// connect again all at once.
func (s *Server) age() time.Duration {
	age := s.options.MaxConnectionAge
	if spread := int64(age / 5); spread > 0 {
		age += time.Duration(rand.Int64N(spread) - spread/2)
	}
	return age
}
