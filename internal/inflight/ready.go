package inflight

import (
	"crypto/tls"
	"io"
	"net"
	"syscall"

	"google.golang.org/grpc/mem"
)

// Server returns the connection for a gRPC server. Where the system can tell that there are bytes to read, the server needs no buffer
// before. With TLS the server keeps a buffer.
func (c *Conn) Server() net.Conn {
	below := c.Conn
	if _, secure := below.(*tls.Conn); secure {
		return c
	}
	if bounded, ok := below.(interface{ NetConn() net.Conn }); ok {
		below = bounded.NetConn()
	}
	switch below.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return c
	}
	system, ok := below.(syscall.Conn)
	if !ok {
		return c
	}
	raw, err := system.SyscallConn()
	if err != nil {
		return c
	}
	r := &ready{Conn: c, raw: raw}
	r.attempt = r.read
	return r
}

// ready is a connection of the system. gRPC looks for its method ReadOnReady.
type ready struct {
	*Conn
	raw     syscall.RawConn
	attempt func(fd uintptr) bool

	// Of one ReadOnReady.
	pool   mem.BufferPool
	size   int
	buffer *[]byte
	n      int
	err    error
}

// ReadOnReady waits until there is something to read, and reads it into a buffer of the pool. One goroutine may read.
func (r *ready) ReadOnReady(size int, pool mem.BufferPool) (buffer *[]byte, n int, err error) {
	r.pool, r.size = pool, size
	err = r.raw.Read(r.attempt)
	buffer, n = r.buffer, r.n
	if err == nil {
		err = r.err
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
	r.receive((*buffer)[:n])
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
	return r.err != syscall.EAGAIN && r.err != syscall.EINTR
}
