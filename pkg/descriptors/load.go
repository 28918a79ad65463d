package descriptors

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// MaxLimits is the most limits of one descriptor, and the most names in one list of replaces. A
// request with 100 descriptors then takes at most 4000 charges, each of which takes memory.
const MaxLimits = 40

// MaxLogEntries is the largest requests_per_unit of a sliding_window_log, which stores every hit.
const MaxLogEntries = 10_000

// Options bounds and adapts rules. The zero value is valid.
type Options struct {
	Granularity time.Duration // the step in which the store counts time: every period must be a multiple of it; 0 allows any period

	// MergeDomains joins all documents of one domain, in the order of the sources: their descriptors
	// become siblings, must differ, and share one default at most. The defaults of a document apply to
	// its own limits. Without MergeDomains, one document is one domain.
	MergeDomains bool

	// OriginalKeys gives a rule of several limits keys that [AppendOriginalKey] refuses:
	// envoyproxy/ratelimit has one limit per rule, and its keys do not distinguish several limits.
	OriginalKeys bool

	// DropRejected leaves denied hits uncounted by a fixed window too, unless the limit or the
	// document says otherwise.
	DropRejected bool

	// CalendarMonths aligns a fixed window of one month to the calendar in UTC, unless the limit has
	// an alignment of its own.
	CalendarMonths bool

	// Strict treats every warning as a mistake.
	Strict bool

	MaxBytes      int // maximum [Size] of all sources together; 0 means DefaultMaxBytes
	MaxTableBytes int // maximum size of all tables together; 0 means DefaultMaxTableBytes
}

// Source is one rule document in bytes, or a settings file that holds a list of rule documents.
// Load does not keep Data.
type Source struct {
	Name string // the path of the file, say; begins every message about the source. U+FFFD stands for bytes that are not UTF-8
	Data []byte // YAML or JSON

	Settings  bool // Data is a settings file: its list `domains`, if any, holds rule documents, and Load ignores its other keys
	Generated bool // a program wrote Data, so that messages show no line

	// Table returns the table of a name that stands in the document. Load calls Table once for each
	// name, and once more after a mistake of YAML in a large document. The error is a mistake at that
	// place in the document. Nil means that the document comes from no file, and that a table in it is
	// a mistake.
	Table func(name string) (*Table, error)

	// Mistakes and warnings of the program that generated Data, without File. Load reports both lists
	// with its own. With mistakes, Data may be empty.
	Mistakes []Error
	Warnings []Warning
}

// Equal reports whether Load cannot tell two sources apart by anything but their tables.
func (s Source) Equal(o Source) bool {
	return s.Name == o.Name && bytes.Equal(s.Data, o.Data) && s.Settings == o.Settings && s.Generated == o.Generated &&
		slices.Equal(s.Mistakes, o.Mistakes) && slices.Equal(s.Warnings, o.Warnings)
}

// shownName returns the name of a file for messages, which have no other text than UTF-8.
func shownName(file string) string { return strings.ToValidUTF8(file, "\uFFFD") }

// Load turns documents into rules. After a mistake in any document there are no rules. The
// error is then an [Errors] with every mistake in all documents, sorted by file and line. Warnings,
// sorted the same way, are about accepted parts that the author probably did not mean, such as
// every part that envoyproxy/ratelimit silently ignores. No sources make rules without domains.
//
// Load does not trust documents. Deep or self-referential documents are mistakes, not panics. The
// bounds are 200 levels of maps and lists, 500 000 values repeated through aliases,
// Options.MaxBytes and Options.MaxTableBytes. Load refuses a source above that bound unread, and
// goes on without it.
func Load(sources []Source, o Options) (*Rules, []Warning, error) {
	return loadInPieces(sources, o, pieceBytes)
}

// loadInPieces is Load with pieces of at least size bytes, see split. If pieces of a document were
// not read, as after a mistake of YAML, loadInPieces begins anew and parses each document at once.
func loadInPieces(sources []Source, o Options, size int) (*Rules, []Warning, error) {
	var (
		mistakes Errors
		warnings []Warning
		rules    = &Rules{domains: make(map[string]*Domain)}
		readers  = make([]*reader, 0, len(sources))
		merged   = make(map[string]*tree)
		tables   = &tables{known: make(map[*Table]bool)}
		dates    = &calendars{}
		limits   = make(map[Limit][]Limit)
		paths    int
		patterns int
		together int // size of the sources so far
	)
	newReader := func(s *Source) *reader {
		return &reader{
			file: shownName(s.Name), source: s, options: o, keys: make(map[form][2][]string), piece: size,
			merged: merged, tables: tables, calendars: dates, limits: limits, paths: &paths, patterns: &patterns,
		}
	}
	overlay, overlayReaders := readOverlays(sources, newReader)
	for i, s := range sources {
		if r := overlayReaders[i]; r != nil {
			readers = append(readers, r)
			continue
		}
		r := newReader(&s)
		r.overlay = overlay
		readers = append(readers, r)
		for _, d := range r.documents(s, &together) {
			if first := rules.domains[d.Name]; first != nil && first != d.Domain {
				r.errs = append(r.errs, Error{File: d.File, Line: d.Line, Path: d.path, Text: fmt.Sprintf(
					"domain %s is defined already, at %s: a domain must be one document", quote(d.Name), position(first.File, first.Line))})
				continue
			}
			rules.domains[d.Name] = d.Domain
		}
		if r.pieces != nil {
			return loadInPieces(sources, o, math.MaxInt)
		}
	}
	for _, r := range readers {
		for _, t := range r.trees { // which know all names by now
			t.checkReplaces()
		}
		mistakes = append(mistakes, r.errs...)
		warnings = append(warnings, r.warnings...)
	}
	if o.Strict {
		for _, w := range warnings {
			mistakes = append(mistakes, Error(w))
		}
		warnings = nil
	}
	if rules.overlay = len(overlay.entries) > 0; len(rules.domains) > 0 { // else the rules are yet to come
		warnings = append(warnings, overlay.unused()...)
	}
	byPosition := func(a, b Error) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line)) }
	slices.SortStableFunc(mistakes, byPosition)
	slices.SortStableFunc(warnings, func(a, b Warning) int { return byPosition(Error(a), Error(b)) })
	if len(mistakes) > 0 {
		return nil, warnings, mistakes
	}
	rules.zoned = dates.zoned()
	for _, d := range rules.Domains() {
		if len(rules.domains) == 1 {
			rules.only = d
		}
		if i := slices.Index(d.rules, d.Default); i >= 0 { // of several documents it need not be last
			d.rules = append(slices.Delete(d.rules, i, i+1), d.Default)
		}
		for _, r := range d.rules {
			r.ID = len(rules.all)
			rules.all = append(rules.all, r)
			rules.mostCharges = max(rules.mostCharges, r.Charges())
			rules.learns = rules.learns || slices.ContainsFunc(r.Limits, func(l Limit) bool { return l.Estimate.Learns() })
		}
	}
	return rules, warnings, nil
}

// DefaultMaxBytes is the bound on the size of all sources of [Options] where none is given, see
// [Size].
const DefaultMaxBytes = 20 << 20

// valueBytes is the least size of a value: the parser needs about 200 bytes even for a short one.
const valueBytes = 12

// Size returns the size of a document for [Options.MaxBytes]: its length in bytes, or 12 for each
// of its values if that is more. Values are keys, texts, numbers and elements of lists. Size takes
// their number from the marks of YAML and JSON, and may count a mark inside a text. Loading takes
// up to about 35 times the size in memory, and the loaded rules up to 7 times. A large list of
// descriptors is parsed in pieces, and takes less.
func Size(data []byte) int { return max(len(data), valueBytes*values(data)) }

// values returns the number of values of a document, by the marks `:`, `,`, `[`, `{`, `-` and `?`.
// The number is at least half of the true one.
func values(data []byte) int {
	n := 0
	for i, b := range data {
		switch b {
		case ':':
			if i > 0 && strings.IndexByte(`"'}]`, data[i-1]) >= 0 || ends(data, i+1) {
				n += 2 // a key and its value
			}
		case ',', '[', '{':
			n++
		case '-', '?':
			if ends(data, i+1) {
				n++
			}
		}
	}
	return n
}

// ends reports whether a mark of YAML ends at an index: white space, the end of the data or another
// mark follows. \xc2 and \xe2 begin the line breaks of Unicode.
func ends(data []byte, i int) bool {
	return i == len(data) || strings.IndexByte(" \t\r\n,[]{}\xc2\xe2", data[i]) >= 0
}

// TooLarge reports whether a source is too large beside the sources before, and returns the text of
// that mistake. All sources together may have MaxBytes. A caller that knows the length of a source
// can refuse the source unread.
func (o Options) TooLarge(size, before int) (text string, tooLarge bool) {
	return excess(size, before, cmp.Or(o.MaxBytes, DefaultMaxBytes), "rules", "max-rules-bytes")
}

// TableTooLarge is TooLarge for a table beside the tables before, of MaxTableBytes together.
func (o Options) TableTooLarge(size, before int) (text string, tooLarge bool) {
	return excess(size, before, cmp.Or(o.MaxTableBytes, DefaultMaxTableBytes), "tables", "max table bytes")
}

func excess(size, before, most int, things, setting string) (text string, is bool) {
	if size <= most-before {
		return "", false
	}
	beside := ""
	if before > 0 {
		beside = fmt.Sprintf(" beside %d bytes of other %s", before, things)
	}
	return fmt.Sprintf("has %d bytes%s, must be at most %d together (%s)", size, beside, most, setting), true
}

// fits returns the size of all sources with this one. An excess is a mistake.
func (r *reader) fits(data []byte, before int) (together int, ok bool) {
	size := len(data)
	text, tooLarge := r.options.TooLarge(size, before)
	if !tooLarge {
		size = Size(data)
		text, tooLarge = r.options.TooLarge(size, before)
	}
	if tooLarge && size > len(data) {
		text = fmt.Sprintf("has %d bytes with so many values that it counts as %d: it %s", len(data), size, text)
	}
	if tooLarge {
		r.failAt(0, "%s", text)
		return before, false
	}
	return before + size, true
}
