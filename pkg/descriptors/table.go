package descriptors

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// DefaultMaxTableBytes is the bound on the size of all tables of [Options] where none is given: a
// million lines of 64 bytes.
const DefaultMaxTableBytes = 64 << 20

// Table is a list of values, such as customers, with numbers of their own for one or several
// limits. Immutable, and safe for concurrent use. A line takes 26 bytes of memory and its value.
type Table struct {
	file     string
	size     int // of the data, in bytes
	rows     rows
	meaning  meaning
	mistakes Errors
	warnings []Warning
}

// NewTable reads a table in CSV (RFC 4180), whose lines are
//
//	value,requests_per_unit[,unit[,burst]]
//
// The first line may have these names. A unit is as in a rule, for a period of one such unit.
// Without a unit or a burst, the unit or burst of the limit holds. The values must differ, and have
// no line break. Blank lines do not count, and a byte order mark of UTF-8 neither. Values are
// compared byte by byte: a `*` is a plain character.
//
// [Load] reports the mistakes in a table, see [Table.Err], and finds more of them in combination
// with a limit. NewTable does not keep data. The size of data is less than 4 GiB.
func NewTable(file string, data []byte) *Table {
	t := &Table{file: shownName(file), size: len(data)}
	t.read(data)
	t.rows.index(func(again, first *row, value string) {
		t.fail(int(again.line), "value", "%s is given twice, first in line %d", quote(value), first.line)
	})
	slices.SortStableFunc(t.mistakes, func(a, b Error) int { return cmp.Compare(a.Line, b.Line) })
	if len(t.mistakes) == 0 {
		t.meaning = t.rows.meaning()
	}
	return t
}

// Err returns every mistake in the table as an [Errors], whose File is the name that NewTable was
// given; nil without a mistake.
func (t *Table) Err() error {
	if len(t.mistakes) == 0 {
		return nil
	}
	return t.mistakes
}

// File returns the name that NewTable was given. U+FFFD stands for bytes that are not UTF-8.
func (t *Table) File() string { return t.file }

// Len returns the number of values.
func (t *Table) Len() int { return len(t.rows.all) }

// Hash identifies the values and their numbers, in 16 hexadecimal digits. The order of lines does
// not change the hash.
func (t *Table) Hash() string { return hex.EncodeToString(t.meaning[:8]) }

// fail records a mistake in a line, up to maxMistakes. path names a column.
func (t *Table) fail(line int, path, format string, args ...any) {
	if len(t.mistakes) < maxMistakes {
		t.mistakes = append(t.mistakes, Error{File: t.file, Line: line, Path: path, Text: fmt.Sprintf(format, args...)})
	} else if len(t.mistakes) == maxMistakes {
		t.mistakes = append(t.mistakes, Error{File: t.file, Line: line, Text: "too many mistakes, the rest was not read"})
	}
}

// columns returns the names of the columns.
func columns() [4]string { return [...]string{"value", "requests_per_unit", "unit", "burst"} }

// mustBeLine completes a mistake about a whole line.
const mustBeLine = "must be value,requests_per_unit[,unit[,burst]]"

// read reads all lines.
func (t *Table) read(data []byte) {
	if len(data) >= math.MaxUint32 {
		t.fail(0, "", "has %d bytes, must have less than 4 GiB", len(data))
		return
	}
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		t.fail(1, "", "is UTF-16, must be UTF-8")
		return
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	t.rows.grow(data)
	records := csv.NewReader(&tableLines{table: t, rest: data})
	records.FieldsPerRecord, records.ReuseRecord = -1, true
	for first := true; len(t.mistakes) <= maxMistakes; first = false {
		record, err := records.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if syntax, ok := errors.AsType[*csv.ParseError](err); ok {
			t.fail(syntax.StartLine, "", wrongQuote)
			continue
		}
		if err != nil { // bytes in memory have no other
			t.fail(0, "", "%v", err)
			return
		}
		line, _ := records.FieldPos(0)
		t.record(record, line, first)
	}
	if len(t.rows.all) == 0 && len(t.mistakes) == 0 {
		t.fail(1, "", "has no lines, must have at least one: "+mustBeLine)
	}
}

// wrongQuote is the mistake of a line whose quotes are no CSV.
const wrongQuote = "has a wrong quote: a text with a comma stands in quotes, with each quote in it doubled, and has no line break"

// maxTableLine bounds a line, in bytes: the fields of a line take up to 80 bytes of memory each
// while it is read.
const maxTableLine = 64 << 10

// tableLines reads the lines of a table, each of which can be a record. Read replaces all other
// lines by blank ones, and records why.
type tableLines struct {
	table  *Table
	rest   []byte // to be read
	line   []byte // of it, the rest of the line that was begun
	number int    // of that line
}

// Read implements [io.Reader].
func (l *tableLines) Read(p []byte) (n int, err error) {
	for n < len(p) && len(l.table.mistakes) <= maxMistakes {
		if len(l.line) == 0 {
			if len(l.rest) == 0 {
				break
			}
			l.next()
		}
		copied := copy(p[n:], l.line)
		n, l.line = n+copied, l.line[copied:]
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// next begins the next line.
func (l *tableLines) next() {
	end := bytes.IndexByte(l.rest, '\n') + 1
	if end == 0 {
		end = len(l.rest)
	}
	l.line, l.rest = l.rest[:end], l.rest[end:]
	l.number++
	switch {
	case len(l.line) > maxTableLine:
		l.table.fail(l.number, "", "has %d bytes, must be a line of at most %d", len(l.line), maxTableLine)
	case l.line[0] == '#':
		l.table.fail(l.number, "", "begins with #, and a table has no comments: must be left out, or begin with a value in quotes")
	case bytes.Count(l.line, []byte{'"'})%2 != 0:
		l.table.fail(l.number, "", wrongQuote)
	default:
		return
	}
	l.line = l.line[len(l.line)-1:] // the line break, or one byte of the last line
	if l.line[0] != '\n' {
		l.line = nil
	}
}

// record reads one record, which begins in a line.
func (t *Table) record(fields []string, line int, first bool) {
	names := columns()
	if len(fields) == 1 && strings.TrimSpace(fields[0]) == "" {
		return
	}
	if first && len(fields) > 1 && strings.TrimSpace(fields[1]) == names[1] {
		for i, name := range fields {
			if i >= len(names) || strings.TrimSpace(name) != names[i] {
				t.fail(line, "", "is the line of names, must be %s", strings.Join(names[:min(len(fields), len(names))], ","))
				return
			}
		}
		return
	}
	if len(fields) < 2 || len(fields) > len(names) {
		hint := ""
		if len(fields) == 1 && strings.ContainsAny(fields[0], ";\t") {
			hint = ", with commas between"
		}
		t.fail(line, "", "has %d columns, %s%s", len(fields), mustBeLine, hint)
		return
	}
	before := len(t.mistakes)
	t.value(fields[0], line)
	x := row{line: uint32(line)}
	x.requests = t.number(fields, 1, 0, line)
	if len(fields) > 2 {
		if name := strings.TrimSpace(fields[2]); name != "" {
			unit, ok := ParseUnit(name)
			if x.unit = uint8(unit); !ok {
				t.fail(line, names[2], "%s is not a unit, must be second, minute, hour, day, week, month or year", quote(name))
			}
		}
	}
	if len(fields) > 3 && strings.TrimSpace(fields[3]) != "" {
		x.burst = t.number(fields, 3, 1, line)
	}
	if x.burst > 0 && x.requests == 0 {
		t.fail(line, names[3], "is %d, must be left out: requests_per_unit 0 denies every hit", x.burst)
	}
	if len(t.mistakes) == before {
		t.rows.add(fields[0], x)
	}
}

// value checks the value of a line.
func (t *Table) value(v string, line int) {
	warn := func(format string, args ...any) {
		if len(t.warnings) < maxMistakes {
			t.warnings = append(t.warnings, Warning{File: t.file, Line: line, Path: "value", Text: fmt.Sprintf(format, args...)})
		}
	}
	switch plain := strings.TrimSpace(v); {
	case plain == "":
		t.fail(line, "value", "is empty, must be the value of an entry, as Envoy sends it")
	case !utf8.ValidString(v):
		t.fail(line, "value", "%s is not UTF-8, which Envoy sends", quote(v))
	case plain != v:
		warn("has blanks around it, which a request must send too: probably %s is meant", quote(plain))
	case strings.Contains(v, "*"):
		warn("a `*` in a table is a plain character")
	}
}

// number reads a column with a whole number.
func (t *Table) number(fields []string, column int, lowest uint64, line int) uint32 {
	text := strings.TrimSpace(fields[column])
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n < lowest {
		t.fail(line, columns()[column], "is %s, must be a whole number from %d to %d", quote(text), lowest, uint32(math.MaxUint32))
	}
	return uint32(n)
}
