package descriptors

import (
	"bytes"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// overlays is the entries of all overlay files. Each gives limits of other sources words that these
// sources do not have. The first entry that matches a limit counts.
type overlays struct {
	entries []*overlayEntry
	groups  bool // an entry sets a group

	anchored map[anchor][]*overlayEntry
	lengths  [anchorKinds][]int // of the texts of anchors
}

// anchor is the beginning of one text of all limits that an entry matches. So most entries need not
// be compared with a limit.
type anchor struct {
	kind anchorKind
	text string
}

// anchorKind is the text of a limit with an anchor.
type anchorKind uint8

const (
	domainAnchor anchorKind = iota
	nameAnchor
	keyAnchor   // of the first entry of the descriptor
	valueAnchor // of the first entry of the descriptor
	anchorKinds
)

// overlayEntry is an element of overlay.
type overlayEntry struct {
	file  string
	line  int
	order int // among all entries

	domain, name *glob // nil: any
	path         []overlayLevel
	deeper       bool // path ends in `**`: more entries may follow
	unit         Unit // UnitUnknown: any

	set      fields
	selector value // for messages

	matched bool // a limit
	used    bool // for a limit
	trial   bool // see try
}

// overlayLevel matches an entry of a descriptor.
type overlayLevel struct{ key, value *glob } // nil: any

// maxOverlay bounds the entries of all overlay files.
const maxOverlay = 1000

// glob is a text in which each `*` stands for zero or more characters.
type glob struct {
	text string
	wild program // with a `*` in the text
}

func newGlob(text string) *glob {
	p := &glob{text: text}
	if strings.Contains(text, "*") {
		p.wild = newWildcard(text)
	}
	return p
}

// beginning returns the text that all matching texts begin with.
func (p *glob) beginning() string {
	if p == nil {
		return ""
	}
	before, _, _ := strings.Cut(p.text, "*")
	return before
}

// covers reports whether a pattern, or its absence, matches a text.
func (p *glob) covers(text string) bool {
	return p == nil || p.text == text || strings.Contains(p.text, "*") && p.wild.test(text) == yes
}

// readOverlays reads the sources that are overlay files, and returns their indexes. Sources that a
// program wrote, such as a control plane, have no overlay.
func readOverlays(sources []Source, newReader func(*Source) *reader) (all *overlays, read map[int]*reader) {
	all, read = new(overlays), make(map[int]*reader)
	for i := range sources {
		s := &sources[i]
		if s.Settings || s.Generated || !bytes.Contains(s.Data, []byte("overlay")) || len(s.Data) > maxOverlay<<10 {
			continue
		}
		probe := newReader(s)
		root, ok := probe.parseAll(bytes.TrimPrefix(s.Data, []byte("\xef\xbb\xbf")))
		if !ok || root.node.Kind != yaml.MappingNode || !hasKey(root.node, "overlay") {
			continue
		}
		r := newReader(s)
		read[i] = r
		r.aliases = probe.aliases
		if _, ok := r.fits(s.Data, 0); ok {
			r.readOverlay(root, all)
		}
	}
	return all, read
}

func hasKey(n *yaml.Node, key string) bool {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return true
		}
	}
	return false
}

func (r *reader) readOverlay(root value, to *overlays) {
	fs, _ := r.fields(root, overlayFileForm)
	list, _ := fs.get("overlay")
	for item := range r.each(list, "a list of maps with for and set") {
		if len(to.entries) == maxOverlay {
			r.fail(item, "is one entry too many, all overlay files together must have at most %d", maxOverlay)
			return
		}
		before := len(r.errs)
		e := &overlayEntry{file: r.file, line: item.line}
		entry, ok := r.fields(item, overlayForm)
		if !ok {
			continue
		}
		r.readSelector(item, entry, e)
		r.readSet(item, entry, e)
		if len(r.errs) == before {
			to.add(e)
		}
	}
}

// readSelector decodes for, which says which limits an entry is for.
func (r *reader) readSelector(item value, entry fields, e *overlayEntry) {
	at, given := entry.get("for")
	if !given {
		r.fail(item.under("for"), "is missing, must say which limits are meant, such as for: {domain: \"*\", path: [\"**\"]}")
		return
	}
	e.selector = at
	before := len(r.errs)
	fs, ok := r.fields(at, selectorForm)
	if !ok {
		return
	}
	if len(fs) == 0 && len(r.errs) == before {
		r.fail(at, "has no key, must have domain, path, name or unit")
	}
	text := func(key string) *glob {
		v, given := fs.get(key)
		if !given {
			return nil
		}
		s, ok := r.text(v)
		if ok && s == "" {
			r.fail(v, "is empty, must be a text, in which `*` stands for other text")
		}
		return newGlob(s)
	}
	e.domain, e.name = text("domain"), text("name")
	if v, given := fs.get("unit"); given {
		name, ok := r.text(v)
		if e.unit, _ = ParseUnit(name); ok && e.unit == UnitUnknown {
			r.fail(v, "%s is not a unit, must be second, minute, hour, day, week, month or year%s", quote(name), unitHint(name))
		}
	}
	v, given := fs.get("path")
	if !given {
		e.deeper = true
		return
	}
	all := r.items(v, "a list with a pattern for each entry of the descriptor, such as [\"httproute/*\", \"**\"]")
	if len(all) == 0 && (v.node.Kind == yaml.SequenceNode || isNull(v)) {
		r.fail(v, "is empty, must have a pattern for each entry of the descriptor")
	}
	for i, x := range all {
		if x.node.Kind == yaml.ScalarNode && x.node.Value == "**" {
			if e.deeper = true; i < len(all)-1 {
				r.fail(x, "stands before other patterns, must be the last one")
			}
			continue
		}
		e.path = append(e.path, r.overlayLevel(x))
	}
}

func (r *reader) overlayLevel(v value) overlayLevel {
	if v.node.Kind != yaml.MappingNode {
		text, _ := r.text(v)
		if key, value, both := strings.Cut(text, "="); both {
			r.warn(v, v.line, "is a pattern of the key alone: probably {key: %s, value: %s} is meant", written(key), written(value))
		}
		return overlayLevel{key: newGlob(text)}
	}
	var l overlayLevel
	fs, _ := r.fields(v, selectorLevelForm)
	if at, ok := fs.get("key"); ok {
		key, _ := r.text(at)
		l.key = newGlob(key)
	}
	if at, ok := fs.get("value"); ok {
		text, _ := r.text(at)
		l.value = newGlob(text)
	}
	return l
}

// readSet decodes the words of an entry, and tries them on a limit.
func (r *reader) readSet(item value, entry fields, e *overlayEntry) {
	at, ok := entry.get("set")
	if !ok {
		r.fail(item.under("set"), "is missing, must be the words for these limits, such as set: {algorithm: token_bucket, burst: 20}")
		return
	}
	all, ok := r.pairs(at)
	if !ok {
		return
	}
	_, own := overlaySetForm.keys()
	changes, _ := limitForm.keys()
	changes = append(changes, "period", "unit_multiplier", "budget", "max_in_flight", "table", "prices", "schedule", "shadow_mode", "quota_mode")
	for _, f := range all {
		switch {
		case slices.Contains(own, f.key):
			e.set = append(e.set, f)
		case slices.Contains(changes, f.key):
			r.failKey(f.value, f.keyLine, "would change the limit itself, must stay in its source: an overlay has %s", strings.Join(own, ", "))
		default:
			hint := ""
			if near := nearest(f.key, own); near != "" {
				hint = ", did you mean " + near + "?"
			}
			r.failKey(f.value, f.keyLine, "is not a word of an overlay, must be one of %s%s", strings.Join(own, ", "), hint)
		}
	}
	if len(all) == 0 {
		r.fail(at, "is empty, must have one of %s", strings.Join(own, ", "))
	}
	if len(e.set) > 0 {
		r.try(e)
	}
}

// try records the mistakes that the words of an entry have at a limit of any unit.
func (r *reader) try(e *overlayEntry) {
	if at, ok := e.set.get("algorithm"); ok && at.node.Value == algorithms.Concurrency.String() {
		r.fail(at, "is concurrency, which has max_in_flight in the place of requests: must be another algorithm")
		return
	}
	units := []Unit{e.unit}
	if e.unit == UnitUnknown {
		units = []Unit{Hour, Month, Week, Day, Year, Minute, Second}
	}
	before, warned := len(r.errs), len(r.warnings)
	var first []Error
	for _, u := range units {
		t := &tree{reader: r, domain: new(Domain), names: make(map[string]bool), rule: new(Rule)}
		t.defaults.algorithm = algorithms.FixedWindow
		source := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		for key, text := range map[string]string{"requests_per_unit": "100", "unit": u.String()} {
			tag := "!!int"
			if key == "unit" {
				tag = "!!str"
			}
			source.Content = append(source.Content, scalar(key, "!!str"), scalar(text, tag))
		}
		at := e.set[0].value
		at.node, at.place = source, at.place.parent
		t.overlay = new(overlays)
		t.overlay.add(&overlayEntry{set: e.set, deeper: true, trial: true})
		t.limit(at, limitForm)
		t.readGroup(e.set, &Rule{Quota: true})
		mistakes := slices.Clone(r.errs[before:])
		r.errs, r.warnings = r.errs[:before], r.warnings[:warned]
		if len(mistakes) == 0 {
			return
		}
		if first == nil {
			first = mistakes
		}
	}
	r.errs = append(r.errs, first...)
}

func scalar(text, tag string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: text}
}

// add adds an entry. The longest of its texts is its anchor.
func (o *overlays) add(e *overlayEntry) {
	e.order = len(o.entries)
	o.entries, o.groups = append(o.entries, e), o.groups || e.set.has("group")
	globs := [anchorKinds]*glob{domainAnchor: e.domain, nameAnchor: e.name}
	if len(e.path) > 0 {
		globs[keyAnchor], globs[valueAnchor] = e.path[0].key, e.path[0].value
	}
	var best anchor
	for kind, p := range globs {
		if text := p.beginning(); len(text) > len(best.text) {
			best = anchor{anchorKind(kind), text}
		}
	}
	if o.anchored == nil {
		o.anchored = make(map[anchor][]*overlayEntry)
	}
	if o.anchored[best] = append(o.anchored[best], e); !slices.Contains(o.lengths[best.kind], len(best.text)) {
		o.lengths[best.kind] = append(o.lengths[best.kind], len(best.text))
	}
}

// find returns the first entry for a limit of a rule, nil for none.
func (o *overlays) find(r *Rule, name string, unit Unit) (first *overlayEntry) {
	texts := [anchorKinds]string{domainAnchor: r.Domain, nameAnchor: name}
	if len(r.Levels) > 0 {
		texts[keyAnchor], texts[valueAnchor] = r.Levels[0].Key, r.Levels[0].Value
	}
	for kind, text := range texts {
		for _, n := range o.lengths[kind] {
			if n > len(text) {
				continue
			}
			for _, e := range o.anchored[anchor{anchorKind(kind), text[:n]}] {
				isFirst := first == nil || e.order < first.order
				if (!isFirst && e.matched) || !e.matches(r, name, unit) {
					continue
				}
				if e.matched = true; isFirst {
					first = e
				}
			}
		}
	}
	if first != nil {
		first.used = true
	}
	return first
}

func (e *overlayEntry) matches(r *Rule, name string, unit Unit) bool {
	switch {
	case e.trial:
		return true
	case e.unit != UnitUnknown && e.unit != unit, !e.domain.covers(r.Domain), e.name != nil && !e.name.covers(name),
		len(r.Levels) < len(e.path), len(r.Levels) > len(e.path) && !e.deeper:
		return false
	}
	for i, l := range e.path {
		if !l.key.covers(r.Levels[i].Key) || !l.value.covers(r.Levels[i].Value) {
			return false
		}
	}
	return true
}

// overlaid returns the fields of a limit with the words of the overlay, and the entry that changed
// the limit, nil for none. A word of the limit itself stays.
func (t *tree) overlaid(v value, fs fields, f form) (all fields, by *overlayEntry) {
	if t.overlay == nil || len(t.overlay.entries) == 0 || t.flagQuietly(fs, "unlimited") {
		return fs, nil
	}
	e := t.overlayFor(fs)
	if e == nil {
		return fs, nil
	}
	for _, word := range e.set {
		own, given := fs.get(word.key)
		requests, _ := fs.get("requests_per_unit")
		switch {
		case word.key == "hold" && f == defaultForm:
		case word.key == "group": // see overlaidGroup
			if f == limitForm {
				by = e
			}
		case given:
			t.warn(own, own.line, "stays: %s sets it, too, but the limit has its own", e.place())
		case (word.key == "burst" || word.key == "escalate") && requests.node != nil && requests.node.Value == "0": // a ban has none
		default:
			fs, by = append(fs, e.word(word, v)), e
		}
	}
	return fs, by
}

// overlayFor returns the entry for a limit with these fields.
func (t *tree) overlayFor(fs fields) *overlayEntry {
	name, _ := fs.get("name")
	unit, _ := fs.get("unit")
	of, _ := ParseUnit(unit.orEmpty().node.Value)
	return t.overlay.find(t.rule, name.orEmpty().node.Value, of)
}

// overlaidGroup returns the fields of a descriptor with the group that the overlay sets.
func (t *tree) overlaidGroup(fs fields) fields {
	at, ok := fs.get("rate_limit")
	if _, given := fs.get("group"); t.overlay == nil || !t.overlay.groups || !ok || given || at.node.Kind != yaml.MappingNode {
		return fs
	}
	errs, warnings := t.errs, t.warnings
	limit, _ := t.pairs(at)
	if !t.stopped { // the mistakes of the limit come again, when the limit is read
		t.errs, t.warnings = errs, warnings
	}
	e := t.overlayFor(limit)
	if e == nil {
		return fs
	}
	for _, word := range e.set {
		if word.key == "group" {
			return append(slices.Clone(fs), e.word(word, at))
		}
	}
	return fs
}

func (t *tree) flagQuietly(fs fields, key string) bool {
	v, ok := fs.get(key)
	is, _ := truth(v.orEmpty().node)
	return ok && is
}

func (v value) orEmpty() value {
	if v.node == nil {
		v.node = new(yaml.Node)
	}
	return v
}

// word returns a word of an entry as a field of a limit. Messages then name the place of the limit.
func (e *overlayEntry) word(f field, v value) field {
	at := v.under(f.key)
	at.node, at.depth, at.overlay = f.node, v.depth+1, e
	if f.node.Kind != yaml.ScalarNode && !e.trial {
		at.node = withLine(f.node, v.line)
	}
	if e.trial {
		return f
	}
	return field{key: f.key, keyLine: v.line, value: at}
}

// withLine returns a copy of a node in which every value is in a line.
func withLine(n *yaml.Node, line int) *yaml.Node {
	c := *n
	c.Line, c.Content = line, nil
	for _, below := range n.Content {
		c.Content = append(c.Content, withLine(below, line))
	}
	return &c
}

// blame adds the place of an entry to the mistakes in a limit since so many. Another value of the
// limit can be wrong because of a word.
func (t *tree) blame(e *overlayEntry, since int) {
	if e == nil || e.trial {
		return
	}
	for i := since; i < len(t.errs); i++ {
		if !strings.HasSuffix(t.errs[i].Text, e.sets()) {
			t.errs[i].Text += "; the limit has words of " + e.place()
		}
	}
}

// sets ends a mistake at a word of the entry.
func (e *overlayEntry) sets() string { return ", as " + e.place() + " sets it" }

func (e *overlayEntry) place() string { return position(e.file, e.line) }

// unused returns a warning for each entry that counts for no limit.
func (o *overlays) unused() (all []Warning) {
	for _, e := range o.entries {
		text := "matches no limit of the rules in force"
		if e.matched {
			text = "is never reached: earlier entries match all its limits"
		}
		if !e.used {
			all = append(all, Warning{File: e.file, Line: e.line, Path: e.selector.place.String(), Text: text})
		}
	}
	return all
}

// Overlay returns the place of the entry of an overlay file that gave the limit words, such as
// overlay.yaml:3; "" for none.
func (l *Limit) Overlay() string {
	if l.overlay == nil {
		return ""
	}
	return l.overlay.place()
}

// HasOverlay reports whether the sources had an entry of an overlay.
func (r *Rules) HasOverlay() bool { return r.overlay }
