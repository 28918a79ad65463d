package descriptors

import (
	"cmp"
	"fmt"
	"strings"
)

// DefaultMaxBytes is the bound on the size of all sources of [Options] where none is given, see
// [Size].
const DefaultMaxBytes = 20 << 20

// valueBytes is the least size of a value. The parser needs about 200 bytes for a value, however
// short its text is.
const valueBytes = 12

// Size returns the size of a document for [Options.MaxBytes]: its length in bytes, or 12 for each
// of its values if that is more. Values are keys, texts, numbers and elements of lists. Size takes
// their number from the marks of YAML and JSON, and may count a mark inside a text. Loading takes
// up to about 35 times the size in memory, and the loaded rules up to 7 times.
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
	most := cmp.Or(o.MaxBytes, DefaultMaxBytes)
	return excess(size, before, most, "rules", cmp.Or(o.MaxBytesSetting, "max bytes"))
}

// TableTooLarge is TooLarge for a table beside the tables before, of MaxTableBytes together.
func (o Options) TableTooLarge(size, before int) (text string, tooLarge bool) {
	most := cmp.Or(o.MaxTableBytes, DefaultMaxTableBytes)
	return excess(size, before, most, "tables", cmp.Or(o.MaxTableBytesSetting, "max table bytes"))
}

// excess words how far a size is above a bound.
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

// fits reports whether a source fits beside the sources of the size before, and returns the size of
// all. An excess is a mistake.
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
