package descriptors

import (
	"cmp"
	"math"
	"slices"
	"strconv"
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
	for item := range t.descriptorsOf(v) {
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
	own := rule.Path[len(rule.Path)-len(label):] // holds the key and the value, so that the texts of the document are free
	l.Key, l.Value = own[:len(l.Key)], own[len(own)-len(l.Value):]
	rule.Levels = append(rule.Levels, l)
	if !t.fitsPaths(v, rule) {
		return
	}
	child := &node{rule: rule}
	t.domain.rules = append(t.domain.rules, rule)
	below := len(t.domain.rules)
	rule.Shadow = t.flag(fs, "shadow_mode")
	rule.Quota = t.flag(fs, "quota_mode")
	t.rule = rule
	t.readGroup(t.overlaidGroup(fs), rule)
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
	value, valueAt, isText := t.valueOf(fs, v)
	l := Level{Key: key, Value: value, ValueToMetric: t.flag(fs, "value_to_metric"), ShareThreshold: t.flag(fs, "share_threshold")}
	t.checkBlanks(at, key)
	t.checkValue(valueAt, value, key)
	ok = t.levelMatch(fs, &l) && isText && ok
	if value == "" && strings.Contains(key, "*") {
		t.warn(at, at.line, "a `*` in a key is a plain character: only values have wildcards")
	}
	if !l.ShareThreshold || !ok || strings.Contains(value, "*") || l.Match != nil {
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

// valueOf decodes the value of a descriptor, as textOf does.
func (t *tree) valueOf(fs fields, v value) (text string, at value, ok bool) {
	at, given := fs.get("value")
	if !given || at.node.Kind == yaml.ScalarNode || t.beyond(at) {
		return t.textOf(fs, v, "value")
	}
	meant := "a pattern is match: {prefix: /api/}, in place of value"
	if n := len(at.node.Content); at.node.Kind == yaml.SequenceNode || n > 0 && at.node.Content[n-1].ShortTag() == "!!null" { // {a, b}
		meant = "one of several values is match: {any_of: [a, b]}, in place of value"
	}
	t.fail(at, "is %s, must be text: %s", kind(at), meant)
	return "", at, false
}

// add puts a node below its parent, which must not have a child of the same key and value yet.
func (t *tree) add(v value, fs fields, parent, child *node, l Level, label string) {
	b := parent.branchOf(l.Key)
	if first := b.find(&l); first != nil {
		must := ": descriptors side by side must differ in key or value"
		if l.Match != nil && !l.Match.hasRangesOf(first.matcher()) { // documents of two directories, with MergeDomains
			must = ", with other ranges in a file of the same name: give one of the two files another name"
		}
		t.fail(v, "%s is given twice%s%s", quote(label), t.where(", first", first.rule), must)
		return
	}
	at := v
	for _, key := range [...]string{"value", "match"} {
		if given, ok := fs.get(key); ok {
			at = given
		}
	}
	if l.Match != nil {
		if b.regexSize += l.Match.size; b.regexSize > maxRegexTotal {
			t.fail(at, "is one regular expression too many: all of one key side by side have %d instructions, must have at most %d",
				b.regexSize, maxRegexTotal)
			return
		}
	}
	t.checkReach(at, b, &l, child.rule)
	b.add(&l, child)
}

// metadata decodes a map of anything that JSON knows; nil for null.
func (t *tree) metadata(v value) map[string]any {
	if isNull(v) {
		return nil
	}
	m, _ := t.jsonMap(v).(map[string]any)
	return m
}

// json turns a value into nil, bool, float64, string, []any or map[string]any.
func (t *tree) json(v value) any {
	switch {
	case t.beyond(v):
		return nil
	case v.node.Kind == yaml.MappingNode:
		return t.jsonMap(v)
	case v.node.Kind == yaml.SequenceNode:
		list := []any{}
		for item := range t.each(v, "a list") {
			list = append(list, t.json(item))
		}
		return list
	}
	if is, ok := truth(v.node); ok {
		return is
	}
	switch v.node.ShortTag() {
	case "!!null":
		return nil
	case "!!int", "!!float":
		return t.jsonNumber(v)
	default:
		s, _ := t.text(v)
		return s
	}
}

func (t *tree) jsonMap(v value) any {
	all, ok := t.pairs(v)
	if !ok {
		return nil
	}
	m := make(map[string]any, len(all))
	for _, f := range all {
		m[f.key] = t.json(f.value)
	}
	return m
}

// jsonNumber returns a number as JSON has them, which know no infinity.
func (t *tree) jsonNumber(v value) any {
	text := strings.ReplaceAll(v.node.Value, "_", "")
	if n, err := strconv.ParseInt(text, 0, 64); err == nil {
		return float64(n)
	}
	if n, err := strconv.ParseUint(text, 0, 64); err == nil {
		return float64(n)
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(n, 0) || math.IsNaN(n) {
		t.fail(v, "is %s, must be a finite number", kind(v))
		return nil
	}
	return n
}

// maxCovers bounds the wildcards of one key that a new sibling is compared with.
const maxCovers = 1000

// checkReach warns when earlier siblings match everything that a new one matches.
func (t *tree) checkReach(at value, b *branch, l *Level, rule *Rule) {
	isText := l.Match == nil
	if isText && l.Value != "" && !strings.Contains(l.Value, "*") {
		return
	}
	// A key without a value comes after all its patterns, wherever it stands.
	if isText && l.Value != "" && strings.Trim(l.Value, "*") == "" && b.rest != nil && (b.rest.rule.Holds() || !rule.Holds()) {
		t.warn(at, at.line, "matches every value, so that the key without a value%s is never reached", line(", in line %d,", b.rest.rule.Line))
	}
	for i := range b.patterns[:min(len(b.patterns), maxCovers)] {
		earlier := b.patterns[i].node.rule
		if !b.patterns[i].covers(l) || earlier.Holds() && !rule.Holds() { // descriptors without a holder pass the earlier one by
			continue
		}
		pattern, where := b.patterns[i].shown(), t.where("", earlier)
		switch {
		case !isText:
			t.warn(at, at.line, "is never reached: every value that it matches goes to %s%s, which comes first", pattern, where)
		case l.Value == "":
			t.warn(at, at.line, "is never reached without a value: %s%s matches every value", pattern, where)
		default:
			t.warn(at, at.line, "is reached by its own text only: every other value that it matches goes to %s%s, which comes first",
				pattern, where)
		}
		return
	}
}

// where returns a text and the position of a rule; "" when the position is unknown.
func (t *tree) where(text string, r *Rule) string {
	if r.File != t.file {
		return text + " at " + position(r.File, r.Line)
	}
	return line(text+" in line %d", r.Line)
}

// MaxGroups is the most groups of a domain. A request may ask all of them, one after another.
const MaxGroups = 16

const maxGroupName = 63 // bytes

// readGroup decodes the group of a rule. The modes of the rule must be decoded before.
func (t *tree) readGroup(fs fields, rule *Rule) {
	at, given := fs.get("group")
	name, ok := "", false
	if given {
		name, ok = t.text(at)
	}
	if !ok {
		return
	}
	plain := strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == ""
	switch {
	case name == "" || len(name) > maxGroupName || !plain:
		t.fail(at, "is %s, must be 1 to %d letters, digits, `-`, `_` and `.`, as in Envoy's priority_groups", quote(name), maxGroupName)
	case !rule.Quota:
		t.fail(at, "is for quotas: the descriptor must have quota_mode: true, too")
	case rule.Shadow:
		t.fail(at, "must not stand beside shadow_mode: a group that never denies cannot be spent")
	default:
		n := slices.Index(t.domain.groups, name)
		if n < 0 {
			if len(t.domain.groups) == MaxGroups {
				t.fail(at, "is one group too many, a domain must have at most %d", MaxGroups)
				return
			}
			n = len(t.domain.groups)
			t.domain.groups = append(t.domain.groups, name)
		}
		rule.Group = Group{Name: name, Rank: n + 1}
	}
}

// checkFlags warns about shadow_mode, quota_mode or group on a descriptor without limits, above
// limits without that flag. The author may expect the flag to apply to the limits below.
func (t *tree) checkFlags(fs fields, rule *Rule, below []*Rule) {
	_, one := fs.get("rate_limit")
	_, many := fs.get("rate_limits")
	check := func(key string, is func(*Rule) bool) {
		without := func(r *Rule) bool { return len(r.Limits) > 0 && !is(r) }
		if i := slices.IndexFunc(below, without); i >= 0 && is(rule) && !one && !many {
			at, _ := fs.get(key)
			t.warn(at, at.line, "has no effect: it counts for the descriptor's own limits, not for those below it%s",
				line(", as in line %d", below[i].Line))
		}
	}
	check("shadow_mode", func(r *Rule) bool { return r.Shadow })
	check("quota_mode", func(r *Rule) bool { return r.Quota })
	check("group", func(r *Rule) bool { return r.Group.Rank > 0 })
}

func (t *tree) checkReplaces() {
	for _, x := range t.replaces {
		if !t.names[x.name] {
			t.warn(x.at, x.at.line, "no limit of this domain has the name %s, so this replaces nothing", quote(x.name))
		}
	}
}
