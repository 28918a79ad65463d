package descriptors

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of one source. Without them a few lines of aliases stand for more values than memory holds.
const (
	maxDepth    = 200     // maps and lists in one another
	maxExpanded = 500_000 // values reached through aliases, each time they are
	maxMistakes = 1_000   // shown; likewise warnings
)

// reader decodes one source. It collects mistakes instead of stopping at the first.
type reader struct {
	file     string
	options  Options
	errs     []Error
	warnings []Warning
	trees    []*tree          // of its documents
	merged   map[string]*tree // by domain, of all sources: the first document of each, with MergeDomains

	expanded int  // values reached through aliases so far
	stopped  bool // a bound was hit: everything reads as empty
	deep     bool // the bound of depth was reported
}

// value is a value of a document and where it is.
type value struct {
	node    *yaml.Node // never an alias
	line    int        // of an alias, where the alias stands
	place   *place     // nil for the document itself
	depth   int
	aliased bool // reached through an alias
}

// place is a path to a value, linked from its end so that it costs nothing until it is shown.
type place struct {
	parent *place
	key    string
	index  int // in a list; key is "" then
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

func (r *reader) root(n *yaml.Node) value { return r.resolve(value{node: n, line: n.Line}) }

// under returns the value as if it stood below a key.
func (v value) under(key string) value {
	v.place = &place{parent: v.place, key: key}
	return v
}

// resolve follows aliases and counts what they bring.
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

// beyond reports whether a value is out of bounds, so that it reads as empty.
func (r *reader) beyond(v value) bool {
	return r.stopped || v.depth > maxDepth && v.node.Kind != yaml.ScalarNode
}

// fail records a mistake at a value.
func (r *reader) fail(v value, format string, args ...any) { r.failKey(v, v.line, format, args...) }

// failKey records a mistake at a value, on a line of its own.
func (r *reader) failKey(v value, line int, format string, args ...any) {
	r.record(Error{File: r.file, Line: line, Path: v.place.String(), Text: fmt.Sprintf(format, args...)})
}

// failAt records a mistake of the whole source.
func (r *reader) failAt(line int, format string, args ...any) {
	r.record(Error{File: r.file, Line: line, Text: fmt.Sprintf(format, args...)})
}

func (r *reader) record(e Error) {
	switch {
	case len(r.errs) < maxMistakes:
		r.errs = append(r.errs, e)
	case len(r.errs) == maxMistakes:
		r.stopped = true
		r.errs = append(r.errs, Error{File: e.File, Line: e.Line, Text: "too many mistakes, what follows was not read"})
	}
}

// warn records a warning at a value.
func (r *reader) warn(v value, line int, format string, args ...any) {
	if len(r.warnings) < maxMistakes {
		r.warnings = append(r.warnings, Warning{File: r.file, Line: line, Path: v.place.String(), Text: fmt.Sprintf(format, args...)})
	}
}

// items returns the values of a list, none for null. What it must be instead of anything else completes "must be".
func (r *reader) items(v value, must string) []value {
	switch {
	case r.beyond(v) || isNull(v):
		return nil
	case v.node.Kind != yaml.SequenceNode:
		r.fail(v, "is %s, must be %s", kind(v), must)
		return nil
	}
	all := make([]value, 0, len(v.node.Content))
	for i, n := range v.node.Content {
		all = append(all, r.resolve(value{
			node: n, line: n.Line, place: &place{parent: v.place, index: i}, depth: v.depth + 1, aliased: v.aliased,
		}))
	}
	return all
}

// field is one key of a map and its value.
type field struct {
	key     string
	keyLine int
	value
}

// pairs returns the fields of a map, each key once, without looking at which keys there are; false when it is no map. Of a
// key given twice the last counts. What a merge key `<<` brings counts where the map itself does not have the key, as YAML
// has it.
func (r *reader) pairs(v value) ([]field, bool) {
	if r.beyond(v) {
		return nil, false
	}
	if v.node.Kind != yaml.MappingNode {
		if v.place == nil {
			r.fail(v, "the document is %s, must be a map", kind(v))
		} else {
			r.fail(v, "is %s, must be a map", kind(v))
		}
		return nil, false
	}
	own, merged := newFieldSet(len(v.node.Content)/2), newFieldSet(0)
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		k, n := v.node.Content[i], v.node.Content[i+1]
		for k.Kind == yaml.AliasNode && k.Alias != nil {
			k = k.Alias
		}
		if k.Kind != yaml.ScalarNode || !isText(k) {
			r.failKey(v, v.node.Content[i].Line, "has a key that is %s, must be text", kind(value{node: k}))
			continue
		}
		f := field{key: k.Value, keyLine: v.node.Content[i].Line, value: r.resolve(value{
			node: n, line: n.Line, place: &place{parent: v.place, key: k.Value}, depth: v.depth + 1, aliased: v.aliased,
		})}
		if k.ShortTag() == "!!merge" {
			r.merge(f, v, own, merged)
			continue
		}
		if first, ok := own.get(f.key); ok {
			r.warn(f.value, f.keyLine, "is given twice: this one counts, not that of line %d", first.keyLine)
			r.warnPartial(f, first)
		} else if m, ok := merged.get(f.key); ok {
			r.warnPartial(f, m)
		}
		own.set(f)
	}
	for _, f := range merged.list {
		if _, ok := own.get(f.key); !ok {
			own.set(f)
		}
	}
	return own.list, true
}

// merge adds the fields that the value of a merge key brings, one map or a list of maps of which the first ones win. The
// places of the fields are those they get, in v.
func (r *reader) merge(f field, v value, own, merged *fieldSet) {
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
			if first, ok := own.get(g.key); ok {
				r.warn(g.value, first.keyLine, "counts, not the one merged after it (envoyproxy/ratelimit takes that one)")
			}
			merged.set(g)
		}
	}
}

// warnPartial warns where a map takes the place of another one, merged or given before, with keys that the first does not
// have: the reference fills them in from there.
func (r *reader) warnPartial(f, other field) {
	if f.key != "rate_limit" && f.key != "metadata" || f.node.Kind != yaml.MappingNode || other.node.Kind != yaml.MappingNode {
		return
	}
	has := make(map[string]bool)
	for i := 0; i < len(f.node.Content); i += 2 {
		has[f.node.Content[i].Value] = true
	}
	for i := 0; i < len(other.node.Content); i += 2 {
		if key := other.node.Content[i].Value; !has[key] {
			r.warn(f.value, f.keyLine, "stands for all of the other one, whose %s is dropped (envoyproxy/ratelimit keeps that)", quote(key))
			return
		}
	}
}

// fieldSet is fields by key, in the order in which the keys first came.
type fieldSet struct {
	list  []field
	index map[string]int
}

func newFieldSet(size int) *fieldSet {
	return &fieldSet{list: make([]field, 0, size), index: make(map[string]int, size)}
}

func (s *fieldSet) get(key string) (field, bool) {
	if i, ok := s.index[key]; ok {
		return s.list[i], true
	}
	return field{}, false
}

func (s *fieldSet) set(f field) {
	if i, ok := s.index[f.key]; ok {
		s.list[i] = f
		return
	}
	s.index[f.key] = len(s.list)
	s.list = append(s.list, f)
}
