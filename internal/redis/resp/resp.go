// Package resp checks the replies of a Redis server before a client reads them. resp decides
// whether bytes can be replies to the commands that were sent, and keeps no reply. resp does no
// I/O.
//
// rueidis trusts the server. After an invalid reply rueidis panics in goroutines of its own, or
// runs out of memory, so that the process ends. docs/decisions/0031 lists these places. A Checker
// refuses:
//
//   - Bytes that are not RESP2 or RESP3, and the forms of RESP3 that no server sends: attributes,
//     chunks, pushes inside replies.
//   - Replies that need more memory than a reply can have, and replies that are nested too deeply.
//   - Replies without a command, and confirmations without a subscription.
//   - Another text in the answer to a PING with a text: a reply too many has shifted all replies.
//   - The few replies that rueidis reads without a look at their length: of ROLE, of Sentinels, and
//     errors that name another node.
package resp

import (
	"errors"
	"fmt"
	"sync"
)

// ErrInvalid is the error of each reply that cannot be one. The error that wraps ErrInvalid says
// why, without data of the reply.
var ErrInvalid = errors.New("invalid reply")

// Checker checks one connection, in both directions. The zero value is ready for a new connection.
// One goroutine may call Sent while another calls Received. A Checker does not allocate for
// ordinary commands and replies.
type Checker struct {
	mu       sync.Mutex // guards all fields
	commands commandReader
	replies  replyReader
	expected expected
	err      error // of an earlier Received
}

// Sent takes the next bytes of commands, before the server can see them. The error of bytes that
// are no commands wraps errors.ErrUnsupported.
func (c *Checker) Sent(p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(p) > 0 {
		n, whole, err := c.commands.read(p)
		if err != nil {
			return err
		}
		if whole {
			c.expected.add(&c.commands)
		}
		p = p[n:]
	}
	return nil
}

// Received takes the next bytes of replies, and returns how many of them a client may read. After
// an error these are the bytes before the invalid reply, and all later calls return the same error.
func (c *Checker) Received(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	valid := 0
	for read := 0; read < len(p) && c.err == nil; {
		r := &c.replies
		if r.at == atType && r.depth == 0 {
			c.err = c.begin(p[read])
		}
		n, whole := 0, false
		if c.err == nil {
			n, whole, c.err = r.read(p[read:])
			read += n
		}
		if c.err == nil && whole {
			if c.err = c.end(); c.err == nil {
				valid = read
			}
		}
	}
	if c.err != nil {
		return valid, c.err
	}
	return len(p), nil
}

// Waiting returns the number of commands without a reply.
func (c *Checker) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(c.expected.sent - c.expected.answered) //nolint:gosec // at most the commands in flight
}

// Commands returns the number of commands that were sent.
func (c *Checker) Commands() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.expected.sent
}

// begin begins a reply of a type.
func (c *Checker) begin(typ byte) error {
	r, e := &c.replies, &c.expected
	r.begin(typ, e.next())
	if typ == '>' || (typ == '*' || typ == '~' || typ == '%') && e.arrayIsPush() {
		r.push = true
		return nil
	}
	if e.sent == e.answered {
		return invalid("a reply without a command")
	}
	return nil
}

// end checks a whole reply against its command.
func (c *Checker) end() error {
	r, e := &c.replies, &c.expected
	if r.push && !(r.typ != '>' && (r.elements == 0 || string(r.text(0)) == "pong")) {
		return e.push(r)
	}
	return e.reply(r)
}

// invalid returns an error that wraps ErrInvalid.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
