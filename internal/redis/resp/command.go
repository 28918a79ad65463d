package resp

import (
	"errors"
	"fmt"
)

// commandReader reads commands as clients write them: *2\r\n$3\r\nGET\r\n$3\r\nkey\r\n.
type commandReader struct {
	at     commandPart
	number int // read so far; in an argument: its bytes left, with the line end
	args   int // of the command
	left   int // arguments still to be read
	words  [2]word
}

// word is one of the first arguments of a command. Longer ones are cut off: all names are short.
type word struct {
	bytes [24]byte
	size  int
}

func (w *word) is(text string) bool { return string(w.bytes[:w.size]) == text }

// commandPart is the part of a command that comes next.
type commandPart uint8

const (
	atCommand commandPart = iota
	inCount               // of the arguments
	atArgument
	inSize // of an argument
	inArgument
)

// maxCommand bounds the numbers in commands, in bytes and in arguments.
const maxCommand = 1 << 30

var errCommand = fmt.Errorf("not a command of RESP: %w", errors.ErrUnsupported)

// read reads to the end of a command, or to the end of p, and returns the bytes read.
func (c *commandReader) read(p []byte) (n int, whole bool, err error) {
	for n < len(p) {
		b := p[n]
		switch c.at {
		case atCommand:
			if b != '*' {
				return n, false, errCommand
			}
			c.at, c.number = inCount, 0
			c.words[0].size, c.words[1].size = 0, 0
		case atArgument:
			if skipped := c.skip(p[n:]); skipped > 0 {
				n += skipped
				continue
			}
			if b != '$' {
				return n, false, errCommand
			}
			c.at, c.number = inSize, 0
		case inCount, inSize:
			switch {
			case b >= '0' && b <= '9' && c.number < maxCommand/10:
				c.number = 10*c.number + int(b-'0')
			case b == '\r':
			case b != '\n':
				return n, false, errCommand
			case c.at == inSize:
				c.at, c.number = inArgument, c.number+len("\r\n")
			default:
				c.at, c.args, c.left = atArgument, c.number, c.number
				if c.args == 0 {
					return n, false, errCommand
				}
			}
		case inArgument:
			size := min(c.number, len(p)-n)
			if i := c.args - c.left; i < len(c.words) {
				c.words[i].add(p[n:n+size], c.number)
			}
			n += size
			if c.number -= size; c.number > 0 {
				return n, false, nil
			}
			c.at = atArgument
			if c.left--; c.left == 0 {
				c.at = atCommand
				return n, true, nil
			}
			continue
		}
		n++
	}
	return n, false, nil
}

// skip returns the size of the arguments that are whole in p, without the first ones and the last
// one. skip is a shortcut.
func (c *commandReader) skip(p []byte) int {
	n := 0
	for c.left > 1 && c.args-c.left >= len(c.words) {
		size, i := 0, n+1
		for i < len(p) && p[i] >= '0' && p[i] <= '9' && size < maxCommand/10 {
			size = 10*size + int(p[i]-'0')
			i++
		}
		next := i + len("\r\n") + size + len("\r\n")
		if i == n+1 || next > len(p) || p[n] != '$' || p[i] != '\r' || p[i+1] != '\n' {
			return n
		}
		n = next
		c.left--
	}
	return n
}

// add adds a piece of the argument. left is the bytes left of the argument with its line end,
// before the piece.
func (w *word) add(piece []byte, left int) {
	piece = piece[:max(0, min(len(piece), left-len("\r\n")))]
	w.size += copy(w.bytes[w.size:], piece)
}
