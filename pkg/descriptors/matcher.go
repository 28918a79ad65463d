package descriptors

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/weirproxy/weir/internal/ranges"
)

// Matcher is the pattern of a level that has `match` in place of `value`. Immutable, and safe for
// concurrent use.
type Matcher struct {
	program // has the verdict on most values

	kind  matcherKind
	joins bool           // several values have one count
	regex *regexp.Regexp // nil where the program has the verdict on all values that are not too long
	path  *template
	parts []*Matcher // of any_of, in order; of not the one pattern
	cidr  cidr

	text  string // the pattern as rule files write it
	value string // of a text, a wildcard and a prefix: the text itself
	size  int    // instructions of all regular expressions in it
}

// matcherKind is the form of a pattern.
type matcherKind uint8

const (
	exactMatcher    matcherKind = iota // a text without `*`, in any_of or not
	wildcardMatcher                    // a text with `*`, in any_of or not
	prefixMatcher
	regexMatcher
	pathMatcher
	cidrMatcher
	notMatcher
	anyMatcher
)

// Bounds on patterns. The time of a regular expression grows with its instructions and with the
// length of the value.
const (
	maxRegexBytes   = 1024 // of an expression
	maxRegexSize    = 250  // instructions of an expression
	maxRegexTotal   = 2000 // instructions of all expressions of one key under one parent
	maxRegexValue   = 2048 // bytes of a value that an expression looks at
	maxAlternatives = 100  // patterns of all any_of of a match
)

// String returns the pattern as rule files write it, such as `{prefix: /api/}`.
func (m *Matcher) String() string { return m.text }

// verdict says whether a value matches a pattern.
type verdict uint8

const (
	no    verdict = iota
	maybe         // the value is too long for a regular expression, and all else leaves it open
	yes
)

func verdictOf(is bool) verdict {
	if is {
		return yes
	}
	return no
}

// test returns the verdict on a value.
func (m *Matcher) test(value string) verdict {
	v := m.program.test(value)
	if v != maybe {
		return v
	}
	switch m.kind {
	case regexMatcher:
		if len(value) <= maxRegexValue {
			v = verdictOf(m.regex.MatchString(value))
		}
	case cidrMatcher:
		v = verdictOf(m.cidr.Has(value))
	case notMatcher:
		v = yes - m.parts[0].test(value)
	default:
		_, v = m.part(value)
	}
	return v
}

// opening returns bits of the first bytes of all values that test does not refuse.
func (m *Matcher) opening() opening {
	switch prefix, _, _ := m.ends(); {
	case m.kind == cidrMatcher && m.cidr.IsIPv4():
		return newOpening("0").and(newOpening("9")).and(newOpening(":"))
	case m.kind == anyMatcher:
		o := m.parts[0].opening()
		for _, p := range m.parts[1:] {
			o = o.and(p.opening())
		}
		return o
	default:
		return newOpening(prefix)
	}
}

// part returns the first pattern of any_of that a value surely matches, else the first one that it
// may match, or nil.
func (m *Matcher) part(value string) (first *Matcher, best verdict) {
	for _, p := range m.parts {
		switch v := p.test(value); {
		case v == yes:
			return p, yes
		case v > best:
			first, best = p, v
		}
	}
	return first, best
}

// why returns the reason why a value matches: the part of any_of, the variables of a path, the
// range of an address, or the length. "" is for other patterns.
func (m *Matcher) why(value string) string {
	switch m.kind {
	case pathMatcher:
		return m.path.why(value)
	case cidrMatcher:
		return "in " + m.cidr.Longest(value)
	case anyMatcher:
		p, _ := m.part(value)
		if more := p.why(value); more != "" {
			return p.text + ", " + more
		}
		return p.text
	default:
		if m.test(value) == maybe {
			return fmt.Sprintf("a value of %d bytes is too long for the expression, and counts as one that matches", len(value))
		}
		return ""
	}
}

// appendCounted appends the text that a matching value counts by: the value itself, unless joins.
func (m *Matcher) appendCounted(dst []byte, value string) []byte {
	switch {
	case !m.joins:
		return append(dst, value...)
	case m.kind == pathMatcher:
		return m.path.appendCounted(dst, value)
	case m.kind == cidrMatcher:
		return ranges.AppendSubnet(dst, value, m.cidr.v4, m.cidr.v6)
	default:
		return m.counting(value).appendCounted(dst, value)
	}
}

// counting returns the part of a pattern that joins values, for a matching value: m itself, or a
// part of any_of.
func (m *Matcher) counting(value string) *Matcher {
	for m.joins && m.kind == anyMatcher {
		m, _ = m.part(value)
	}
	return m
}

// alternatives returns the number of patterns of all any_of of the pattern.
func (m *Matcher) alternatives() int {
	n := 0
	if m.kind == anyMatcher {
		n = len(m.parts)
	}
	for _, p := range m.parts {
		n += p.alternatives()
	}
	return n
}

// bytesOfInstruction is about the memory of an instruction of a regular expression.
const bytesOfInstruction = 72

// bytes returns about the memory of the pattern. The ranges of a file have a bound of their own.
func (m *Matcher) bytes() int {
	n := int(unsafe.Sizeof(*m)) + len(m.text) + len(m.program)
	if m.regex != nil {
		n += m.size * bytesOfInstruction
	}
	for _, p := range m.parts {
		n += p.bytes()
	}
	return n
}

// covers reports whether m surely matches every value that o matches.
func (m *Matcher) covers(o *Matcher) bool {
	prefix, _, beginning := m.ends()
	longer, _, _ := o.ends()
	switch {
	case m.text == o.text && m.kind == o.kind:
		return true
	case o.kind == anyMatcher:
		return !slices.ContainsFunc(o.parts, func(p *Matcher) bool { return !m.covers(p) })
	case m.kind == anyMatcher:
		return slices.ContainsFunc(m.parts, func(p *Matcher) bool { return p.covers(o) })
	case o.kind == exactMatcher, m.kind == wildcardMatcher && o.kind == wildcardMatcher:
		return m.test(o.value) == yes
	case m.kind == prefixMatcher, m.kind == wildcardMatcher && beginning:
		return strings.HasPrefix(longer, prefix)
	case m.kind == pathMatcher && o.kind == pathMatcher:
		return m.path.covers(o.path)
	case m.kind == cidrMatcher && o.kind == cidrMatcher:
		return m.cidr.Covers(o.cidr.Set)
	default:
		return false
	}
}

// newTextMatcher returns the pattern of a text as `value` has it: each `*` stands for any text.
func newTextMatcher(value string) *Matcher {
	m := &Matcher{text: written(value), value: value}
	if m.program = program(appendStep(nil, textStep, value)); strings.Contains(value, "*") {
		m.kind, m.program = wildcardMatcher, newWildcard(value)
	}
	return m
}

func newPrefix(prefix string) *Matcher {
	return &Matcher{
		text: "{prefix: " + written(prefix) + "}", kind: prefixMatcher, value: prefix,
		program: program(appendStep(appendStep(nil, textStep, prefix), restStep, "")),
	}
}

// appendValue appends the part of a key about the value of an entry, behind its length and a mark.
func (l *Level) appendValue(dst []byte, value string) []byte {
	switch {
	case l.Match == nil && l.ShareThreshold:
		return appendText(dst, '*', l.Value)
	case l.ShareThreshold:
		return appendText(dst, '~', l.Value)
	case l.Match == nil:
		return appendText(dst, ':', value)
	}
	m := l.Match.counting(value)
	if !m.joins {
		return appendText(dst, ':', value)
	}
	// The length of the text stands before the text, and is not known before.
	from := len(dst)
	dst = m.appendCounted(dst, value)
	size := len(dst) - from
	dst = append(strconv.AppendInt(dst, int64(size), 10), '~')
	head := len(dst) - from - size
	var length [24]byte
	copy(length[:], dst[from+size:])
	copy(dst[from+head:], dst[from:from+size])
	copy(dst[from:], length[:head])
	return dst
}

// appendMeaning appends the meaning of the files of ranges of a pattern. All else is in its text.
func (m *Matcher) appendMeaning(dst []byte) []byte {
	if m.kind == cidrMatcher {
		sum := m.cidr.Sum()
		dst = append(dst, sum[:]...)
	}
	for _, p := range m.parts {
		dst = p.appendMeaning(dst)
	}
	return dst
}

// hasRangesOf reports whether the files of ranges of two patterns of one text have the same ranges.
func (m *Matcher) hasRangesOf(o *Matcher) bool {
	return slices.Equal(m.appendMeaning(nil), o.appendMeaning(nil))
}
