package descriptors

import (
	"cmp"
	"slices"
	"strings"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// document is a decoded document.
type document struct {
	*Domain
	path string // of its domain
}

// defaults is what a document says of all its limits.
type defaults struct {
	algorithm     algorithms.Algorithm // 0: not one that is known, which has been reported
	countRejected *bool                // nil: it depends on the algorithm
	onStoreError  OnStoreError
}

// tree builds the domain of one document.
type tree struct {
	*reader
	domain   *Domain
	defaults defaults
	names    map[string]bool // of limits
	replaces []replaced      // whose names must be among them
}

// replaced is a name in a list of replaces.
type replaced struct {
	name string
	at   value
}

// document decodes a document; false when it does not name its domain.
func (r *reader) document(v value) (document, bool) {
	fs, ok := r.fields(v, documentForm)
	if !ok {
		return document{}, false
	}
	t := &tree{reader: r, domain: &Domain{File: r.file, Line: v.line}, names: make(map[string]bool)}
	t.defaults.algorithm = algorithms.FixedWindow
	at, named := fs.get("domain")
	if named {
		t.domain.Line = at.line
		t.domain.Name, ok = r.text(at)
		t.merge()
	} else {
		at = v.under("domain")
	}
	r.trees = append(r.trees, t)
	if ok && t.domain.Name == "" {
		r.fail(at, "is missing or empty, must be the name of the domain, as Envoy sends it")
	}
	if d, ok := fs.get("defaults"); ok {
		t.readDefaults(d)
	}
	if d, ok := fs.get("descriptors"); ok {
		t.descriptors(d, &t.domain.root)
	}
	if d, ok := fs.get("default"); ok {
		t.readDefault(d)
	}
	return document{t.domain, at.place.String()}, t.domain.Name != ""
}

// merge makes the document one with those of its domain that came before it, when domains are to be merged.
func (t *tree) merge() {
	if !t.options.MergeDomains || t.domain.Name == "" {
		return
	}
	if first := t.merged[t.domain.Name]; first != nil {
		t.domain, t.names = first.domain, first.names
		return
	}
	t.merged[t.domain.Name] = t
}

// readDefaults decodes what counts for all limits of the document.
func (t *tree) readDefaults(v value) {
	fs, _ := t.fields(v, defaultsForm)
	if a, ok := fs.get("algorithm"); ok {
		t.defaults.algorithm = t.algorithm(a)
	}
	if c, ok := fs.get("count_rejected"); ok {
		is := t.countRejected(c)
		t.defaults.countRejected = &is
	}
	t.defaults.onStoreError = t.onStoreError(fs)
}

// readDefault decodes the limit of descriptors that match nothing.
func (t *tree) readDefault(v value) {
	if first := t.domain.Default; first != nil {
		t.fail(v, "the domain has a default already, at %s: it can have one", position(first.File, first.Line))
		return
	}
	rule := &Rule{Domain: t.domain.Name, Path: "default", File: t.file, Line: v.line}
	if l, ok := t.limit(v, ownLimitForm); ok {
		t.setLimits(rule, []limit{l})
	}
	t.domain.Default = rule
	t.domain.rules = append(t.domain.rules, rule)
}

// descriptors decodes the children of a node.
func (t *tree) descriptors(v value, parent *node) {
	for _, item := range t.items(v, "a list of descriptors") {
		t.descriptor(item, parent)
	}
}

func (t *tree) descriptor(v value, parent *node) {
	fs, ok := t.fields(v, descriptorForm)
	if !ok {
		return
	}
	l, key, ok := t.level(v, fs)
	label := key
	if l.value != "" {
		label += "=" + l.value
	}
	rule := &Rule{Domain: t.domain.Name, Path: label, File: t.file, Line: v.line}
	if parent.rule != nil && len(parent.rule.Path)+len(label) > maxPath || len(label) > maxPath {
		t.fail(v, "its keys and values from the root on are too long, must have at most %d bytes together", maxPath)
		return
	}
	if parent.rule != nil {
		rule.Path = parent.rule.Path + "," + label
		rule.levels = slices.Clone(parent.rule.levels)
	}
	rule.levels = append(rule.levels, l)
	child := &node{rule: rule}
	t.domain.rules = append(t.domain.rules, rule)
	below := len(t.domain.rules)
	if ok {
		t.add(v, fs, parent, child, key, l.value, label)
	}

	rule.Shadow = t.flag(fs, "shadow_mode")
	rule.Quota = t.flag(fs, "quota_mode")
	rule.DetailedMetric = t.flag(fs, "detailed_metric")
	rule.detailed = rule.DetailedMetric || slices.ContainsFunc(rule.levels, func(l level) bool { return l.valueToMetric })
	if m, ok := fs.get("metadata"); ok {
		rule.Metadata = t.metadata(m)
	}
	all := t.limits(fs)
	ofAll := t.onStoreErrorOf(fs, all)
	for i := range all {
		all[i].OnStoreError = cmp.Or(all[i].OnStoreError, ofAll)
	}
	t.setLimits(rule, all)
	if d, ok := fs.get("descriptors"); ok {
		t.descriptors(d, child)
	}
	t.checkFlags(fs, rule, t.domain.rules[below:])
}

// maxPath bounds the keys and values of a descriptor and those above it, in bytes: each descriptor below repeats them, so that
// a few aliases of a long text could fill the memory.
const maxPath = 64 << 10

// level decodes what a descriptor says of its entry, and returns the entry's key; false when the descriptor matches nothing
// that could be told.
func (t *tree) level(v value, fs fields) (l level, key string, ok bool) {
	defer func() { l.key = key }()
	at, given := fs.get("key")
	if given {
		key, ok = t.text(at)
	} else {
		at, ok = v.under("key"), true
	}
	if ok && key == "" {
		t.fail(at, "is missing or empty, must be the key of an entry, as Envoy sends it")
		ok = false
	}
	if at, given := fs.get("value"); given {
		value, isText := t.text(at)
		l.value, ok = value, ok && isText
	}
	if l.value == "" && strings.Contains(key, "*") {
		t.warn(at, at.line, "a `*` in a key is a plain character: only values have wildcards")
	}
	l.valueToMetric = t.flag(fs, "value_to_metric")
	if l.shared = t.flag(fs, "share_threshold"); l.shared && ok && !strings.Contains(l.value, "*") {
		at, _ := fs.get("share_threshold")
		l.shared = false
		if strings.Contains(key, "*") { // the reference takes that for a wildcard
			t.warn(at, at.line, "does nothing without a `*` in the value")
			return l, key, ok
		}
		t.fail(at, "is for wildcards, whose values then share one count: the value must have a `*`, but is %s", quote(l.value))
	}
	return l, key, ok
}

// add puts a node below its parent, which must have none for the same key and value yet.
func (t *tree) add(v value, fs fields, parent, child *node, key, value, label string) {
	b := parent.branchOf(key)
	if first := b.find(value); first != nil {
		where := line(", first in line %d", first.rule.Line)
		if first.rule.File != t.file {
			where = ", first at " + position(first.rule.File, first.rule.Line)
		}
		t.fail(v, "%s is given twice%s: descriptors side by side must differ in key or value", quote(label), where)
		return
	}
	at, ok := fs.get("value")
	if !ok {
		at = v
	}
	t.checkReach(at, b, value)
	b.add(value, child)
}

// flag returns a boolean of a map, false when it is not given.
func (t *tree) flag(fs fields, key string) bool {
	v, ok := fs.get(key)
	if !ok {
		return false
	}
	return t.boolean(v)
}
