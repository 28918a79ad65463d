package resp

import (
	"bytes"
	"math"
)

// Bounds of a reply. The longest reply to Weir's script has some 100 bytes for each charge of a
// batch. The longest reply of a cluster lists the three nodes of each of 16 384 slots, in 20 MiB.
const (
	maxRoom     = 4 << 20  // bytes of memory of a reply
	maxTopology = 32 << 20 // bytes of memory of a reply about a cluster
	maxLine     = 64 << 10 // bytes of an error, or of another reply of one line
	maxDepth    = 8        // of arrays in arrays; the modules in an answer to HELLO need four

	elementSize = 40 // bytes of a rueidis.RedisMessage. rueidis makes an array of its announced length.
	textSize    = 16 // bytes of memory of a short text, at least
)

// Bounds of the texts that end looks at.
const (
	maxTexts = 3
	maxText  = 1 << 10 // bytes; later bytes are cut off
)

// replyReader reads replies, and keeps their size and shape. Texts are not kept of the replies to
// scripts.
type replyReader struct {
	at       replyPart
	typ      byte // of the reply
	push     bool // the reply is a push, if it is not the pong of RESP2
	null     bool // the reply is null
	keep     bool // the texts
	elements int  // of the reply, if it is an array or the like
	limit    int  // bytes of memory that the reply can have
	room     int  // bytes of memory left for the reply

	depth int
	left  [maxDepth]int // elements still to be read, for each array that is being read

	element  byte   // type of the element that is being read
	number   uint64 // read so far
	digits   int
	negative bool
	size     int  // of a line so far, or left of a text
	cr       bool // the last byte of a line was \r

	texts [maxTexts][]byte // of the reply, or of the first elements of the reply
}

// replyPart is the part of a reply that comes next.
type replyPart uint8

const (
	atType   replyPart = iota
	inNumber           // integer or length, to its \r
	inLine             // to its \n
	inText
	inBoolean
	atCR // the \r of a line end
	atLF // the \n of the line end of a number
	atEnd
)

// begin begins a reply.
func (r *replyReader) begin(typ byte, k kind) {
	r.typ, r.push, r.null, r.elements, r.limit = typ, false, false, 0, maxRoom
	if k == topology {
		r.limit = maxTopology
	}
	r.room = r.limit
	r.keep = k != ordinary || typ != '$'
	if r.keep {
		for i := range r.texts {
			r.texts[i] = r.texts[i][:0]
		}
	}
}

// text returns the reply, or an element of the reply.
func (r *replyReader) text(i int) []byte { return r.texts[i] }

// add keeps a piece of the element that is being read.
func (r *replyReader) add(piece []byte) {
	if !r.keep || r.depth > 1 {
		return
	}
	i := 0
	if r.depth == 1 {
		i = r.elements - r.left[0]
	}
	if i < maxTexts {
		t := &r.texts[i]
		*t = append(*t, piece[:min(len(piece), maxText-len(*t))]...)
	}
}

// read reads to the end of a reply, or to the end of p, and returns the bytes read.
func (r *replyReader) read(p []byte) (n int, whole bool, err error) {
	for n < len(p) {
		b := p[n]
		switch r.at {
		case atType:
			n++
			err = r.start(b)
		case inNumber:
			n++
			err = r.digit(b)
		case atLF:
			n++
			if b != '\n' {
				return n, false, invalid("a number without a line end")
			}
			whole, err = r.numbered()
		case inLine:
			n, whole, err = r.line(p, n)
		case inText:
			size := min(r.size, len(p)-n)
			r.add(p[n : n+size])
			n += size
			if r.size -= size; r.size == 0 {
				r.at = atCR
			}
		case inBoolean:
			n++
			if b != 't' && b != 'f' {
				return n, false, invalid("a boolean that is neither t nor f")
			}
			r.at = atCR
		case atCR:
			n++
			if b != '\r' {
				return n, false, invalid("a text, a boolean or a null without a line end")
			}
			r.at = atEnd
		case atEnd:
			n++
			if b != '\n' {
				return n, false, invalid("a text, a boolean or a null without a line end")
			}
			whole = r.complete()
		}
		if whole || err != nil {
			return n, whole, err
		}
	}
	return n, false, nil
}

// start starts an element.
func (r *replyReader) start(typ byte) error {
	r.element, r.number, r.digits, r.negative, r.size, r.cr = typ, 0, 0, false, 0, false
	switch typ {
	case '$', '=', '!', '*', '~', '%', ':':
		r.at = inNumber
	case '>':
		if r.depth > 0 {
			return invalid("a push inside a reply")
		}
		r.at = inNumber
	case '+', '-', ',', '(':
		r.at = inLine
	case '#':
		r.at = inBoolean
	case '_':
		r.null = r.depth == 0
		r.at = atCR
	default:
		return invalid("the type %q, must be one of $ = ! * ~ %% : > + - , ( # _", typ)
	}
	return nil
}

// digit reads a byte of a number.
func (r *replyReader) digit(b byte) error {
	const maxDigits = 19 // of an int64
	switch {
	case b >= '0' && b <= '9' && r.digits < maxDigits:
		r.number = 10*r.number + uint64(b-'0')
		r.digits++
	case b == '-' && r.digits == 0 && !r.negative:
		r.negative = true
	case b == '\r' && r.digits > 0:
		r.at = atLF
	default:
		return invalid("a number with the byte %q, or of more than %d digits", b, maxDigits)
	}
	return nil
}

// numbered ends an integer, or uses a length.
func (r *replyReader) numbered() (whole bool, err error) {
	limit := uint64(math.MaxInt64)
	if r.negative {
		limit++
	}
	if r.number > limit {
		return false, invalid("a number outside of 64 bits")
	}
	if r.element == ':' {
		return r.complete(), nil
	}
	if r.negative {
		if r.number != 1 || r.element != '$' && r.element != '*' {
			return false, invalid("the length -%d of the type %q", r.number, r.element)
		}
		r.null = r.null || r.depth == 0
		return r.complete(), nil
	}
	if r.element == '$' || r.element == '=' || r.element == '!' {
		if r.number > uint64(r.room) { //nolint:gosec // never negative
			return false, r.tooLong()
		}
		r.size = int(r.number) //nolint:gosec // checked above
		if r.room -= r.size + textSize; r.room < 0 {
			return false, r.tooLong()
		}
		r.at = inText
		if r.size == 0 {
			r.at = atCR
		}
		return false, nil
	}
	return r.open()
}

// open begins an array, or the like.
func (r *replyReader) open() (whole bool, err error) {
	if r.number > uint64(r.room/(2*elementSize)) { //nolint:gosec // never negative
		return false, r.tooLong()
	}
	n := int(r.number) //nolint:gosec // checked above
	if r.element == '%' {
		n *= 2 // keys and values
	}
	r.room -= n * elementSize
	if r.depth == 0 {
		r.elements = n
	}
	if n == 0 {
		return r.complete(), nil
	}
	if r.depth == maxDepth {
		return false, invalid("arrays in more than %d arrays", maxDepth)
	}
	r.left[r.depth] = n
	r.depth++
	r.at = atType
	return false, nil
}

func (r *replyReader) tooLong() error {
	return invalid("a length of %d of the type %q: a reply has at most %d bytes of memory", r.number, r.element, r.limit)
}

// line reads a piece of a line.
func (r *replyReader) line(p []byte, n int) (int, bool, error) {
	rest := p[n:]
	end := bytes.IndexByte(rest, '\n')
	piece := rest
	if end >= 0 {
		piece = rest[:end]
	}
	if len(piece) > 0 {
		if r.cr {
			r.add([]byte{'\r'})
		}
		r.cr = piece[len(piece)-1] == '\r'
		if kept := len(piece); r.cr {
			r.add(piece[:kept-1])
		} else {
			r.add(piece)
		}
	}
	r.size += len(piece)
	r.room -= len(piece)
	if r.size > maxLine || r.room < 0 {
		return n, false, invalid("a line of more than %d bytes", maxLine)
	}
	if end < 0 {
		return len(p), false, nil
	}
	if !r.cr {
		return n, false, invalid("a line without a carriage return")
	}
	return n + end + 1, r.complete(), nil
}

// complete ends an element, and reports whether the reply has ended, too.
func (r *replyReader) complete() bool {
	r.at = atType
	for r.depth > 0 {
		if r.left[r.depth-1]--; r.left[r.depth-1] > 0 {
			return false
		}
		r.depth--
	}
	return true
}
