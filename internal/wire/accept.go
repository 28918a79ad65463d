package wire

import (
	"errors"
	"net"
	"sync"
	"time"
)

// Accept gives the connections of l to serve, until stopped is closed, which makes the result nil,
// or until the listener fails. After an error that may pass, such as too many open files, Accept
// calls refused, if there is one, and waits as grpc-go does.
func Accept(l net.Listener, stopped <-chan struct{}, refused func(err error, pause time.Duration), serve func(net.Conn)) error {
	var pause time.Duration
	for {
		conn, err := l.Accept()
		if err == nil {
			pause = 0
			serve(conn)
			continue
		}
		select {
		case <-stopped:
			return nil
		default:
		}
		var passing interface{ Temporary() bool }
		if !errors.As(err, &passing) || !passing.Temporary() {
			return err
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		if refused != nil {
			refused(err, pause)
		}
		select {
		case <-time.After(pause):
		case <-stopped:
		}
	}
}

// Handoff is a listener of connections that another goroutine gives. All methods are safe for
// concurrent use.
type Handoff struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	close  func() // closes closed, once
}

// NewHandoff returns a listener without connections.
func NewHandoff(addr net.Addr) *Handoff {
	h := &Handoff{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
	h.close = sync.OnceFunc(func() { close(h.closed) })
	return h
}

// Give waits until Accept takes a connection. The result is false after Close.
func (h *Handoff) Give(c net.Conn) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.closed:
		return false
	}
}

// Accept implements [net.Listener].
func (h *Handoff) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (h *Handoff) Close() error {
	h.close()
	return nil
}

// Addr implements [net.Listener].
func (h *Handoff) Addr() net.Addr { return h.addr }
