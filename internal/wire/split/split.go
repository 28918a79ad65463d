// Package split divides the connections of one listener by protocol. Clients of gRPC begin with the
// preface of HTTP/2, and all other bytes are for an HTTP/1 server. The first bytes decide, so
// nobody asks for credentials or reads a request here.
//
// Without TLS, browsers and curl speak HTTP/1. With TLS they offer both protocols, and [ALPN]
// chooses HTTP/1 for them.
package split

import (
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/internal/wire/connections"
)

// preface begins each connection of HTTP/2 (RFC 9113, section 3.4). No method of HTTP/1 has this
// name.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Options is the options of New.
type Options struct {
	Timeout   time.Duration                    // longest time from a connection to its first bytes, the handshake included; must be more than 0
	Handshake func(net.Conn) (net.Conn, error) // secures a connection; nil: no TLS. Called concurrently. An error closes the connection
}

// Splitter divides the connections of a listener. All methods are safe for concurrent use.
type Splitter struct {
	options Options
	from    net.Listener
	http2   *side
	http1   *side

	closed chan struct{}
	close  func()

	mu   sync.Mutex // guards open
	open map[net.Conn]struct{}
}

// New returns a Splitter of l. The caller calls Serve, and serves both listeners of the Splitter.
func New(l net.Listener, o Options) *Splitter {
	s := &Splitter{options: o, from: l, closed: make(chan struct{}), open: make(map[net.Conn]struct{})}
	s.close = sync.OnceFunc(func() {
		close(s.closed)
		_ = l.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.open {
			_ = c.Close()
		}
	})
	s.http2, s.http1 = &side{s, make(chan net.Conn)}, &side{s, make(chan net.Conn)}
	return s
}

// HTTP2 returns the listener of the connections that begin with the preface of HTTP/2. A Close of
// the listener closes the Splitter.
func (s *Splitter) HTTP2() net.Listener { return s.http2 }

// HTTP1 returns the listener of all other connections. A Close of the listener closes the Splitter.
func (s *Splitter) HTTP1() net.Listener { return s.http1 }

// Close closes the listener, and the connections that neither side has taken. Connections that a
// side has taken go on.
func (s *Splitter) Close() error {
	s.close()
	return nil
}

// Serve accepts connections until Close, which makes the result nil, or until the listener fails.
func (s *Splitter) Serve() error {
	defer s.close()
	for {
		conn, err := s.from.Accept()
		if err == nil {
			go s.divide(conn)
			continue
		}
		select {
		case <-s.closed:
			return nil
		default:
		}
		var passing interface{ Temporary() bool }
		if errors.As(err, &passing) && passing.Temporary() { // such as: too many open files
			select {
			case <-s.closed:
				return nil
			case <-time.After(acceptPause):
				continue
			}
		}
		return err
	}
}

// acceptPause is the time between two attempts to accept a connection while the system refuses.
const acceptPause = 100 * time.Millisecond

// divide gives a connection to one of the sides.
func (s *Splitter) divide(raw net.Conn) {
	if !s.add(raw) {
		return
	}
	defer s.remove(raw)
	_ = raw.SetDeadline(time.Now().Add(s.options.Timeout)) // a failure shows in the reads
	conn := raw
	if s.options.Handshake != nil {
		var err error
		if conn, err = s.options.Handshake(raw); err != nil {
			_ = raw.Close()
			return
		}
	}
	c := &Conn{Conn: conn}
	_, c.plain = connections.Below(conn)
	to, err := s.choose(c)
	if err == nil {
		err = raw.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		return
	}
	select {
	case to.conns <- c:
	case <-s.closed:
		_ = conn.Close()
	}
}

// choose reads until the bytes differ from the preface, or are four of it: no method of HTTP/1 is
// PRI.
func (s *Splitter) choose(c *Conn) (*side, error) {
	first := make([]byte, 0, 4)
	for len(first) < cap(first) {
		n, err := c.Conn.Read(first[len(first):cap(first)])
		if c.plain != nil && n > 0 {
			c.plain.Decrypted()
		}
		first = first[:len(first)+n]
		if c.early = first; string(first) != preface[:len(first)] {
			return s.http1, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return s.http2, nil
}

// add notes a connection that no side has. After Close it closes the connection.
func (s *Splitter) add(conn net.Conn) bool {
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

func (s *Splitter) remove(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, conn)
}

// side is the listener of one protocol.
type side struct {
	splitter *Splitter
	conns    chan net.Conn
}

// Accept implements [net.Listener].
func (s *side) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.splitter.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (s *side) Close() error { return s.splitter.Close() }

// Addr implements [net.Listener].
func (s *side) Addr() net.Addr { return s.splitter.from.Addr() }

// Conn is a connection whose first bytes were read. Read returns them first.
type Conn struct {
	net.Conn
	early []byte
	plain connections.Decrypter // nil: nobody wants to know
}

// NetConn returns the connection below, as [tls.Conn.NetConn] does. Bytes of that connection come
// behind the Buffered ones.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Buffered returns the number of bytes that Read returns without waiting. The goroutine that reads
// may call Buffered.
func (c *Conn) Buffered() int { return len(c.early) }

// Read implements [net.Conn].
func (c *Conn) Read(p []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(p, c.early)
		c.early = c.early[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p)
	if c.plain != nil && n > 0 {
		c.plain.Decrypted()
	}
	return n, err
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
