package descriptors

import (
	"cmp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxPath bounds the keys and values of a descriptor and of the descriptors above it, in bytes. The
// path of every descriptor repeats these texts: without the bound, a few aliases of a long text
// could fill the memory.
const maxPath = 64 << 10

// descriptors decodes the children of a node.
func (t *tree) descriptors(fs fields, parent *node) {
	v, ok := fs.get("descriptors")
	if !ok {
		return
	}
	for item := range t.each(v, "a list of descriptors") {
		t.descriptor(item, parent)
		if !t.aliases {
			*item.node = yaml.Node{} // frees the values below: rules may be as large
		}
	}
}

// descriptor decodes one child of a node and all below. All options of a descriptor are read here.
func (t *tree) descriptor(v value, parent *node) {
	fs, ok := t.fields(v, descriptorForm)
	if !ok {
		return
	}
	l, ok := t.level(v, fs)
	label := l.Key
	if l.Value != "" {
		label += "=" + l.Value
	}
	rule := &Rule{Domain: t.domain.Name, Path: label, File: t.file, Line: v.line}
	if parent.rule != nil && len(parent.rule.Path)+len(label) > maxPath || len(label) > maxPath {
		t.fail(v, "the keys and values from the root on are too long, must have at most %d bytes together", maxPath)
		return
	}
	if parent.rule != nil {
		rule.Path = parent.rule.Path + "," + label
		rule.Levels = slices.Clone(parent.rule.Levels)
	}
	rule.Levels = append(rule.Levels, l)
	child := &node{rule: rule}
	t.domain.rules = append(t.domain.rules, rule)
	below := len(t.domain.rules)
	rule.Shadow = t.flag(fs, "shadow_mode")
	rule.Quota = t.flag(fs, "quota_mode")
	rule.DetailedMetric = t.flag(fs, "detailed_metric")
	rule.detailed = rule.DetailedMetric || slices.ContainsFunc(rule.Levels, func(l Level) bool { return l.ValueToMetric })
	if m, ok := fs.get("metadata"); ok {
		rule.Metadata = t.metadata(m)
	}
	all := t.limits(fs)
	ofAll := t.onStoreErrorOf(fs, all)
	for i := range all {
		all[i].OnStoreError = cmp.Or(all[i].OnStoreError, ofAll)
	}
	t.checkTables(all, l)
	t.setLimits(rule, all)
	if ok {
		t.add(v, fs, parent, child, l, label)
	}
	t.descriptors(fs, child)
	t.checkHolds(all, child)
	t.checkFlags(fs, rule, t.domain.rules[below:])
}

// level decodes the entry that a descriptor matches; false after a mistake in its key or value.
func (t *tree) level(v value, fs fields) (Level, bool) {
	key, at, ok := t.textOf(fs, v, "key")
	if ok && key == "" {
		t.fail(at, "is missing or empty, must be the key of an entry, as Envoy sends it")
		ok = false
	}
	value, valueAt, isText := t.textOf(fs, v, "value")
	ok = ok && isText
	l := Level{Key: key, Value: value, ValueToMetric: t.flag(fs, "value_to_metric"), ShareThreshold: t.flag(fs, "share_threshold")}
	t.checkBlanks(at, key)
	t.checkValue(valueAt, l)
	if value == "" && strings.Contains(key, "*") {
		t.warn(at, at.line, "a `*` in a key is a plain character: only values have wildcards")
	}
	if !l.ShareThreshold || !ok || strings.Contains(value, "*") {
		return l, ok
	}
	l.ShareThreshold = false
	at, _ = fs.get("share_threshold")
	if strings.Contains(key, "*") { // which the reference takes for a wildcard
		t.warn(at, at.line, "does nothing without a `*` in the value")
		return l, true
	}
	t.fail(at, "makes all values of a wildcard share one count: the value must have a `*`, but is %s", quote(value))
	return l, true
}

// add puts a node below its parent, which must not have a child of the same key and value yet.
func (t *tree) add(v value, fs fields, parent, child *node, l Level, label string) {
	b := parent.branchOf(l.Key)
	if first := b.find(l.Value); first != nil {
		t.fail(v, "%s is given twice%s: descriptors side by side must differ in key or value", quote(label), t.where(", first", first.rule))
		return
	}
	at, ok := fs.get("value")
	if !ok {
		at = v
	}
	t.checkReach(at, b, l.Value, child.rule)
	b.add(l.Value, child)
}
