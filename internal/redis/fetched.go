package redis

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/redis/resp"
)

// checked is a connection whose replies are checked. An invalid reply is an error of Read, so that
// rueidis closes the connection.
type checked struct {
	net.Conn
	address string
	checker resp.Checker
	invalid func(address string, err error) // is told once
	told    bool                            // only the reading goroutine uses told
}

// Read reads checked replies. The error of an invalid reply does not wrap ErrUnavailable: Redis may
// have done the command.
func (c *checked) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	valid, invalid := c.checker.Received(p[:n])
	if invalid == nil {
		return n, err
	}
	if !c.told {
		c.told = true
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
	session  *session
	sentinel bool // the server is a Sentinel
}

// peer is the other end of a connection that rueidis has. rueidis asks for the login of a peer.
type peer struct {
	net.Addr
	sentinel bool
}

// RemoteAddr returns a peer.
func (c *fetched) RemoteAddr() net.Addr { return peer{c.checked.RemoteAddr(), c.sentinel} }

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
		}
	}
	return err
}
