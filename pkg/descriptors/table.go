package descriptors

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"math/bits"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weirproxy/weir/internal/ranges"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// DefaultMaxTableBytes is the bound on the size of all tables of [Options] where none is given: a
// million lines of 64 bytes.
const DefaultMaxTableBytes = 64 << 20

// Table is a list of values, such as customers, with numbers of their own for one or several
// limits; or of prices, or of ranges. Immutable, and safe for concurrent use. A line takes 26 bytes
// of memory and its value. A range takes at most 52 bytes.
type Table struct {
	file     string
	size     int // of the data, in bytes
	rows     rows
	prices   *prices     // of a table of prices, which has no rows; else nil
	ranges   *ranges.Set // of a file of ranges, which has no rows; else nil
	zones    []string    // names in the column zone; a row has the index, from 1
	meaning  meaning
	mistakes Errors
	warnings []Warning
}

// NewTable reads a table in CSV (RFC 4180), whose lines are
//
//	value,requests_per_unit[,unit[,burst[,day[,zone]]]]
//
// The first line may have these names. A table of prices has the line
//
//	model,input,cached_input,cache_write,output
//
// and then lines of a model and its prices for a million tokens, with at most six decimals each.
// The model * is for all others. A file whose name ends in .txt has a range of IP addresses in each
// line, such as 10.0.0.0/8. Comments begin with # or ;.
//
// Of a table of values: A unit is as in a rule, for a period of one such unit. day
// and zone are as in align, for a limit that has it. An empty column has no say: the limit's own
// holds. The values must differ, and have
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
	switch {
	case len(t.mistakes) > 0:
	case t.prices != nil:
		t.meaning, t.prices.lines = t.prices.meaning(), nil
	case t.ranges != nil:
		t.meaning = t.ranges.Sum()
	default:
		t.meaning = t.rows.meaning(t.zones)
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

// Len returns the number of values, of models, or of ranges.
func (t *Table) Len() int {
	switch {
	case t.prices != nil:
		return len(t.prices.models)
	case t.ranges != nil:
		return t.ranges.Len()
	}
	return len(t.rows.all)
}

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

// warn records a warning about a line, up to maxMistakes. path names a column.
func (t *Table) warn(line int, path, format string, args ...any) {
	if len(t.warnings) < maxMistakes {
		t.warnings = append(t.warnings, Warning{File: t.file, Line: line, Path: path, Text: fmt.Sprintf(format, args...)})
	}
}

func columns() [6]string {
	return [...]string{"value", "requests_per_unit", "unit", "burst", "day", "zone"}
}

// mustBeLine completes a mistake about a whole line.
const mustBeLine = "must be value,requests_per_unit[,unit[,burst[,day[,zone]]]]"

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
	if isRanges(t.file) {
		t.rangeLines(data)
		return
	}
	t.rows.grow(data)
	var line bytes.Reader // one line at a time, so that no record has several
	records := csv.NewReader(&line)
	records.FieldsPerRecord, records.ReuseRecord = -1, true
	number, first := 0, true
	for text := range bytes.Lines(data) {
		if number++; len(t.mistakes) > maxMistakes {
			break
		}
		if mistake := wrongLine(text); mistake != "" {
			t.fail(number, "", "%s", mistake)
			continue
		}
		line.Reset(text)
		switch fields, err := records.Read(); {
		case errors.Is(err, io.EOF): // a blank line
			continue
		case err != nil:
			t.fail(number, "", wrongQuote)
		default:
			t.record(fields, number, first)
		}
		first = false
	}
	switch {
	case t.Len() > 0 || len(t.mistakes) > 0:
	case t.prices != nil:
		t.fail(1, "", "has no prices, must have a line for at least one model")
	default:
		t.fail(1, "", "has no lines, must have at least one: "+mustBeLine)
	}
}

// wrongQuote is the mistake of a line whose quotes are no CSV.
const wrongQuote = "has a wrong quote: a text with a comma stands in quotes, with each quote in it doubled, and has no line break"

// maxTableLine bounds a line, in bytes: the fields of a line take up to 80 bytes of memory each
// while it is read.
const maxTableLine = 64 << 10

// wrongLine returns why a line can be no record, "" where it can be one.
func wrongLine(line []byte) string {
	switch {
	case len(line) > maxTableLine:
		return fmt.Sprintf("has %d bytes, must be a line of at most %d", len(line), maxTableLine)
	case line[0] == '#':
		return "begins with #, and a table has no comments: must be left out, or begin with a value in quotes"
	case bytes.Count(line, []byte{'"'})%2 != 0:
		return wrongQuote
	}
	return ""
}

func (t *Table) record(fields []string, line int, first bool) {
	names := columns()
	if len(fields) == 1 && strings.TrimSpace(fields[0]) == "" {
		return
	}
	switch {
	case first && t.pricesOf(fields, line):
		return
	case t.prices != nil:
		t.price(fields, line)
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
	t.value(names[0], fields[0], line)
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
	t.start(fields, &x)
	if x.burst > 0 && x.requests == 0 {
		t.fail(line, names[3], "is %d, must be left out: requests_per_unit 0 denies every hit", x.burst)
	}
	if len(t.mistakes) == before {
		t.rows.add(fields[0], x)
	}
}

// start reads the columns about the start of windows.
func (t *Table) start(fields []string, x *row) {
	if len(fields) > 4 && strings.TrimSpace(fields[4]) != "" {
		text := strings.TrimSpace(fields[4])
		day, err := strconv.ParseUint(text, 10, 8)
		if x.day = uint8(day); err != nil || day < 1 || day > 31 {
			t.fail(int(x.line), columns()[4], "is %s, %s", quote(text), mustBeDay)
		}
	}
	if len(fields) <= 5 {
		return
	}
	name := strings.TrimSpace(fields[5])
	if name == "" {
		return
	}
	i := slices.Index(t.zones, name)
	switch {
	case i >= 0:
		x.zone = uint16(i + 1)
	case len(t.zones) == maxTableZones:
		t.fail(int(x.line), columns()[5], "is %s after %d other names, more than there are time zones", quote(name), maxTableZones)
	default:
		t.zones = append(t.zones, name)
		x.zone = uint16(len(t.zones))
	}
}

// maxTableZones is more than the IANA database has time zones.
const maxTableZones = 1000

func (t *Table) value(column, v string, line int) {
	switch plain := strings.TrimSpace(v); {
	case plain == "":
		t.fail(line, column, "is empty, must be the value of an entry, as Envoy sends it")
	case !utf8.ValidString(v):
		t.fail(line, column, "%s is not UTF-8, which Envoy sends", quote(v))
	case plain != v:
		t.warn(line, column, "has blanks around it, which a request must send too: probably %s is meant", quote(plain))
	case strings.Contains(v, "*"):
		t.warn(line, column, "a `*` in a table is a plain character")
	}
}

func (t *Table) number(fields []string, column int, lowest uint64, line int) uint32 {
	text := strings.TrimSpace(fields[column])
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n < lowest {
		t.fail(line, columns()[column], "is %s, must be a whole number from %d to %d", quote(text), lowest, uint32(math.MaxUint32))
	}
	return uint32(n)
}

// tabled is the table of a limit, and the periods that the units of the table stand for in that
// limit.
type tabled struct {
	*Table
	suffixes [Week + 1]string // of the keys, by unit in the table

	aligned map[alignment]alignedRow // by the columns of a row, under a limit with align
}

// Table returns the table that has numbers of single values for the limit, nil without one. See
// [Rule.LimitFor].
func (l *Limit) Table() *Table {
	if l.tabled == nil {
		return nil
	}
	return l.tabled.Table
}

// WithoutTable returns the limit with its own numbers alone.
func (l *Limit) WithoutTable() Limit {
	plain := *l
	plain.tabled, plain.TableLine = nil, 0
	return plain
}

// LimitFor writes limit n of the rule to a limit, with the numbers for a descriptor. A table may
// have numbers for the value of the entry at the rule's last level. The value is as in the
// descriptor, even where the rule has a wildcard. found is false if the limit has no table, or the
// table does not have that value; the numbers are then the rule's own. The rule must match the
// descriptor. LimitFor does not allocate.
func (r *Rule) LimitFor(n int, entries []Entry, to *Limit) (found bool) {
	l := &r.Limits[n]
	*to = *l
	last := len(r.Levels) - 1
	if l.tabled == nil || last < 0 || last >= len(entries) {
		return false
	}
	x := l.tabled.rows.find(entries[last].Value)
	if x == nil {
		return false
	}
	l.tabled.apply(x, to)
	return true
}

func (t *tabled) apply(x *row, to *Limit) {
	if x.unit != 0 {
		to.Unit, to.Multiplier, to.suffix = Unit(x.unit), 1, t.suffixes[x.unit]
		to.Period = to.Unit.Duration()
	}
	if own := x.alignment(); own != (alignment{}) && to.Calendar != nil {
		a := t.aligned[own]
		to.Calendar, to.suffix = a.calendar, a.suffix
	}
	to.Requests, to.TableLine = x.requests, int(x.line)
	switch {
	case x.burst > 0:
		to.Burst = x.burst
	case x.requests == 0: // which denies every hit, and has nothing to burst
		to.Burst = 0
	}
}

// TablePath returns the path of a table that a rule file names: the name itself, or the name in the
// directory of the file.
func TablePath(file, name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(filepath.Dir(file), name)
}

// tables is the tables that the documents of one load name.
type tables struct {
	size  int // of all tables, in bytes
	known map[*Table]bool
}

func (t *tree) readTable(fs fields, l *limit) {
	at, given := fs.get("table")
	if !given {
		return
	}
	name, ok := t.text(at)
	if !ok {
		return
	}
	table := t.tableOf(at, name, ".csv")
	switch {
	case table == nil:
		return
	case table.prices != nil:
		t.fail(at, "%s is a table of prices, must stand under prices", table.file)
		return
	case fs.has("budget"):
		t.fail(at, "stands beside budget: the numbers of a table are hits, must be one of the two")
		return
	}
	l.tabled, l.tableAt = &tabled{Table: table}, at
	t.checkRows(at, l)
}

// tableOf returns the table that a value of a rule names, nil after a mistake. The name must end in
// an extension: .txt is for ranges.
func (t *tree) tableOf(at value, name, extension string) *Table {
	switch {
	case !strings.HasSuffix(name, extension) || strings.ContainsRune(name, 0):
		t.fail(at, "is %s, must be the name of a file that ends in %s", quote(name), extension)
		return nil
	case t.source.Table == nil:
		t.fail(at, "is a file, and these rules do not come from a file: must be left out")
		return nil
	}
	return t.table(at, name)
}

// table returns the table of a name, nil after a mistake.
func (t *tree) table(at value, name string) *Table {
	if known, ok := t.named[name]; ok {
		return known
	}
	table, err := t.source.Table(name)
	if t.named == nil {
		t.named = make(map[string]*Table)
	}
	t.named[name] = table
	if err != nil {
		t.fail(at, "%v", err)
	}
	if err != nil || table == nil || t.tables.known[table] {
		return table
	}
	t.tables.known[table] = true
	if text, tooLarge := t.options.TableTooLarge(table.size, t.tables.size); tooLarge {
		t.fail(at, "%s: %s", table.file, text)
		t.named[name] = nil
		return nil
	}
	for _, e := range table.mistakes {
		t.record(e)
	}
	t.tables.size += table.size
	t.warnings = append(t.warnings, table.warnings...)
	return table
}

// checkRows records the mistakes in a table that come from the limit.
func (t *tree) checkRows(at value, l *limit) {
	before := len(t.errs)
	fail := func(x *row, column, format string, args ...any) { t.failRow(at, l, x, column, format, args...) }
	for i := range l.tabled.rows.all {
		if len(t.errs)-before >= maxMistakes/10 {
			return
		}
		x := &l.tabled.rows.all[i]
		column, mistake := t.alignRow(l, x)
		switch {
		case mistake != "":
			fail(x, column, "%s", mistake)
		case x.unit != 0 && l.Algorithm == algorithms.Concurrency:
			fail(x, "unit", "is %s, must be left out for concurrency", Unit(x.unit))
		case x.burst != 0 && l.Algorithm != algorithms.TokenBucket && l.Algorithm != 0:
			fail(x, "burst", "is %d, must be left out for %s: only token_bucket has a burst", x.burst, l.Algorithm)
		default:
			if text := tooMany(l.Algorithm, x.requests, cmp.Or(Unit(x.unit).Duration(), l.Period)); text != "" {
				fail(x, "requests_per_unit", "%s", text)
			}
		}
	}
}

// failRow records a mistake in a line of a limit's table, which a value of the rules makes one.
func (t *tree) failRow(at value, l *limit, x *row, column, format string, args ...any) {
	e := Error{File: l.tabled.file, Line: int(x.line), Path: column}
	e.Text = fmt.Sprintf(format, args...) + " (" + position(t.file, at.line) + ")"
	t.record(e)
}

// checkTables records the tables of a descriptor whose last level has one value, or one count for
// all values.
func (t *tree) checkTables(all []limit, l Level) {
	for i := range all {
		if all[i].tabled == nil {
			continue
		}
		at := all[i].tableAt
		switch {
		case l.ShareThreshold:
			t.fail(at, "stands beside share_threshold: must be one of the two, as values with one count have one limit")
		case l.Match != nil && l.Match.joins:
			t.fail(at, "stands under a match whose values have one count: must be left out, as values with one count have one limit")
		case l.Value != "" && !strings.Contains(l.Value, "*") && l.Match == nil:
			t.fail(at, "is for a descriptor without a value, or with a `*` in it, but the value is %s", quote(l.Value))
		}
	}
}

// setSuffixes gives the limits of a rule the ends of their keys for each unit that their tables may
// have. Such keys differ from the keys of all other limits of the rule, which are as without a
// table.
func (t *tree) setSuffixes(rule *Rule) {
	var taken []string
	for i := range rule.Limits {
		taken = append(taken, rule.Limits[i].suffix)
	}
	for i := range rule.Limits {
		l := &rule.Limits[i]
		if l.tabled == nil || l.Algorithm == algorithms.Concurrency {
			continue
		}
		if l.Calendar != nil {
			l.setAlignedSuffixes(i, taken)
			continue
		}
		for unit := Second; unit <= Week; unit++ {
			suffix := l.suffix
			like := l.Limit
			like.Period = unit.Duration()
			for ordinal := t.firstOrdinal(len(rule.Limits)); like.Period != l.Period; ordinal++ {
				if suffix = suffixOf(like, ordinal); !slices.Contains(taken, suffix) {
					taken = append(taken, suffix)
					break
				}
			}
			l.tabled.suffixes[unit] = suffix
		}
	}
}

// rows is the lines of a table, findable by their values. There are no pointers to single lines, so
// that a collection of garbage costs little. The zero value is empty.
type rows struct {
	values []byte // of all lines, one after another
	all    []row  // in the order of the lines

	// slots are an open hash table with linear probing: the number of a row from 1, or 0. A third of
	// the slots is free. slot i of n is for hashes from i/n of the largest (Lemire, "Fast random
	// integer generation in an interval", 2019).
	slots []uint32
	seed  maphash.Seed // of this process: nobody can choose values that collide
}

type row struct {
	end      uint32 // of the value in rows.values; it begins where the row before ends
	line     uint32 // from 1
	requests uint32
	burst    uint32 // 0: as in the limit
	unit     uint8  // a Unit; UnitUnknown: the period is as in the limit
	day      uint8  // of the month; 0: as in the limit
	zone     uint16 // index in Table.zones, from 1; 0: as in the limit
}

// shortestLine is the size of the shortest line: a value, a comma, a number and a line break.
const shortestLine = 4

func (r *rows) grow(data []byte) {
	lines := 0
	for line := range bytes.Lines(data) {
		if len(line) >= shortestLine-1 { // the last line may lack a line break
			lines++
		}
	}
	r.all = make([]row, 0, lines)
	r.values = make([]byte, 0, len(data))
}

// add adds a row, except for its end.
func (r *rows) add(value string, x row) {
	r.values = append(r.values, value...)
	x.end = uint32(len(r.values))
	r.all = append(r.all, x)
}

func (r *rows) value(i int) []byte {
	begin := uint32(0)
	if i > 0 {
		begin = r.all[i-1].end
	}
	return r.values[begin:r.all[i].end]
}

// index makes the rows findable. index calls twice for each row whose value an earlier row has.
func (r *rows) index(twice func(again, first *row, value string)) {
	r.seed = maphash.MakeSeed()
	r.slots = make([]uint32, len(r.all)+len(r.all)/2+1)
	for i := range r.all {
		value := r.value(i)
		slot := r.slotOf(maphash.Bytes(r.seed, value))
		for r.slots[slot] != 0 && string(r.value(int(r.slots[slot]-1))) != string(value) {
			slot = r.after(slot)
		}
		if n := r.slots[slot]; n != 0 {
			twice(&r.all[i], &r.all[n-1], string(value))
			continue
		}
		r.slots[slot] = uint32(i + 1)
	}
}

func (r *rows) find(value string) *row {
	if len(r.slots) == 0 {
		return nil
	}
	for slot := r.slotOf(maphash.String(r.seed, value)); r.slots[slot] != 0; slot = r.after(slot) {
		if i := int(r.slots[slot] - 1); string(r.value(i)) == value {
			return &r.all[i]
		}
	}
	return nil
}

// slotOf returns the slot at which the search for a hash begins.
func (r *rows) slotOf(hash uint64) int {
	slot, _ := bits.Mul64(hash, uint64(len(r.slots)))
	return int(slot)
}

func (r *rows) after(slot int) int {
	if slot++; slot == len(r.slots) {
		return 0
	}
	return slot
}

// hasStart is beside the unit of a row with a day or a zone.
const hasStart = 0x80

// zoneOf returns the name of a zone by its number in a row, "" for none.
func zoneOf(zones []string, number uint16) string {
	if number == 0 {
		return ""
	}
	return zones[number-1]
}

// meaning identifies the values and their numbers. The meaning is the sum of the SHA-256 of the
// rows, so that their order has no effect.
func (r *rows) meaning(zones []string) (sum meaning) {
	var text []byte
	for i := range r.all {
		x := &r.all[i]
		text = binary.AppendUvarint(text[:0], uint64(x.requests))
		text = binary.AppendUvarint(text, uint64(x.burst))
		if x.day == 0 && x.zone == 0 {
			text = append(text, x.unit)
		} else {
			text = append(text, x.unit|hasStart, x.day)
			text = appendSized(text, zoneOf(zones, x.zone))
		}
		text = append(text, r.value(i)...)
		sum.add(text)
	}
	return sum
}

// add adds the SHA-256 of a line.
func (m *meaning) add(text []byte) {
	one := sha256.Sum256(text)
	carry := uint64(0)
	for n := 0; n < len(m); n += 8 {
		var part uint64
		part, carry = bits.Add64(binary.LittleEndian.Uint64(m[n:]), binary.LittleEndian.Uint64(one[n:]), carry)
		binary.LittleEndian.PutUint64(m[n:], part)
	}
}
