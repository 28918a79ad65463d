package wire

import (
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"time"
)

// preface begins each connection of HTTP/2 (RFC 9113, section 3.4). No method of HTTP/1 has this
// name.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Split divides the connections of one listener by protocol. Clients of gRPC begin with the preface
// of HTTP/2, and all other bytes are for an HTTP/1 server. Without TLS, browsers and curl speak
// HTTP/1. With TLS they offer both protocols, and [ALPN] chooses HTTP/1 for them.
//
// All methods are safe for concurrent use.
type Split struct {
	from    net.Listener
	timeout time.Duration
	secure  *Secure
	http2   *Handoff
	http1   *Handoff

	closed chan struct{}
	close  func()

	mu   sync.Mutex // guards open
	open map[net.Conn]struct{}
}

// NewSplit returns a Split of l. The caller calls Serve, and serves both listeners of the Split.
// secure makes the handshake of TLS; nil: none. timeout is the longest time from a connection to
// its first bytes, the handshake included.
func NewSplit(l net.Listener, secure *Secure, timeout time.Duration) *Split {
	s := &Split{from: l, timeout: timeout, secure: secure, closed: make(chan struct{}), open: make(map[net.Conn]struct{})}
	s.close = sync.OnceFunc(func() {
		close(s.closed)
		_ = l.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.open {
			_ = c.Close()
		}
	})
	s.http2 = &Handoff{addr: l.Addr(), conns: make(chan net.Conn), closed: s.closed, close: s.close}
	s.http1 = &Handoff{addr: l.Addr(), conns: make(chan net.Conn), closed: s.closed, close: s.close}
	return s
}

// HTTP2 returns the listener of the connections that begin with the preface of HTTP/2. A Close of
// the listener closes the Split.
func (s *Split) HTTP2() net.Listener { return s.http2 }

// HTTP1 returns the listener of all other connections. A Close of the listener closes the Split.
func (s *Split) HTTP1() net.Listener { return s.http1 }

// Close closes the listener, and the connections that neither side has taken. Connections that a
// side has taken go on.
func (s *Split) Close() error {
	s.close()
	return nil
}

// Serve accepts connections until Close, which makes the result nil, or until the listener fails.
func (s *Split) Serve() error {
	defer s.close()
	return Accept(s.from, s.closed, nil, func(c net.Conn) { go s.divide(c) })
}

func (s *Split) divide(raw net.Conn) {
	if !s.add(raw) {
		return
	}
	defer s.remove(raw)
	_ = raw.SetDeadline(time.Now().Add(s.timeout)) // a failure shows in the reads
	conn := raw
	if s.secure != nil {
		var err error
		if conn, _, err = s.secure.ServerHandshake(raw); err != nil {
			_ = raw.Close()
			return
		}
	}
	c := &early{Conn: conn}
	to, err := s.choose(c)
	if err == nil {
		err = raw.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		return
	}
	if !to.Give(c) {
		_ = conn.Close()
	}
}

// choose reads until the bytes differ from the preface, or are four of it: no method of HTTP/1 is
// PRI.
func (s *Split) choose(c *early) (*Handoff, error) {
	first := make([]byte, 0, 4)
	for len(first) < cap(first) {
		n, err := c.Conn.Read(first[len(first):cap(first)])
		first = first[:len(first)+n]
		if c.bytes = first; string(first) != preface[:len(first)] {
			return s.http1, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return s.http2, nil
}

func (s *Split) add(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		_ = conn.Close()
		return false
	default:
		s.open[conn] = struct{}{}
		return true
	}
}

func (s *Split) remove(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, conn)
}

// early is a connection whose first bytes were read. Read returns them first.
type early struct {
	net.Conn

	bytes []byte
}

func (c *early) NetConn() net.Conn { return c.Conn }

func (c *early) Read(p []byte) (int, error) {
	if len(c.bytes) > 0 {
		n := copy(p, c.bytes)
		c.bytes = c.bytes[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// ALPN returns config with a choice of the protocol: HTTP/1 for a client that offers it, as
// browsers and curl do, and else HTTP/2.
func ALPN(config *tls.Config) *tls.Config {
	chosen := config.Clone()
	chosen.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		own := config
		if config.GetConfigForClient != nil {
			of, err := config.GetConfigForClient(hello)
			if err != nil {
				return nil, err
			}
			if of != nil {
				own = of
			}
		}
		own = own.Clone()
		own.GetConfigForClient = nil
		own.NextProtos = []string{"h2"}
		if slices.Contains(hello.SupportedProtos, "http/1.1") {
			own.NextProtos = []string{"http/1.1"}
		}
		return own, nil
	}
	return chosen
}
