package records

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/klauspost/compress/zstd"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Bounds of a file, in bytes.
const (
	chunkBytes = 64 << 10  // of text that is read at once
	maxBlank   = 1 << 20   // of blank lines in a row, which a small compressed file could have without end
	maxWindow  = 128 << 20 // of memory that a compressed file makes its reader take, as `zstd --long` writes
)

const maxMistakes = 20

// disorder is how far instants may go back: a slow request is recorded after a later one.
const disorder = 10 * time.Second

// Note is something about the traffic that its reader should know, and that is no mistake.
type Note struct {
	File string
	Line int // from 1
	Text string
}

// String returns "file:line: text".
func (n Note) String() string { return fmt.Sprintf("%s:%d: %s", n.File, n.Line, n.Text) }

// file is an open file. One goroutine at a time uses from and the state below it.
type file struct {
	name    string
	regular bool
	size    int64 // of a regular file in bytes, perhaps compressed
	close   func()

	number  int // in the order of opening, which decides between records of one instant
	filled  chan *chunk
	emptied chan *chunk
	now     *chunk // nil before the first

	from   io.Reader          // the lines
	lines  int                // read so far
	rest   []byte             // the beginning of a line whose end is yet to be read
	blank  int                // bytes of blank lines since the last record
	last   algorithms.Instant // of the record before
	behind time.Duration      // the delay of the clock that wrote the file: added to all instants
	notes  []Note             // a few
}

// chunk is some records of a file, and the text that they are parts of. Chunks are used again.
type chunk struct {
	text    []byte
	records []Record
	count   int   // of records that are in use
	next    int   // the next one to hand out
	end     error // of the file, behind the records: io.EOF or a mistake
}

type counter struct {
	io.Reader
	read *atomic.Int64
}

// Read implements [io.Reader].
func (c counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.read.Add(int64(n))
	return n, err
}

func openFile(path string, read *atomic.Int64) (*file, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := in.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s: is a directory", path)
	}
	var f *file
	if err == nil {
		f, err = newFile(path, counter{in, read}, func() { _ = in.Close() }) // was only read
	}
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	f.regular, f.size = info.Mode().IsRegular(), info.Size()
	return f, nil
}

// newFile returns the file of an open input. The first bytes say whether the file is compressed.
func newFile(name string, in io.Reader, closeInput func()) (*file, error) {
	head := bufio.NewReaderSize(in, 1<<16)
	f := &file{name: name, from: head, close: closeInput}
	magic := []byte{0x28, 0xb5, 0x2f, 0xfd} // RFC 8878, section 3.1.1
	switch begin, _ := head.Peek(len(magic)); {
	case len(begin) == 0 || !bytes.HasPrefix(magic, begin):
		return f, nil
	case len(begin) < len(magic): // cut off before its first line
		f.from = bytes.NewReader(nil)
		return f, nil
	}
	d, err := zstd.NewReader(head, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f.from, f.close = d, func() { d.Close(); closeInput() }
	return f, nil
}

func (f *file) fill(c *chunk) {
	c.count, c.next, c.end = 0, 0, nil
	c.text = append(c.text[:0], f.rest...)
	f.rest = f.rest[:0]
	end := 0
	var err error
	for err == nil && end == 0 && len(c.text) <= maxLine {
		from := len(c.text)
		c.text = append(c.text, make([]byte, chunkBytes)...)
		var n int
		n, err = io.ReadFull(f.from, c.text[from:])
		c.text = c.text[:from+n]
		end = bytes.LastIndexByte(c.text, '\n') + 1
	}
	switch {
	case err == nil && end == 0:
		c.end = f.longLine(f.lines + 1)
		return
	case err == nil:
		f.rest = append(f.rest, c.text[end:]...)
		c.text = c.text[:end]
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // of ReadFull or of a file that is cut off
		c.end = io.EOF
	default:
		c.text = c.text[:end]
		c.end = fmt.Errorf("%s:%d: after this line: %w", f.name, f.lines+bytes.Count(c.text, []byte("\n")), err)
	}
	f.parse(c)
}

const cutOff = "the file is cut off in this line, and was read up to it"

func (f *file) parse(c *chunk) {
	var errs []error
	text := unsafe.String(unsafe.SliceData(c.text), len(c.text)) // does not change before the next fill
	for text != "" && len(errs) < maxMistakes {
		var line string
		var whole bool
		line, text, whole = strings.Cut(text, "\n")
		f.lines++
		f.blank += len(line) + 1
		if f.lines == 1 {
			line = strings.TrimPrefix(line, "\ufeff")
		}
		if !whole && strings.HasSuffix(line, "\x00") { // as a crash of the machine leaves it
			if line = strings.TrimRight(line, "\x00"); line == "" {
				f.note(cutOff)
			}
		}
		switch line = strings.Trim(line, " \t\r"); {
		case len(line) > maxLine:
			errs = append(errs, f.longLine(f.lines))
			continue
		case line == "" && f.blank > maxBlank:
			c.end = fmt.Errorf("%s:%d: there are more than %d bytes of blank lines in a row", f.name, f.lines, maxBlank)
			return
		case line == "":
			continue
		}
		f.blank = 0
		if c.count == len(c.records) {
			c.records = append(c.records, Record{})
		}
		record := &c.records[c.count]
		if err := parse(line, record); err != nil {
			if !whole && errors.Is(err, errCutOff) {
				f.note(cutOff)
				break
			}
			errs = append(errs, fmt.Errorf("%s:%d: %w", f.name, f.lines, err))
			continue
		}
		f.order(record)
		c.count++
	}
	if len(errs) > 0 {
		c.end = errors.Join(errs...)
	}
}

// order keeps the instants of a file from going back. A step back of the clock that wrote the file
// would else put hours of requests at one instant. A leap ahead that would end beyond all instants
// counts as no time: at the last instant time would stand still.
func (f *file) order(record *Record) {
	if algorithms.Instant(f.behind) > math.MaxInt64-record.At {
		f.behind = time.Duration(f.last - record.At)
		f.note("the instant leaps too far ahead: from here on all are counted as so much earlier")
	}
	record.At += algorithms.Instant(f.behind)
	if back := time.Duration(f.last - record.At); back > 0 {
		if back > disorder {
			f.behind += back
			f.note(fmt.Sprintf("the instant is %v before the one ahead of it: from here on all are counted as so much later", back))
		}
		record.At = f.last
	}
	f.last = record.At
}

// note adds a note about the last line. Further notes than the first few would say little.
func (f *file) note(text string) {
	if len(f.notes) < maxMistakes {
		f.notes = append(f.notes, Note{f.name, f.lines, text})
	}
}

func (f *file) longLine(line int) error {
	return fmt.Errorf("%s:%d: is longer than %d bytes", f.name, line, maxLine)
}
