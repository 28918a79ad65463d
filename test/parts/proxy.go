package parts

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Proxy is a TCP proxy in this process. A Proxy makes network faults between clients and one
// address: slow answers, resets, lost data, a closed port, data that nobody sent. Faults add up
// until Clear. The proxy ends a connection always by a reset (RST). A Proxy is safe for concurrent
// use. Make one with StartProxy and end it with Close.
type Proxy struct {
	address, upstream string

	mu       sync.Mutex // guards the fields below
	listener net.Listener
	links    map[*link]struct{}
	faults   faults
}

// faults are the faults that a Proxy makes now. The zero value passes everything on.
type faults struct {
	latency, jitter time.Duration // delay of each answer
	reset           bool          // the first answer resets its connection
	dropRequests    bool
	dropAnswers     bool
	garbage         bool
}

// A link is a client's connection and the connection to upstream that serves it.
type link struct {
	client, server *net.TCPConn
	ended          chan struct{} // closed by reset
	end            func()        // closes ended, once
}

// reset ends both connections by an RST.
func (l *link) reset() {
	l.end()
	for _, conn := range []*net.TCPConn{l.client, l.server} {
		_ = conn.SetLinger(0) // Close then sends an RST
		_ = conn.Close()
	}
}

// StartProxy listens on a free port of 127.0.0.1 and passes everything on to upstream, a host:port
// that may be closed at that time.
func StartProxy(upstream string) (*Proxy, error) {
	p := &Proxy{upstream: upstream, links: make(map[*link]struct{})}
	return p, onFreeAddress(func(address string) error {
		p.address = address
		return p.up()
	})
}

// Address is the host:port of the proxy, the same after Down and Up.
func (p *Proxy) Address() string { return p.address }

// Up listens again after Down. The faults stay as they were. A child of this process that another
// goroutine starts holds the old listener for a moment, so Up tries for a while.
func (p *Proxy) Up() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	waited := poll(ctx, "the port of the proxy", func() error {
		if err = p.up(); errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		return nil
	})
	return cmp.Or(waited, err)
}

// up listens, unless the proxy listens already.
func (p *Proxy) up() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", p.address)
	if err != nil {
		return fmt.Errorf("proxy %s: %w", p.address, err)
	}
	p.listener = listener
	go p.accept(listener)
	return nil
}

// Down resets all connections at once and refuses new ones until Up.
func (p *Proxy) Down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	p.resetLocked()
}

// Cut resets all connections at once, and accepts new ones.
func (p *Proxy) Cut() error {
	p.Down()
	return p.Up()
}

// Close is Down.
func (p *Proxy) Close() { p.Down() }

// Latency delays each answer by d, plus or minus at most jitter, as a long line does. Answers that
// are on the way together keep their order. A second call replaces the first.
func (p *Proxy) Latency(d, jitter time.Duration) {
	p.fault(func(f *faults) { f.latency, f.jitter = d, jitter })
}

// Reset resets each connection, old or new, when its first answer arrives. Upstream has then done
// the request, and the client never knows.
func (p *Proxy) Reset() { p.fault(func(f *faults) { f.reset = true }) }

// HalfOpen drops all data, both ways, while connections stay open and new ones are accepted. Clear
// resets those connections.
func (p *Proxy) HalfOpen() {
	p.fault(func(f *faults) { f.dropRequests, f.dropAnswers = true, true })
}

// Mute drops all answers and passes all requests on: upstream does the request, and the client
// waits. Clear resets those connections.
func (p *Proxy) Mute() { p.fault(func(f *faults) { f.dropAnswers = true }) }

// Garbage adds data after every second answer, at random: replies of Redis that are too many or
// impossible, and other bytes.
func (p *Proxy) Garbage() { p.fault(func(f *faults) { f.garbage = true }) }

// Clear ends all faults, but does not undo Down. Clear resets all connections when data was
// dropped, as no client can go on then.
func (p *Proxy) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults.dropAnswers {
		p.resetLocked()
	}
	p.faults = faults{}
}

// fault adds a fault.
func (p *Proxy) fault(add func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	add(&p.faults)
}

// resetLocked resets all connections; mu must be held.
func (p *Proxy) resetLocked() {
	for l := range p.links {
		l.reset()
	}
	clear(p.links)
}

// accept serves the clients of one listener until Down closes it.
func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		go p.serve(listener, client.(*net.TCPConn)) //nolint:errcheck // a listener on "tcp" accepts nothing else
	}
}

// serve connects a client to upstream and copies the data of both until one ends.
func (p *Proxy) serve(listener net.Listener, client *net.TCPConn) {
	l := &link{client: client, server: client, ended: make(chan struct{})}
	l.end = sync.OnceFunc(func() { close(l.ended) })
	conn, err := net.Dial("tcp", p.upstream)
	if err != nil {
		l.reset()
		return
	}
	l.server = conn.(*net.TCPConn) //nolint:errcheck // as above

	p.mu.Lock()
	down := p.listener != listener
	if !down {
		p.links[l] = struct{}{}
	}
	p.mu.Unlock()
	if down {
		l.reset()
		return
	}
	go p.copyRequests(l)
	answers := make(chan answer, 1024)
	go p.copyAnswers(l, answers)
	p.readAnswers(l, answers)
}

// now returns the faults of this moment.
func (p *Proxy) now() faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// end resets a link.
func (p *Proxy) end(l *link) {
	l.reset()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// copyRequests passes requests on, with the faults of that time, until a connection ends; then
// copyRequests resets the link. So do the others.
func (p *Proxy) copyRequests(l *link) {
	defer p.end(l)
	buffer := make([]byte, 32<<10)
	for {
		n, err := l.client.Read(buffer)
		if err != nil {
			return
		}
		if p.now().dropRequests {
			continue
		}
		if _, err := l.server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// An answer is data on the way to a client.
type answer struct {
	data []byte
	due  time.Time
}

// readAnswers puts the data of upstream on the line to the client.
func (p *Proxy) readAnswers(l *link, line chan<- answer) {
	defer close(line)
	defer p.end(l)
	buffer, last := make([]byte, 32<<10), time.Time{}
	for {
		n, err := l.server.Read(buffer)
		f := p.now()
		if err != nil || f.reset {
			return
		}
		due := time.Now().Add(f.latency)
		if f.jitter > 0 {
			due = due.Add(rand.N(2*f.jitter) - f.jitter)
		}
		if due.Before(last) {
			due = last
		}
		last = due
		select {
		case line <- answer{bytes.Clone(buffer[:n]), due}:
		case <-l.ended:
			return
		}
	}
}

// copyAnswers passes on each answer that is due.
func (p *Proxy) copyAnswers(l *link, line <-chan answer) {
	defer p.end(l)
	for a := range line {
		if !l.wait(time.Until(a.due)) {
			return
		}
		f := p.now()
		if f.dropAnswers {
			continue
		}
		if f.garbage && rand.IntN(2) == 0 {
			a.data = append(a.data, garbage()...)
		}
		if _, err := l.client.Write(a.data); err != nil {
			return
		}
	}
}

// garbage returns bytes that nobody sent.
func garbage() []byte {
	known := []string{
		"+OK\r\n", "$-5\r\n", "*2147483647\r\n", "%-1\r\n", "$?\r\n;-5\r\n", ">3\r\n+subscribe\r\n+a\r\n:1\r\n",
		"-MOVED 1\r\n", "HTTP/1.1 502 Bad Gateway\r\n\r\n", strings.Repeat("*1\r\n", 1<<14),
	}
	if i := rand.IntN(2 * len(known)); i < len(known) {
		return []byte(known[i])
	}
	random := make([]byte, 1+rand.IntN(64))
	for i := range random {
		random[i] = byte(rand.IntN(256))
	}
	return random
}

// wait waits for d, and reports false when the link ends before.
func (l *link) wait(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-time.After(d):
		return true
	case <-l.ended:
		return false
	}
}
