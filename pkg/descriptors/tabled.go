package descriptors

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// tabled is the table of a limit, and the periods that the units of the table stand for in that
// limit.
type tabled struct {
	*Table
	suffixes [Week + 1]string // of the keys, by unit in the table
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

// apply gives a limit, a copy of the one with the table, the numbers of a row.
func (t *tabled) apply(x *row, to *Limit) {
	if x.unit != 0 {
		to.Unit, to.Multiplier, to.suffix = Unit(x.unit), 1, t.suffixes[x.unit]
		to.Period = to.Unit.Duration()
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

// readTable decodes the table of a limit whose other options are decoded.
func (t *tree) readTable(fs fields, l *limit) {
	at, given := fs.get("table")
	if !given {
		return
	}
	name, ok := t.text(at)
	switch {
	case !ok:
		return
	case !strings.HasSuffix(name, ".csv") || strings.ContainsRune(name, 0):
		t.fail(at, "is %s, must be the name of a file that ends in .csv", quote(name))
		return
	case t.source.Table == nil:
		t.fail(at, "is a file, and these rules do not come from a file: must be left out")
		return
	}
	table := t.table(at, name)
	if table == nil {
		return
	}
	l.tabled, l.tableAt = &tabled{Table: table}, at
	t.checkRows(at, l)
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
	fail := func(x *row, column, format string, args ...any) {
		if len(t.errs)-before < maxMistakes/10 {
			e := Error{File: l.tabled.file, Line: int(x.line), Path: column}
			e.Text = fmt.Sprintf(format, args...) + " (" + position(t.file, at.line) + ")"
			t.record(e)
		}
	}
	for i := range l.tabled.rows.all {
		x := &l.tabled.rows.all[i]
		duration := cmp.Or(Unit(x.unit).Duration(), l.Period)
		switch {
		case x.unit != 0 && l.Algorithm == algorithms.Concurrency:
			fail(x, "unit", "is %s, must be left out for concurrency", Unit(x.unit))
		case x.burst != 0 && l.Algorithm != algorithms.TokenBucket && l.Algorithm != 0:
			fail(x, "burst", "is %d, must be left out for %s: only token_bucket has a burst", x.burst, l.Algorithm)
		case l.Algorithm == algorithms.SlidingWindowLog && x.requests > t.options.MaxLogEntries:
			fail(x, "requests_per_unit", "is %d, must be at most %d for sliding_window_log, which remembers every hit", x.requests, t.options.MaxLogEntries)
		case l.Algorithm == algorithms.TokenBucketInteger && duration > 0 && int64(x.requests) > int64(duration):
			fail(x, "requests_per_unit", "is %d, must be at most %d for token_bucket_integer, which refills at most a token per nanosecond",
				x.requests, int64(duration))
		}
	}
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
		case l.Value != "" && !strings.Contains(l.Value, "*"):
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
