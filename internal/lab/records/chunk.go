package records

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
	"unsafe"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Sizes of the reader, in bytes.
const (
	chunkBytes = 64 << 10 // of text that is read at once
	maxBlank   = 1 << 20  // of blank lines in a row, which a small compressed file could have without end
)

// maxMistakes bounds the mistakes that one error lists.
const maxMistakes = 20

// disorder is how far the instants of a file may go back: a request that takes long is recorded
// after a later one.
const disorder = 10 * time.Second

// chunk is some records of a file, and the text that they are parts of. Chunks are used again.
type chunk struct {
	text    []byte
	records []Record
	count   int   // of records that are in use
	next    int   // the next one to hand out
	end     error // of the file, behind the records: io.EOF or a mistake
}

// Note is something about the traffic that its reader should know, and that is no mistake.
type Note struct {
	File string
	Line int // from 1
	Text string
}

// String returns "file:line: text".
func (n Note) String() string { return fmt.Sprintf("%s:%d: %s", n.File, n.Line, n.Text) }

// chunks reads the lines of a file, for one goroutine at a time.
type chunks struct {
	from  *source
	lines int    // read so far
	rest  []byte // the beginning of a line whose end is yet to be read
	blank int    // bytes of blank lines since the last record

	second second             // of the line before
	last   algorithms.Instant // of the record before
	shift  time.Duration      // added to all instants
	notes  []Note             // at most one of each kind
}

// fill reads some lines into c.
func (r *chunks) fill(c *chunk) {
	c.count, c.next, c.end = 0, 0, nil
	c.text = append(c.text[:0], r.rest...)
	r.rest = r.rest[:0]
	end := bytes.LastIndexByte(c.text, '\n') + 1
	var err error
	for err == nil && end == 0 && len(c.text) <= maxLine {
		from := len(c.text)
		c.text = append(c.text, make([]byte, chunkBytes)...)
		var n int
		n, err = io.ReadFull(r.from, c.text[from:])
		c.text = c.text[:from+n]
		if i := bytes.LastIndexByte(c.text[from:], '\n'); i >= 0 {
			end = from + i + 1
		}
	}
	switch {
	case err == nil && end == 0:
		c.end = r.longLine(r.lines + 1)
		return
	case err == nil:
		r.rest = append(r.rest, c.text[end:]...)
		c.text = c.text[:end]
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // of ReadFull or of a file that is cut off
		c.end = io.EOF
	default:
		c.text = c.text[:end]
		c.end = fmt.Errorf("%s:%d: after this line: %w", r.from.name, r.lines+bytes.Count(c.text, []byte("\n")), err)
	}
	r.parse(c)
}

// cutOff is the note about the last line of a file that is cut off.
const cutOff = "the file is cut off in this line, and was read up to it"

// parse reads the lines of the text of c.
func (r *chunks) parse(c *chunk) {
	var errs []error
	text := unsafe.String(unsafe.SliceData(c.text), len(c.text)) // does not change before the next fill
	for text != "" && len(errs) < maxMistakes {
		var line string
		var whole bool
		line, text, whole = strings.Cut(text, "\n")
		r.lines++
		r.blank += len(line) + 1
		if r.lines == 1 {
			line = strings.TrimPrefix(line, "\ufeff")
		}
		if !whole && strings.HasSuffix(line, "\x00") { // as a crash of the machine leaves it
			if line = strings.TrimRight(line, "\x00"); line == "" {
				r.note(cutOff)
			}
		}
		switch line = strings.Trim(line, " \t\r"); {
		case len(line) > maxLine:
			errs = append(errs, r.longLine(r.lines))
			continue
		case line == "" && r.blank > maxBlank:
			c.end = fmt.Errorf("%s:%d: there are more than %d bytes of blank lines in a row", r.from.name, r.lines, maxBlank)
			return
		case line == "":
			continue
		}
		r.blank = 0
		if c.count == len(c.records) {
			c.records = append(c.records, Record{})
		}
		record := &c.records[c.count]
		if err := parse(line, &r.second, record); err != nil {
			if !whole && errors.Is(err, errCutOff) {
				r.note(cutOff)
				break
			}
			errs = append(errs, fmt.Errorf("%s:%d: %w", r.from.name, r.lines, err))
			continue
		}
		r.order(record)
		c.count++
	}
	if len(errs) > 0 {
		c.end = errors.Join(errs...)
	}
}

// order keeps the instants of a file from going back. A step back of the clock that wrote the file
// would else put hours of requests at one instant. A leap ahead that would end beyond all instants
// counts as no time: at the last instant time would stand still.
func (r *chunks) order(record *Record) {
	if algorithms.Instant(r.shift) > math.MaxInt64-record.At {
		r.shift = time.Duration(r.last - record.At)
		r.note("the instant leaps too far ahead: from here on all are counted as so much earlier")
	}
	record.At += algorithms.Instant(r.shift)
	if back := time.Duration(r.last - record.At); back > 0 {
		if back > disorder {
			r.shift += back
			r.note(fmt.Sprintf("the instant is %v before the one ahead of it: from here on all are counted as so much later", back))
		}
		record.At = r.last
	}
	r.last = record.At
}

// note adds a note about the last line. Further notes than the first few would say little.
func (r *chunks) note(text string) {
	if len(r.notes) < maxMistakes {
		r.notes = append(r.notes, Note{r.from.name, r.lines, text})
	}
}

func (r *chunks) longLine(line int) error {
	return fmt.Errorf("%s:%d: is longer than %d bytes", r.from.name, line, maxLine)
}
