package inflight

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/mem"
)

// handed is a connection whose first bytes another server has read, such as a laneserver.Handed.
type handed interface {
	NetConn() net.Conn
	Buffered() int // bytes that Read returns without waiting
}

// unhanded returns the connection below a handed one, and any other connection itself.
func unhanded(conn net.Conn) net.Conn {
	if h, ok := conn.(handed); ok {
		return h.NetConn()
	}
	return conn
}

// system returns the connection of the system below a connection without TLS, or nil.
func system(below net.Conn) syscall.RawConn {
	below = unhanded(below)
	if _, secure := below.(*tls.Conn); secure {
		return nil
	}
	if bounded, ok := below.(interface{ NetConn() net.Conn }); ok {
		below = bounded.NetConn()
	}
	switch below.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return nil
	}
	conn, ok := below.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// fullLocked reports whether the system's buffer for the client is full. Where the system cannot
// tell, the result is true.
func (c *Conn) fullLocked() bool {
	if c.raw == nil {
		return true
	}
	full := true
	err := c.raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
		full = err != nil || n == 0
	})
	return full || err != nil
}

// Server returns the connection for a gRPC server. Where the system can tell that there are bytes
// to read, the server needs no buffer before. With TLS the server keeps a buffer.
func (c *Conn) Server() net.Conn {
	if c.raw == nil {
		return c
	}
	r := &ready{Conn: c}
	r.first, _ = c.Conn.(handed)
	r.attempt = r.read
	return r
}

// ready is a connection of the system. gRPC looks for its method ReadOnReady.
type ready struct {
	*Conn
	first   handed // nil: nobody has read before
	attempt func(fd uintptr) bool

	// Of one ReadOnReady.
	pool   mem.BufferPool
	size   int
	buffer *[]byte
	n      int
	err    error
}

// ReadOnReady waits until there is something to read, and reads it into a buffer of the pool. One
// goroutine may read.
func (r *ready) ReadOnReady(size int, pool mem.BufferPool) (buffer *[]byte, n int, err error) {
	r.sawResets()
	if r.first != nil && r.first.Buffered() > 0 {
		buffer = pool.Get(size)
		n, err = r.Conn.Conn.Read(*buffer)
	} else {
		r.pool, r.size = pool, size
		err = r.raw.Read(r.attempt)
		buffer, n = r.buffer, r.n
		if err == nil {
			err = r.err
		}
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	r.pool, r.buffer, r.n, r.err = nil, nil, 0, nil
	if err != nil {
		if buffer != nil {
			pool.Put(buffer)
		}
		return nil, 0, err
	}
	if !r.receive((*buffer)[:n]) {
		pool.Put(buffer)
		return nil, 0, net.ErrClosed
	}
	return buffer, n, nil
}

// read reports whether the attempt is over: false waits until there is something to read.
func (r *ready) read(fd uintptr) bool {
	r.buffer = r.pool.Get(r.size)
	r.n, r.err = syscall.Read(int(fd), *r.buffer)
	if r.err != nil {
		r.pool.Put(r.buffer)
		r.buffer, r.n = nil, 0
	}
	return !errors.Is(r.err, syscall.EAGAIN) && !errors.Is(r.err, syscall.EINTR)
}
