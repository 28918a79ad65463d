package resp

import (
	"bytes"
	"math"
)

// Bounds of a value.
const (
	maxLine  = 64 << 10 // bytes of an error, or of another value of one line
	maxDepth = 8        // of arrays in arrays; the modules in an answer to HELLO need four

	elementSize = 40 // bytes of a rueidis.RedisMessage. rueidis makes an array of its announced length.
	textSize    = 16 // bytes of memory of a short text, at least
)

// reader reads one value after another, and keeps the size and the shape of the last one. Commands
// are values, too: arrays of texts.
type reader struct {
	areCommands bool
	at          part
	limit       int     // bytes of memory that a value can have
	room        int     // bytes of memory left for the value
	typ         byte    // of the value
	elements    int     // of the value, if it is an array or the like
	texts       [2]word // the value, or its first elements

	depth int
	left  [maxDepth]int // elements still to be read, for each array that is being read

	element  byte   // type of the element that is being read
	number   uint64 // read so far
	digits   int
	negative bool
	cr       bool // the last byte was \r
	size     int  // of a line so far, or left of a text with its line end
}

// part is the part of a value that comes next.
type part uint8

const (
	atType   part = iota
	inNumber      // integer or length, to its \n
	inLine        // to its \n
	inText        // to its \n
)

// word is the beginning of a text: all texts with a meaning are short.
type word struct {
	bytes [24]byte
	size  int
}

func (w *word) text() []byte { return w.bytes[:w.size] }

func (w *word) add(piece []byte) { w.size += copy(w.bytes[w.size:], piece) }

// read reads to the end of a value, or to the end of p, and returns the bytes read.
func (r *reader) read(p []byte) (n int, whole bool, err error) {
	for n < len(p) && !whole && err == nil {
		b := p[n]
		switch r.at {
		case atType:
			if size := r.skipText(p[n:]); size > 0 {
				n += size
				whole = r.complete()
				continue
			}
			n++
			err = r.start(b)
		case inNumber:
			n++
			whole, err = r.digit(b)
		case inLine:
			var size int
			size, whole, err = r.line(p[n:])
			n += size
		case inText:
			if size := min(r.size-len("\r\n"), len(p)-n); size > 0 {
				if w := r.word(); w != nil {
					w.add(p[n : n+size])
				}
				n, r.size = n+size, r.size-size
				continue
			}
			n++
			if b != "\n\r"[r.size-1] {
				return n, false, invalid("a text without a line end")
			}
			if r.size--; r.size == 0 {
				whole = r.complete()
			}
		}
	}
	return n, whole, err
}

// skipText reads a text that is whole in p, and returns its size in p; 0: read byte by byte.
// skipText is a shortcut.
func (r *reader) skipText(p []byte) int {
	if p[0] != '$' || r.areCommands && r.depth == 0 {
		return 0
	}
	size, i := 0, 1
	for i < len(p) && p[i] >= '0' && p[i] <= '9' && size < maxCommand/10 {
		size = 10*size + int(p[i]-'0')
		i++
	}
	begin := i + len("\r\n")
	end := begin + size
	if i == 1 || end+1 >= len(p) || p[i] != '\r' || p[i+1] != '\n' || p[end] != '\r' || p[end+1] != '\n' {
		return 0
	}
	if r.depth == 0 {
		r.begin('$')
	}
	if r.room < size+textSize {
		return 0
	}
	r.room -= size + textSize
	if w := r.word(); w != nil {
		w.add(p[begin:end])
	}
	return end + len("\r\n")
}

func (r *reader) begin(typ byte) {
	r.typ, r.elements, r.room = typ, 0, r.limit
	r.texts[0].size, r.texts[1].size = 0, 0
}

func (r *reader) start(typ byte) error {
	if r.depth == 0 {
		r.begin(typ)
	}
	r.element, r.number, r.digits, r.negative, r.cr, r.size = typ, 0, 0, false, false, 0
	switch typ {
	case '$', '=', '!', '*', '~', '%', ':', '>':
		r.at = inNumber
	case '+', '-', ',', '(', '#', '_':
		r.at = inLine
	default:
		return invalid("the type %q, must be one of $ = ! * ~ %% : > + - , ( # _", typ)
	}
	switch {
	case r.areCommands && typ != "*$"[min(r.depth, 1)]:
		return errCommand
	case typ == '>' && r.depth > 0:
		return invalid("a push inside a reply")
	}
	return nil
}

func (r *reader) digit(b byte) (whole bool, err error) {
	const maxDigits = 19 // of an int64
	switch {
	case r.cr && b == '\n':
		return r.numbered()
	case r.cr:
		return false, invalid("a number without a line end")
	case b >= '0' && b <= '9' && r.digits < maxDigits:
		r.number = 10*r.number + uint64(b-'0')
		r.digits++
	case b == '-' && r.digits == 0 && !r.negative:
		r.negative = true
	case b == '\r' && r.digits > 0:
		r.cr = true
	default:
		return false, invalid("a number with the byte %q, or of more than %d digits", b, maxDigits)
	}
	return false, nil
}

// numbered ends an integer, or uses a length. An array is charged before its elements come.
func (r *reader) numbered() (whole bool, err error) {
	isText := r.element == '$' || r.element == '=' || r.element == '!'
	switch {
	case r.element == ':' && r.number > math.MaxInt64 && (!r.negative || r.number > -math.MinInt64):
		return false, invalid("a number outside of 64 bits")
	case r.element == ':':
		return r.complete(), nil
	case r.negative && !r.areCommands && r.number == 1 && (r.element == '$' || r.element == '*'):
		return r.complete(), nil // null
	case r.negative:
		return false, invalid("the length -%d of the type %q", r.number, r.element)
	case r.number > uint64(max(0, r.room)): //nolint:gosec // never negative
		return false, r.tooLong()
	}
	n := int(r.number) //nolint:gosec // checked above
	if isText {
		if r.room -= n + textSize; r.room < 0 {
			return false, r.tooLong()
		}
		r.at, r.size = inText, n+len("\r\n")
		return false, nil
	}
	if r.element == '%' {
		n *= 2 // keys and values
	}
	if r.room -= n * elementSize; r.room < 0 {
		return false, r.tooLong()
	}
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

func (r *reader) tooLong() error {
	return invalid("a length of %d of the type %q: a reply has at most %d bytes of memory", r.number, r.element, r.limit)
}

func (r *reader) line(p []byte) (n int, whole bool, err error) {
	end := bytes.IndexByte(p, '\n')
	piece := p
	if end >= 0 {
		piece = p[:end]
	}
	if len(piece) > 0 {
		if r.element == '#' && r.size == 0 && piece[0] != 't' && piece[0] != 'f' {
			return 0, false, invalid("a boolean that is neither t nor f")
		}
		r.cr = piece[len(piece)-1] == '\r'
		if w := r.word(); w != nil {
			w.add(piece)
		}
		r.size += len(piece)
		r.room -= len(piece)
	}
	switch {
	case r.size > maxLine || r.room < 0:
		return 0, false, invalid("a line of more than %d bytes", maxLine)
	case end < 0:
		return len(p), false, nil
	case !r.cr:
		return 0, false, invalid("a line without a carriage return")
	case r.element == '_' && r.size != len("\r"), r.element == '#' && r.size != len("t\r"):
		return 0, false, invalid("a null or a boolean without a line end")
	}
	if w := r.word(); w != nil && w.size == r.size {
		w.size-- // the carriage return
	}
	return end + 1, r.complete(), nil
}

// word returns the word of the element that is being read; nil: its text has no meaning.
func (r *reader) word() *word {
	switch {
	case r.depth == 0:
		return &r.texts[0]
	case r.depth == 1 && r.elements-r.left[0] < len(r.texts):
		return &r.texts[r.elements-r.left[0]]
	default:
		return nil
	}
}

// complete ends an element, and reports whether the value has ended, too.
func (r *reader) complete() bool {
	r.at = atType
	for r.depth > 0 {
		if r.left[r.depth-1]--; r.left[r.depth-1] > 0 {
			return false
		}
		r.depth--
	}
	return true
}
