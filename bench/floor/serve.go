package main

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/internal/rawio"
)

// Sizes of buffers in bytes, and numbers of events.
const (
	readSize  = 64 << 10
	eventMost = 64
)

// server is a listening socket with its connections. One goroutine uses it.
type server struct {
	address  string
	answer   answer
	listener int // a descriptor, as poll
	poll     int
	open     map[int]*conn // by descriptor
	out      []byte
}

// conn is a connection. in has has bytes of a frame that is not complete.
type conn struct {
	machine

	in   []byte
	has  int
	rest []byte // of answers that the system does not take
}

// listen listens on any port of loopback, or on a Unix socket.
func listen(socket string, a answer) (*server, error) {
	s := &server{answer: a, open: make(map[int]*conn), out: make([]byte, 0, 1<<20)}
	family, at := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if socket != "" {
		family, at = unix.AF_UNIX, &unix.SockaddrUnix{Name: socket}
	}
	var err error
	if s.listener, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(s.listener, at); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(s.listener, unix.SOMAXCONN); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	if at, err = unix.Getsockname(s.listener); err != nil {
		return nil, os.NewSyscallError("getsockname", err)
	}
	s.address = socket
	if inet, ok := at.(*unix.SockaddrInet4); ok {
		s.address = fmt.Sprintf("127.0.0.1:%d", inet.Port)
	}
	if s.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	return s, s.watch(unix.EPOLL_CTL_ADD, s.listener, unix.EPOLLIN)
}

func (s *server) watch(how, fd int, events uint32) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(s.poll, how, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}))
}

// serve serves until something fails that is no client's.
func (s *server) serve() error {
	var events [eventMost]unix.EpollEvent
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(s.poll), uintptr(unsafe.Pointer(&events)), eventMost, ^uintptr(0), 0, 0)
		switch {
		case errno == unix.EINTR:
			continue
		case errno != 0:
			return os.NewSyscallError("epoll_wait", errno)
		}
		for _, e := range events[:n] {
			fd := int(e.Fd)
			if fd == s.listener {
				if err := s.accept(); err != nil {
					return err
				}
				continue
			}
			if c := s.open[fd]; c != nil && c.ready(fd, s) != nil {
				s.end(fd)
			}
		}
	}
}

func (s *server) accept() error {
	fd, _, err := unix.Accept4(s.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if err != nil {
		return nil //nolint:nilerr // the client is gone
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // fails for a Unix socket, which has no such delay
	c := &conn{in: make([]byte, readSize)}
	s.open[fd] = c
	if err := s.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN); err != nil {
		return err
	}
	if c.write(fd, s, greeting()) != nil {
		s.end(fd)
	}
	return nil
}

func (s *server) end(fd int) {
	delete(s.open, fd)
	_ = unix.Close(fd)
}

var errGone = errors.New("the client has closed the connection")

// ready reads the bytes that have come, and answers. While answers wait for the client, nothing is
// read.
func (c *conn) ready(fd int, s *server) error {
	if len(c.rest) > 0 {
		return c.write(fd, s, c.rest)
	}
	n, errno := rawio.Read(uintptr(fd), c.in[c.has:])
	switch {
	case errno == unix.EAGAIN:
		return nil
	case errno != 0:
		return errno
	case n == 0:
		return errGone
	}
	c.has += n
	taken, out, err := c.receive(c.in[:c.has], s.out[:0], &s.answer)
	if err != nil {
		return err
	}
	c.has = copy(c.in, c.in[taken:c.has])
	return c.write(fd, s, out)
}

// write writes as much as the system takes, and keeps the rest.
func (c *conn) write(fd int, s *server, out []byte) error {
	waited := len(c.rest) > 0
	for len(out) > 0 {
		n, errno := rawio.Write(uintptr(fd), out)
		if errno == unix.EAGAIN {
			break
		}
		if errno != 0 {
			return errno
		}
		out = out[n:]
	}
	c.rest = append([]byte(nil), out...) // out may be c.rest
	if waits := len(out) > 0; waits != waited {
		events := uint32(unix.EPOLLIN)
		if waits {
			events = unix.EPOLLOUT
		}
		return s.watch(unix.EPOLL_CTL_MOD, fd, events)
	}
	return nil
}
