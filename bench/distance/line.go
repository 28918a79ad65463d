package main

import (
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// line is a delay line before one server. Requests pass at once, and each piece of an answer is
// held for its time. Pieces are held side by side, and keep their order.
type line struct {
	listener net.Listener
	upstream string
	distance distance

	mu    sync.Mutex // guards conns
	conns []net.Conn
}

// piece is some bytes of an answer, and when they are due.
type piece struct {
	due   time.Time
	bytes []byte
}

func newLine(upstream string, d distance) (*line, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &line{listener: listener, upstream: upstream, distance: d}
	go l.accept()
	return l, nil
}

func (l *line) address() string { return l.listener.Addr().String() }

// close closes all connections.
func (l *line) close() {
	_ = l.listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close()
	}
}

func (l *line) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", l.upstream)
		if err != nil {
			client.Close()
			continue
		}
		l.mu.Lock()
		l.conns = append(l.conns, client, server)
		l.mu.Unlock()
		go func() {
			_, _ = io.Copy(server, client)
			server.Close()
		}()
		held := make(chan piece, 1<<14)
		go l.hold(server, held)
		go release(client, held)
	}
}

// hold reads answers.
func (l *line) hold(server net.Conn, held chan<- piece) {
	defer close(held)
	var last time.Time
	for {
		buffer := make([]byte, 16<<10)
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		d := l.distance.least
		if more := l.distance.most - l.distance.least; more > 0 {
			d += rand.N(more)
		}
		due := time.Now().Add(d)
		if due.Before(last) {
			due = last
		}
		last = due
		held <- piece{due, buffer[:n]}
	}
}

// release writes answers when they are due. A thread of its own sleeps, as timers of Go may be a
// millisecond late.
func release(client net.Conn, held <-chan piece) {
	defer client.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // else the thread would end, and with it the Redis that this thread may have started (Pdeathsig)
	for p := range held {
		if wait := time.Until(p.due); wait > 0 {
			rest := syscall.NsecToTimespec(int64(wait))
			_ = syscall.Nanosleep(&rest, nil) // a signal only shortens the wait
		}
		if _, err := client.Write(p.bytes); err != nil {
			return
		}
	}
}
