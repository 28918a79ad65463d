package descriptors

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/internal/ranges"
)

// cidr is a set of ranges, and the subnets that have one count.
type cidr struct {
	*ranges.Set
	groups bool
	v4, v6 int // the length of the prefix of a subnet, with groups
}

// maxRanges bounds the ranges that stand in a rule, and not in a file.
const maxRanges = 100

// cidrOf decodes a list of ranges, or the name of a file with them, and group_by beside it.
func (t *tree) cidrOf(v value, form string, fs fields) *Matcher {
	m := &Matcher{kind: cidrMatcher}
	switch form {
	case "cidr":
		m.cidr.Set, m.text = t.rangeList(v)
	default:
		m.cidr.Set, m.text = t.rangeFile(v)
	}
	if at, given := fs.get("group_by"); given && !t.groupBy(at, m) {
		return nil
	}
	if m.cidr.Set == nil {
		return nil
	}
	m.program = program(appendStep(nil, moreStep, ""))
	if packed := m.cidr.Pack(); packed != "" {
		m.program = program(appendStep(nil, rangesStep, packed))
	}
	m.text = "{" + form + ": " + m.text
	if m.joins = m.cidr.groups; m.joins {
		m.text += fmt.Sprintf(", group_by: {v4: %d, v6: %d}", m.cidr.v4, m.cidr.v6)
	}
	m.text += "}"
	return m
}

// rangeList decodes ranges in a rule; nil after a mistake.
func (t *tree) rangeList(v value) (set *ranges.Set, text string) {
	if v.node.Kind != yaml.SequenceNode || len(v.node.Content) == 0 {
		file := ""
		if strings.HasSuffix(v.node.Value, ".txt") {
			file = ": a file of ranges is cidr_file: " + v.node.Value
		}
		t.fail(v, "is %s, must be a list of ranges, such as [10.0.0.0/8, \"2001:db8::/32\"]%s", emptyOr(v), file)
		return nil, ""
	}
	if n := len(v.node.Content); n > maxRanges {
		t.fail(v, "has %d ranges, must have at most %d: more stand in a file, see cidr_file", n, maxRanges)
		return nil, ""
	}
	var all []ranges.Range
	var texts []string
	ok := true
	for item := range t.each(v, "a list of ranges") {
		name, isText := t.text(item)
		p, hosts, isRange := ranges.Parse(strings.TrimSpace(name))
		switch {
		case !isText:
			ok = false
			continue
		case !isRange:
			t.fail(item, "is %s, must be %s", quote(name), rangeForm(name))
			ok = false
			continue
		case hosts:
			t.warn(item, item.line, "has bits beyond the prefix, which do not count: the range is %s", p)
		}
		if slices.Contains(all, p) {
			t.warn(item, item.line, "is given twice")
		} else {
			all, texts = append(all, p), append(texts, written(p.String()))
		}
	}
	if !ok || len(all) == 0 {
		return nil, ""
	}
	return ranges.New(all), "[" + strings.Join(texts, ", ") + "]"
}

// rangeForm says how to write a range, beside the text of a wrong one.
func rangeForm(text string) string {
	must := "a range such as 10.0.0.0/8 or 2001:db8::/32, or an address"
	switch strings.ToLower(text) {
	case "any", "all", "default", "*", "everything", "anywhere":
		return must + ": all addresses are 0.0.0.0/0 and ::/0"
	}
	host, _, hasPort := strings.Cut(text, ":")
	switch {
	case strings.HasPrefix(text, "!"):
		return must + ": all other addresses are {not: {cidr: […]}}"
	case hasPort && strings.Count(text, ":") == 1 && strings.Count(host, ".") == 3:
		return must + ", without a port"
	case strings.Contains(text, ".") && strings.ContainsAny(text, ", ;"):
		return must + ": each one stands by itself"
	case strings.Contains(text, "-"):
		return must + ": from-to is written as several ranges"
	case strings.Contains(text, "*"):
		return must + ": 10.1.*.* is 10.1.0.0/16"
	case strings.Contains(text[strings.IndexByte(text, '/')+1:], ".") && strings.Contains(text, "/"):
		return must + ": the mask 255.255.0.0 is /16"
	}
	return must
}

// rangeFile decodes the name of a file of ranges; nil after a mistake.
func (t *tree) rangeFile(v value) (set *ranges.Set, text string) {
	name, ok := t.patternText(v, "cidr_file")
	if !ok {
		return nil, ""
	}
	if table := t.tableOf(v, name, ".txt"); table != nil {
		set = table.ranges
	}
	return set, written(name)
}

// groupBy decodes the length of subnets. Without one of them, each address of that family counts by
// itself.
func (t *tree) groupBy(v value, m *Matcher) (ok bool) {
	before := len(t.errs)
	if v.node.Kind == yaml.ScalarNode && !t.beyond(v) {
		t.fail(v, "is %s, must be a map such as {v4: 24, v6: 64}", kind(v))
		return false
	}
	fs, ok := t.fields(v, groupForm)
	if !ok {
		return false
	}
	m.cidr.v4, m.cidr.v6 = 32, 128
	for _, family := range [...]struct {
		key  string
		bits *int
	}{{"v4", &m.cidr.v4}, {"v6", &m.cidr.v6}} {
		at, given := fs.get(family.key)
		if !given {
			continue
		}
		most := *family.bits
		text, isText := t.text(at)
		n, err := strconv.ParseUint(strings.TrimPrefix(text, "/"), 10, 8)
		if *family.bits = int(n); isText && (err != nil || n < 1 || int(n) > most) {
			t.fail(at, "is %s, must be the length of a prefix, from 1 to %d", quote(text), most)
		}
		if set := m.cidr.Set; set != nil && set.Len() > 0 && len(fs) == 1 && (most == 32 && set.IsIPv6() || most == 128 && set.IsIPv4()) {
			t.warn(at, at.line, "does nothing: no range is of IP%s", family.key)
		}
	}
	if len(fs) == 0 && len(t.errs) == before {
		t.fail(v, "is empty, must be a map such as {v4: 24, v6: 64}")
	}
	m.cidr.groups = true
	return len(t.errs) == before
}

// rangeLines reads a file of ranges: one range or address a line, blank lines, and comments from #
// or ; on.
func (t *Table) rangeLines(data []byte) {
	all := make([]ranges.Range, 0, bytes.Count(data, []byte{'\n'})+1)
	number := 0
	for line := range bytes.Lines(data) {
		if number++; len(t.mistakes) > maxMistakes {
			break
		}
		if i := bytes.IndexAny(line, "#;"); i >= 0 {
			line = line[:i]
		}
		text := string(bytes.TrimSpace(line))
		if text == "" {
			continue
		}
		p, hosts, ok := ranges.Parse(text)
		switch {
		case !ok:
			t.fail(number, "", "is %s, must be %s", quote(text), rangeForm(text))
			continue
		case hosts:
			t.warn(number, "", "has bits beyond the prefix, which do not count: the range is %s", p)
		}
		all = append(all, p)
	}
	if len(all) == 0 && len(t.mistakes) == 0 {
		t.fail(1, "", "has no ranges, must have at least one, such as 10.0.0.0/8")
	}
	t.ranges = ranges.New(all)
}

// isRanges reports whether a file of that name has ranges.
func isRanges(file string) bool { return strings.HasSuffix(file, ".txt") }
