package descriptors

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"go.yaml.in/yaml/v3"
)

// Bounds of one source. Without them, a few lines of aliases repeat more values than memory holds.
const (
	maxDepth    = 200     // maps and lists in one another
	maxExpanded = 500_000 // values reached through aliases, each time
	maxMistakes = 1_000   // reported; likewise warnings
)

type reader struct {
	file      string
	source    *Source
	options   Options
	errs      []Error
	warnings  []Warning
	trees     []*tree              // of its documents
	keys      map[form][2][]string // by form, see form.keys
	merged    map[string]*tree     // of all sources, with MergeDomains: the first document of each domain
	tables    *tables              // of all sources
	overlay   *overlays            // of all sources; nil for none
	calendars *calendars           // of all sources
	limits    map[Limit][]Limit    // of all sources, see share
	named     map[string]*Table    // of this source, by the name in the document; nil after a mistake

	piece  int     // the size of a piece, see split
	pieces *pieces // of the descriptors of the document; nil: they are in its nodes, or were read

	paths    *int // bytes of the paths and levels of all rules of all sources so far
	patterns *int // bytes of all patterns, likewise

	aliases  bool // the document has aliases: a value may stand in several places
	expanded int  // values reached through aliases so far
	stopped  bool // a bound was reached: everything else reads as empty
	deep     bool // the bound of depth was reported
}

type value struct {
	node    *yaml.Node // never an alias
	line    int        // of an alias, the line of the alias itself
	place   *place     // nil for the document itself
	depth   int
	aliased bool // reached through an alias

	overlay *overlayEntry // that the value is a word of; nil: the value is the document's own
}

// place is the path to a value, linked from its end, so that only messages build the text.
type place struct {
	parent *place
	key    string
	index  int // in a list, where key is ""
}

// String returns the path: `descriptors[1].rate_limit.unit`.
func (p *place) String() string {
	if p == nil {
		return ""
	}
	parent := p.parent.String()
	switch {
	case p.key == "":
		return parent + "[" + strconv.Itoa(p.index) + "]"
	case strings.Trim(p.key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "":
		return parent + "[" + quote(p.key) + "]"
	case parent == "":
		return p.key
	default:
		return parent + "." + p.key
	}
}

// under returns the value with the place of a key below it.
func (v value) under(key string) value {
	v.place = &place{parent: v.place, key: key}
	return v
}

// resolve follows aliases and counts the values that they repeat.
func (r *reader) resolve(v value) value {
	for v.node.Kind == yaml.AliasNode && v.node.Alias != nil {
		v.node, v.aliased = v.node.Alias, true
	}
	if v.aliased {
		if r.expanded++; r.expanded > maxExpanded && !r.stopped {
			r.stopped = true
			r.failAt(v.line, "aliases repeat too many values, must be at most %d", maxExpanded)
		}
	}
	if v.depth > maxDepth && v.node.Kind != yaml.ScalarNode && !r.deep {
		r.deep = true
		r.failAt(v.line, "nested too deeply, must be at most %d levels of maps and lists", maxDepth)
	}
	return v
}

// widest is how many times as large as Options.MaxBytes the paths and levels of all rules may be,
// and how many times the patterns. In usual rules both take about as much as the documents.
const widest = 4

// fitsPaths counts the memory that a rule takes because it repeats the entries above it.
func (r *reader) fitsPaths(v value, rule *Rule) bool {
	size := len(rule.Path) + len(rule.Levels)*int(unsafe.Sizeof(Level{}))
	return r.takes(v, size, r.paths, "descriptors repeat too many keys and values of the descriptors above them")
}

// takes adds bytes of memory, of which rules can take far more than their documents have, to a sum.
// An excess is a mistake, once.
func (r *reader) takes(v value, size int, sum *int, mistake string) bool {
	most := widest * cmp.Or(r.options.MaxBytes, DefaultMaxBytes)
	if *sum > most {
		return false
	}
	if *sum += size; *sum > most {
		r.fail(v, "all %s: with this one more than %d bytes", mistake, most)
		r.stopped = true
		return false
	}
	return true
}

// beyond reports whether a value is out of bounds and must read as empty.
func (r *reader) beyond(v value) bool {
	return r.stopped || v.depth > maxDepth && v.node.Kind != yaml.ScalarNode
}

func (r *reader) fail(v value, format string, args ...any) { r.failKey(v, v.line, format, args...) }

// failKey records a mistake at a value, in another line.
func (r *reader) failKey(v value, line int, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if v.overlay != nil {
		text += v.overlay.sets()
	}
	r.record(Error{File: r.file, Line: line, Path: v.place.String(), Text: text})
}

func (r *reader) failAt(line int, format string, args ...any) {
	r.failKey(value{}, line, format, args...)
}

func (r *reader) record(e Error) {
	switch {
	case len(r.errs) < maxMistakes:
		r.errs = append(r.errs, e)
	case len(r.errs) == maxMistakes:
		r.stopped = true
		r.errs = append(r.errs, Error{File: e.File, Line: e.Line, Text: "too many mistakes, the rest was not read"})
	}
}

func (r *reader) warn(v value, line int, format string, args ...any) {
	if len(r.warnings) < maxMistakes {
		r.warnings = append(r.warnings, Warning{File: r.file, Line: line, Path: v.place.String(), Text: fmt.Sprintf(format, args...)})
	}
}

// items returns the values of a list; null is an empty list. must completes "must be" in a mistake.
func (r *reader) items(v value, must string) []value { return slices.Collect(r.each(v, must)) }

// each yields the values of a list; null is an empty list. must completes "must be" in a mistake.
func (r *reader) each(v value, must string) iter.Seq[value] {
	return func(yield func(value) bool) {
		switch {
		case r.beyond(v) || isNull(v):
			return
		case v.node.Kind != yaml.SequenceNode:
			r.fail(v, "is %s, must be %s", kind(v), must)
			return
		}
		for i, n := range v.node.Content {
			if item := r.item(v, n, i); r.stopped || !yield(item) {
				return
			}
		}
	}
}

// item returns the value of element i of list v.
func (r *reader) item(v value, n *yaml.Node, i int) value {
	return r.resolve(value{node: n, line: n.Line, place: &place{parent: v.place, index: i}, depth: v.depth + 1, aliased: v.aliased, overlay: v.overlay})
}

type field struct {
	key     string
	keyLine int
	merged  bool // a merge key brought it
	value
}

// fieldSet is fields by key, in the order in which the keys first came.
type fieldSet struct {
	list  []field
	index map[string]int // nil for a small set
}

// smallSet is the number of fields up to which a search is faster than an index.
const smallSet = 16

// find returns the place of a key in the list; false for an unknown key.
func (s *fieldSet) find(key string) (int, bool) {
	if s.index != nil {
		i, known := s.index[key]
		return i, known
	}
	i := slices.IndexFunc(s.list, func(f field) bool { return f.key == key })
	return i, i >= 0
}

func (s *fieldSet) add(f field) {
	if len(s.list) == smallSet {
		s.index = make(map[string]int)
		for i := range s.list {
			s.index[s.list[i].key] = i
		}
	}
	if s.index != nil {
		s.index[f.key] = len(s.list)
	}
	s.list = append(s.list, f)
}

// pairs returns the fields of a map with any keys, each key once; false when v is no map. Of a key
// given twice the last counts. A field of the map itself wins over a field of a merge key `<<`, as
// YAML has it.
func (r *reader) pairs(v value) ([]field, bool) {
	if r.beyond(v) {
		return nil, false
	}
	if v.node.Kind != yaml.MappingNode {
		document := "the document "
		if v.place != nil {
			document = ""
		}
		r.fail(v, "%sis %s, must be a map", document, kind(v))
		return nil, false
	}
	set := &fieldSet{list: make([]field, 0, min(len(v.node.Content)/2, maxMistakes))}
	for i := 0; i+1 < len(v.node.Content) && !r.stopped; i += 2 {
		k, n := v.node.Content[i], v.node.Content[i+1]
		line := k.Line
		for k.Kind == yaml.AliasNode && k.Alias != nil {
			k = k.Alias
		}
		if k.Kind != yaml.ScalarNode || !isText(k) {
			r.failKey(v, line, "has a key that is %s, must be text", kind(value{node: k}))
			continue
		}
		f := field{key: k.Value, keyLine: line, value: r.resolve(value{
			node: n, line: n.Line, place: &place{parent: v.place, key: k.Value}, depth: v.depth + 1, aliased: v.aliased, overlay: v.overlay,
		})}
		if k.ShortTag() == "!!merge" {
			r.merge(f, v, set)
		} else {
			r.set(set, f)
		}
	}
	return set.list, true
}

// merge adds the fields that the value of a merge key brings: one map, or a list of maps of which
// the first ones win. The places of the fields are in v.
func (r *reader) merge(f field, v value, to *fieldSet) {
	all := []value{f.value}
	if f.node.Kind == yaml.SequenceNode {
		all = r.items(f.value, "a list of maps")
	}
	for _, m := range slices.Backward(all) {
		if r.beyond(m) {
			return
		}
		if m.node.Kind != yaml.MappingNode {
			r.fail(m, "is %s, must be a map or a list of maps to merge", kind(m))
			continue
		}
		m.place = v.place
		fields, _ := r.pairs(m)
		for _, g := range fields {
			g.merged = true
			r.set(to, g)
		}
	}
}

// set adds a field. Of two fields of one key the later counts, except a merged one after one of the
// map itself. Warnings report a key given twice, and cases in which the reference takes the other
// field, or keys of the other field.
func (r *reader) set(to *fieldSet, f field) {
	i, known := to.find(f.key)
	if !known {
		to.add(f)
		return
	}
	first := to.list[i]
	if f.merged && !first.merged {
		r.warn(f.value, first.keyLine, "counts, not the one merged after it (envoyproxy/ratelimit takes that one)")
		return
	}
	to.list[i] = f
	if f.merged {
		return
	}
	if !first.merged {
		r.warn(f.value, f.keyLine, "is given twice: this one counts, not the one in line %d", first.keyLine)
	}
	if f.key != "rate_limit" && f.key != "metadata" || f.node.Kind != yaml.MappingNode || first.node.Kind != yaml.MappingNode {
		return
	}
	has := make(map[string]bool)
	for i := 0; i < len(f.node.Content); i += 2 {
		has[f.node.Content[i].Value] = true
	}
	for i := 0; i < len(first.node.Content); i += 2 {
		if key := first.node.Content[i].Value; !has[key] {
			r.warn(f.value, f.keyLine, "replaces the other one and drops its %s (envoyproxy/ratelimit keeps that)", quote(key))
			return
		}
	}
}

func isNull(v value) bool { return v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!null" }

// isText reports whether a scalar is text to YAML. Dates are, as for the reference.
func isText(n *yaml.Node) bool {
	switch n.ShortTag() {
	case "!!null", "!!bool", "!!int", "!!float", "!!binary":
		return false
	default: // !!str, !!timestamp, !!merge, somebody's own
		return true
	}
}

// kind describes a value, for "is …, must be …".
func kind(v value) string {
	tag := v.node.ShortTag()
	switch {
	case v.node.Kind == yaml.MappingNode:
		return "a map"
	case v.node.Kind == yaml.SequenceNode:
		return "a list"
	case tag == "!!null":
		return "empty"
	case tag == "!!int":
		return "the number " + clip(v.node.Value)
	case tag == "!!float":
		return "the floating-point number " + clip(v.node.Value)
	case tag == "!!bool":
		return "the boolean " + clip(v.node.Value)
	case tag == "!!binary":
		return "binary data"
	default:
		return "the text " + quote(v.node.Value)
	}
}

// clip shortens a number, which can be written in very many digits.
func clip(s string) string {
	if q := quote(s); len(q) != len(s)+2 {
		return q
	}
	return s
}

// text returns a text; "" for null. Like the reference, text takes whole numbers and booleans
// without quotes as they are written. It refuses a float: 1.10 and 1.1 are one number and two
// texts.
func (r *reader) text(v value) (string, bool) {
	switch {
	case r.beyond(v):
		return "", false
	case v.node.Kind != yaml.ScalarNode:
		r.fail(v, "is %s, must be text", kind(v))
		return "", false
	case isText(v.node):
		return v.node.Value, true
	}
	switch v.node.ShortTag() {
	case "!!null":
		return "", true
	case "!!int", "!!bool":
		return v.node.Value, true
	case "!!binary":
		var s string
		if err := v.node.Decode(&s); err == nil && utf8.ValidString(s) {
			return s, true
		}
		r.fail(v, "is binary data that is not UTF-8, must be text")
		return "", false
	}
	r.fail(v, "is %s, must be text: put it in quotes", kind(v))
	return "", false
}

func (r *reader) boolean(v value) bool {
	is, ok := truth(v.node)
	switch {
	case ok || r.beyond(v) || isNull(v):
	case v.node.Kind == yaml.ScalarNode && isText(v.node) && (v.node.Value == "true" || v.node.Value == "false"):
		r.fail(v, "is %s, must be true or false without quotes", kind(v))
	default:
		r.fail(v, "is %s, must be true or false", kind(v))
	}
	return is
}

// truth returns a boolean, if it is one. Unquoted words of YAML 1.1 are, as for the reference.
func truth(n *yaml.Node) (is, ok bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" && (n.ShortTag() != "!!str" || n.Style != 0) {
		return false, false
	}
	switch n.Value {
	case "true", "True", "TRUE", "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
		return true, true
	case "false", "False", "FALSE", "n", "N", "no", "No", "NO", "off", "Off", "OFF":
		return false, true
	default:
		return false, false
	}
}

func (r *reader) count(v value, lowest int64) (uint32, bool) {
	return r.countUpTo(v, lowest, math.MaxUint32)
}

func (r *reader) countUpTo(v value, lowest, most int64) (uint32, bool) {
	if r.beyond(v) {
		return 0, false
	}
	scalar := v.node.Kind == yaml.ScalarNode
	number := scalar && v.node.ShortTag() == "!!int"
	n, err := strconv.ParseInt(strings.ReplaceAll(v.node.Value, "_", ""), 0, 64)
	if number && err == nil && n >= lowest && n <= most {
		return uint32(n), true
	}
	is, quotes := kind(v), ""
	switch {
	case number:
		is = clip(v.node.Value)
	case scalar && isText(v.node) && strings.Trim(v.node.Value, "0123456789") == "":
		quotes = ", without quotes"
	}
	r.fail(v, "is %s, must be a whole number from %d to %d%s", is, lowest, most, quotes)
	return 0, false
}
