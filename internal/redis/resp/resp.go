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
//   - Replies without a command, and subscriptions: Weir never subscribes.
//   - Another text in the answer to a PING with a text: a reply too many has shifted all replies.
//   - Errors that name another node, but not its address.
package resp

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
)

// ErrInvalid is the error of each reply that cannot be one. The error that wraps ErrInvalid says
// why, without data of the reply.
var ErrInvalid = errors.New("invalid reply")

// errCommand is the error of bytes that are no commands, and of subscriptions.
var errCommand = fmt.Errorf("not a command of RESP that can be checked: %w", errors.ErrUnsupported)

// Bounds of the memory of a reply, in bytes. The longest reply to Weir's script has some 100 bytes
// for each charge of a batch. The longest reply of a cluster lists the three nodes of each of
// 16 384 slots, in 20 MiB.
const (
	maxRoom     = 4 << 20
	maxTopology = 32 << 20 // of a reply about a cluster
	maxCommand  = 1 << 30
)

// Checker checks one connection, in both directions. The zero value is ready for a new connection.
// One goroutine may call Sent while another calls Received. A Checker does not allocate for
// ordinary commands and replies.
type Checker struct {
	mu             sync.Mutex // guards all fields
	commands       reader
	replies        reader
	sent, answered uint64 // commands
	special        []command
	err            error // of an earlier Received
}

// command is a command with a rule of its own for its reply, which has not come yet.
type command struct {
	number   uint64 // of all commands, from 0
	topology bool   // the reply lists the nodes of a cluster
	text     word   // of a PING: the reply; empty: no rule
}

// Sent takes the next bytes of commands, before the server can see them. The error of bytes that
// are no commands, or a subscription, wraps errors.ErrUnsupported.
func (c *Checker) Sent(p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.commands.areCommands, c.commands.limit = true, maxCommand
	for len(p) > 0 {
		n, whole, err := c.commands.read(p)
		if err != nil {
			return errCommand
		}
		if whole {
			if err := c.add(); err != nil {
				return err
			}
		}
		p = p[n:]
	}
	return nil
}

func (c *Checker) add() error {
	rule := command{number: c.sent}
	switch name := c.commands.texts[0].text(); {
	case c.commands.elements == 0 || bytes.HasSuffix(name, []byte("SUBSCRIBE")):
		return errCommand
	case string(name) == "CLUSTER":
		rule.topology = true
	case string(name) == "PING" && c.commands.elements == 2:
		rule.text = c.commands.texts[1]
	}
	if rule.topology || rule.text.size > 0 {
		c.special = append(c.special, rule)
	}
	c.sent++
	return nil
}

// next returns the rule of the oldest command without a reply; nil: the command has none.
func (c *Checker) next() *command {
	if len(c.special) > 0 && c.special[0].number == c.answered {
		return &c.special[0]
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
		c.replies.limit = maxRoom
		if rule := c.next(); rule != nil && rule.topology {
			c.replies.limit = maxTopology
		}
		n, whole, err := c.replies.read(p[read:])
		read += n
		if whole {
			err = c.end()
			if err == nil {
				valid = read
			}
		}
		c.err = err
	}
	if c.err != nil {
		return valid, c.err
	}
	return len(p), nil
}

// end checks a whole reply against the oldest command without a reply.
func (c *Checker) end() error {
	r, rule := &c.replies, c.next()
	text := r.texts[0].text()
	isError := r.typ == '-' || r.typ == '!'
	switch {
	case r.typ == '>':
		// rueidis ignores other pushes.
		if bytes.HasSuffix(text, []byte("subscribe")) && !bytes.HasSuffix(text, []byte("unsubscribe")) {
			return invalid("a subscription without a command")
		}
		return nil
	case c.sent == c.answered:
		return invalid("a reply without a command")
	case isError && redirects(text):
		return invalid("an error that names no node")
	case rule != nil && rule.text.size > 0 && !isError && !bytes.Equal(text, rule.text.text()):
		return invalid("a PING with the answer to another command")
	}
	if rule != nil {
		c.special = c.special[1:]
	}
	c.answered++
	return nil
}

// redirects reports whether rueidis takes an error for one that names another node, as `MOVED 3999
// 127.0.0.1:6381`, although the node is missing. rueidis reads `REDIRECT 127.0.0.1:6381` of Valkey
// only with Standalone.EnableRedirect, which Weir never sets.
func redirects(text []byte) bool {
	said := bytes.TrimPrefix(text, []byte("ERR "))
	return (bytes.HasPrefix(said, []byte("MOVED")) || bytes.HasPrefix(said, []byte("ASK"))) && bytes.Count(said, []byte(" ")) < 2
}

// Waiting returns the number of commands without a reply.
func (c *Checker) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(c.sent - c.answered) //nolint:gosec // at most the commands in flight
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
