package rawio

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// atOnce is the most bytes of one system call: for so long it holds a processor.
const atOnce = 32 << 10

// conn is a TCP or Unix socket. Reads wait for each other, and so do writes.
type conn struct {
	net.Conn
	read, write half
}

type half struct {
	name string
	wait func(try func(fd uintptr) (done bool)) error
	try  func(fd uintptr) (done bool)

	mu    sync.Mutex // guards the fields below
	rest  []byte
	n     int
	errno syscall.Errno
}

func wrap(c net.Conn) net.Conn {
	switch c.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return c
	}
	system, ok := c.(syscall.Conn)
	if !ok {
		return c
	}
	raw, err := system.SyscallConn()
	if err != nil {
		return c
	}
	w := &conn{Conn: c}
	w.read = half{name: "read", wait: raw.Read}
	w.read.try = w.read.once
	w.write = half{name: "write", wait: raw.Write}
	w.write.try = w.write.all
	return w
}

// Read implements [net.Conn].
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.do(&c.read, p)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// Write implements [net.Conn].
func (c *conn) Write(p []byte) (int, error) { return c.do(&c.write, p) }

// do reads or writes. The error is as package net has it.
func (c *conn) do(h *half, p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rest, h.n, h.errno = p, 0, 0
	err := h.wait(h.try)
	h.rest = nil
	if err == nil && h.errno != 0 {
		err = &net.OpError{
			Op: h.name, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(h.name, h.errno),
		}
	}
	return h.n, err
}

// once reads the bytes that have come, and reports whether there are some.
func (h *half) once(fd uintptr) (done bool) {
	h.n, h.errno = Read(fd, h.rest)
	return h.errno != syscall.EAGAIN
}

// all writes as much as the system takes, and reports whether that is all.
func (h *half) all(fd uintptr) (done bool) {
	for len(h.rest) > 0 {
		n, errno := Write(fd, h.rest)
		if h.errno = errno; errno != 0 {
			return errno != syscall.EAGAIN
		}
		h.n, h.rest = h.n+n, h.rest[n:]
	}
	return true
}

// Read reads at most 32 KiB from a socket that does not block. Without bytes to read the error is
// EAGAIN; 0 bytes are the end.
func Read(fd uintptr, p []byte) (n int, errno syscall.Errno) { return call(syscall.SYS_READ, fd, p) }

// Write writes at most 32 KiB to a socket that does not block. Without room the error is EAGAIN.
func Write(fd uintptr, p []byte) (n int, errno syscall.Errno) { return call(syscall.SYS_WRITE, fd, p) }

// call makes the system call, again after a signal.
func call(number, fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall(number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(min(len(p), atOnce)))
		switch errno {
		case 0:
			return int(n), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}
