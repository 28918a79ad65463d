package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/internal/rawio"
	"github.com/weirproxy/weir/internal/redis/resp"
)

// checked is a connection whose replies are checked. An invalid reply is an error of Read, so that
// rueidis closes the connection.
type checked struct {
	net.Conn
	address string
	checker resp.Checker
	invalid func(address string, err error) // is called once
	called  bool                            // only the reading goroutine uses called
}

// dial returns a connection on which the server has answered a PING: the kernel accepts connections
// for a stopped server, too.
func (c *Conn) dial(ctx context.Context, address string) (_ *checked, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialContext(ctx, c.target.network, address)
	if err != nil {
		return nil, err
	}
	conn = rawio.Wrap(conn)
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	if c.target.security != nil {
		config, err := c.target.security.config(address)
		if err != nil {
			return nil, err
		}
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("TLS with %s: %w", address, err)
		}
		conn = secure
	}
	opened := &checked{Conn: conn, address: address, invalid: c.invalidReply}
	defer context.AfterFunc(ctx, func() { opened.Close() })()
	if err := opened.ping(); err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return opened, nil
}

// Read reads checked replies. The error of an invalid reply does not wrap ErrUnavailable: Redis may
// have done the command.
func (c *checked) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	valid, invalid := c.checker.Received(p[:n])
	if invalid == nil {
		return n, err
	}
	if !c.called {
		c.called = true
		c.invalid(c.address, invalid)
	}
	return valid, fmt.Errorf("%s: %w", c.address, invalid)
}

// Write writes commands.
func (c *checked) Write(p []byte) (int, error) {
	if err := c.checker.Sent(p); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// ping returns nil once the server has answered. A demand for a password is an answer.
func (c *checked) ping() error {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		return err
	}
	var answer []byte
	for buffer := make([]byte, 256); c.checker.Waiting() > 0 && len(answer) < 1024; {
		n, err := c.Read(buffer)
		answer = append(answer, buffer[:n]...)
		if slow := net.Error(nil); errors.As(err, &slow) && slow.Timeout() {
			return fmt.Errorf("no answer within %v", timeout)
		}
		if err != nil {
			return fmt.Errorf("no answer: %w", err)
		}
	}
	text := strings.TrimSpace(string(answer))
	switch {
	case c.checker.Waiting() > 0:
		return errors.New("the answer to PING is not Redis's")
	// After these errors the server closes the connection.
	case strings.HasPrefix(text, "-DENIED"), strings.HasPrefix(text, "-ERR max number of clients"):
		return errors.New(text[1:])
	}
	return c.SetDeadline(time.Time{})
}

// fetched is a connection that rueidis has.
type fetched struct {
	*checked
	session *session
}

// SetDeadline extends the deadline of the login. rueidis takes the deadline from the first command,
// and with AlwaysPipelining sets no other.
func (c *fetched) SetDeadline(t time.Time) error {
	if !t.IsZero() {
		t = time.Now().Add(timeout)
	}
	return c.checked.SetDeadline(t)
}

// Close closes the connection, and has the address dialed again.
func (c *fetched) Close() error {
	err := c.checked.Close()
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.endpoints[c.address]; e != nil {
		if _, open := e.fetched[c]; open {
			delete(e.fetched, c)
			s.reconnectLocked(c.address)
			s.conn.wake()
		}
	}
	return err
}

// invalidInterval is the time between two log lines about one node.
const invalidInterval = time.Minute

// invalidReplies counts and logs the connections that ended because of an invalid reply.
type invalidReplies struct {
	mu     sync.Mutex // guards the fields below
	total  uint64
	logged map[string]time.Time // the last log line of each node
}

// InvalidReplies returns how many connections ended because of a reply that cannot be one. Each may
// have answered several commands.
func (c *Conn) InvalidReplies() uint64 {
	c.invalid.mu.Lock()
	defer c.invalid.mu.Unlock()
	return c.invalid.total
}

// invalidReply counts an invalid reply of a node, and logs it unless the last line about the node
// is younger than invalidInterval.
func (c *Conn) invalidReply(node string, err error) {
	if c.invalid.add(node, time.Now()) {
		c.logger.LogAttrs(c.ctx, slog.LevelWarn, "redis sent an invalid reply, so the connection ends",
			slog.String("node", node), slog.String("error", err.Error()))
	}
}

// add counts, and reports whether to log.
func (i *invalidReplies) add(node string, now time.Time) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.total++
	for other, last := range i.logged { // forgets nodes that are gone
		if now.Sub(last) >= invalidInterval {
			delete(i.logged, other)
		}
	}
	if _, recent := i.logged[node]; recent {
		return false
	}
	if i.logged == nil {
		i.logged = map[string]time.Time{}
	}
	i.logged[node] = now
	return true
}
