package laneserver

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/internal/rawio"
)

// newSocket returns the socket of a connection. secured is raw, or TLS over it. Without TLS the
// socket makes raw system calls, see package rawio. Unlike [rawio.Wrap], it takes a buffer only
// when there is something to read.
func newSocket(raw, secured net.Conn) socket {
	other := &netSocket{Conn: secured}
	if secured != raw {
		return other
	}
	below := raw
	if bounded, ok := below.(interface{ NetConn() net.Conn }); ok {
		below = bounded.NetConn()
	}
	switch below.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return other
	}
	system, ok := below.(syscall.Conn)
	if !ok {
		return other
	}
	calls, err := system.SyscallConn()
	if err != nil {
		return other
	}
	r := &rawSocket{conn: raw, raw: calls}
	r.reading, r.writing = r.tryRead, r.tryWrite
	return r
}

// giveUp ends a TCP connection whose client does not acknowledge bytes for so long. Later these
// bytes cannot arrive. Another kind of connection stays as it is.
func giveUp(raw net.Conn, after time.Duration) {
	below := raw
	if bounded, ok := below.(interface{ NetConn() net.Conn }); ok {
		below = bounded.NetConn()
	}
	tcp, ok := below.(*net.TCPConn)
	if !ok {
		return
	}
	if calls, err := tcp.SyscallConn(); err == nil {
		_ = calls.Control(func(fd uintptr) { // an error is of a connection that has ended
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(after.Milliseconds()))
		})
	}
}

type rawSocket struct {
	conn             net.Conn // for writes that wait
	raw              syscall.RawConn
	reading          func(fd uintptr) bool
	writing          func(fd uintptr)
	server           *Server // of one read
	b                *buffers
	n                int
	readErr, sendErr syscall.Errno
	rest             []byte // of one write
}

func (r *rawSocket) read(s *Server) (b *buffers, n int, err error) {
	r.server = s
	err = r.raw.Read(r.reading)
	b, n = r.b, r.n
	r.b, r.n = nil, 0
	switch {
	case err != nil:
	case r.readErr != 0:
		err = r.readErr
	case n == 0:
		err = io.EOF
	default:
		return b, n, nil
	}
	if b != nil {
		s.buffers.Put(b)
	}
	return nil, 0, err
}

// tryRead reports whether the attempt is over: false waits until there is something to read.
func (r *rawSocket) tryRead(fd uintptr) bool {
	r.b, _ = r.server.buffers.Get().(*buffers)
	if r.n, r.readErr = rawio.Read(fd, r.b.in[:]); r.readErr != syscall.EAGAIN {
		return true
	}
	r.server.buffers.Put(r.b)
	r.b = nil
	return false
}

func (r *rawSocket) try(p []byte) (rest []byte, err error) {
	r.rest, r.sendErr = p, 0
	err = r.raw.Control(r.writing)
	rest, r.rest = r.rest, nil
	if err == nil && r.sendErr != 0 && !errors.Is(r.sendErr, syscall.EAGAIN) {
		err = r.sendErr
	}
	return rest, err
}

// write waits for the client within the write timeout of the connection.
func (r *rawSocket) write(p []byte) error {
	_, err := r.conn.Write(p)
	return err
}

// tryWrite writes as much as the system takes at once.
func (r *rawSocket) tryWrite(fd uintptr) {
	for len(r.rest) > 0 {
		n, errno := rawio.Write(fd, r.rest)
		if r.sendErr = errno; errno != 0 {
			return
		}
		r.rest = r.rest[n:]
	}
}
