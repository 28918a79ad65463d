package cases

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/internal/timespan"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// firstInstant is the default start: a Thursday, when windows of up to a week begin.
const firstInstant = "2026-01-01T00:00:00Z"

// Read decodes a file of cases. parse decodes a descriptor as the command line has it. The error is
// a [descriptors.Errors] with every mistake, or the mistake that makes the text no YAML.
func Read(path string, data []byte, parse func(string) ([]descriptors.Entry, error)) (*File, error) {
	r := reader{file: path, parse: parse}
	var doc yaml.Node
	if err := decode(data, &doc); err != nil {
		return nil, descriptors.Errors{{File: path, Text: err.Error()}}
	}
	f := &File{Path: path}
	if len(doc.Content) == 0 {
		return nil, descriptors.Errors{{File: path, Line: 1, Text: empty}}
	}
	r.document(doc.Content[0], f)
	if len(r.errs) > 0 {
		slices.SortStableFunc(r.errs, func(a, b descriptors.Error) int { return cmp.Compare(a.Line, b.Line) })
		return nil, r.errs
	}
	return f, nil
}

const empty = "is empty, must be a map with rules and tests"

// decode reads the one document of data. A panic of the parser becomes an error.
func decode(data []byte, doc *yaml.Node) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("not valid YAML: %v", p)
		}
	}()
	d := yaml.NewDecoder(bytes.NewReader(data))
	switch err := d.Decode(doc); {
	case errors.Is(err, io.EOF):
		return errors.New(empty)
	case err != nil:
		return fmt.Errorf("not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return errors.New("has several documents, must have one")
	}
	return nil
}

type reader struct {
	file  string
	parse func(string) ([]descriptors.Entry, error)
	errs  descriptors.Errors
}

func (r *reader) fail(n *yaml.Node, path, format string, args ...any) {
	r.errs = append(r.errs, descriptors.Error{File: r.file, Line: n.Line, Path: path, Text: fmt.Sprintf(format, args...)})
}

// keys returns the values of a map by key. Aliases and unknown keys are mistakes.
func (r *reader) keys(n *yaml.Node, path string, known ...string) map[string]*yaml.Node {
	if n.Kind == yaml.AliasNode {
		r.fail(n, path, "is an alias, must be written out")
		return nil
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n, path, "must be a map with the keys %s", strings.Join(known, ", "))
		return nil
	}
	all := make(map[string]*yaml.Node)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch {
		case !slices.Contains(known, k.Value):
			r.fail(k, path, "%q is not a key that is known here, must be one of %s", k.Value, strings.Join(known, ", "))
		case all[k.Value] != nil:
			r.fail(k, path, "%s is given twice", k.Value)
		case v.Kind == yaml.AliasNode:
			r.fail(v, path, "%s is an alias, must be written out", k.Value)
		default:
			all[k.Value] = v
		}
	}
	return all
}

func (r *reader) list(n, parent *yaml.Node, path, of string) []*yaml.Node {
	switch {
	case n == nil:
		r.fail(parent, path, "is missing, must be a list of %s", of)
		return nil
	case n.Kind != yaml.SequenceNode || len(n.Content) == 0:
		r.fail(n, path, "must be a list of %s, at least one", of)
		return nil
	}
	return n.Content
}

func (r *reader) text(n *yaml.Node, path string) string {
	if n == nil {
		return ""
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		r.fail(n, path, "must be text")
		return ""
	}
	return n.Value
}

func (r *reader) document(n *yaml.Node, f *File) {
	all := r.keys(n, "", "rules", "domain", "start", "tests")
	if all == nil {
		return
	}
	switch rules := all["rules"]; {
	case rules == nil:
		r.fail(n, "rules", "is missing, must be rule files or directories, from the directory of this file")
	case rules.Kind == yaml.SequenceNode && len(rules.Content) == 0:
		r.fail(rules, "rules", "is empty, must be rule files or directories, from the directory of this file")
	case rules.Kind == yaml.SequenceNode:
		for i, item := range rules.Content {
			f.Rules = append(f.Rules, r.path(item, fmt.Sprintf("rules[%d]", i)))
		}
	default:
		f.Rules = []string{r.path(rules, "rules")}
	}
	domain, start := r.text(all["domain"], "domain"), r.start(all["start"], "start")
	for i, item := range r.list(all["tests"], n, "tests", "tests") {
		f.Tests = append(f.Tests, r.test(item, fmt.Sprintf("tests[%d]", i), domain, start))
	}
}

func (r *reader) path(n *yaml.Node, path string) string {
	text := r.text(n, path)
	if text == "" || filepath.IsAbs(text) {
		return text
	}
	return filepath.Join(filepath.Dir(r.file), text)
}

// start returns the instant of a start, the first one without a text.
func (r *reader) start(n *yaml.Node, path string) time.Time {
	text := firstInstant
	if n != nil {
		text = r.text(n, path)
	}
	start, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || start.Year() < 1971 || start.Year() > 2100 { // steps come up to a century later, and the last instant is in 2262
		r.fail(n, path, "is %q, must be an instant of the years 1971 to 2100, such as %s", text, firstInstant)
	}
	return start
}

func (r *reader) test(n *yaml.Node, path, domain string, start time.Time) Test {
	all := r.keys(n, path, "name", "domain", "start", "steps")
	t := Test{Line: n.Line, Name: r.text(all["name"], path+".name"), Domain: domain, Start: start}
	if all == nil {
		return t
	}
	if all["domain"] != nil {
		t.Domain = r.text(all["domain"], path+".domain")
	}
	if all["start"] != nil {
		t.Start = r.start(all["start"], path+".start")
	}
	if t.Name == "" {
		r.fail(n, path+".name", "is missing, must be the claim of the test")
	}
	if t.Domain == "" {
		r.fail(n, path+".domain", "is missing, must be the name of a domain, here or for the whole file")
	}
	last, expects := time.Duration(0), false
	for i, item := range r.list(all["steps"], n, path+".steps", "steps") {
		s := r.step(item, fmt.Sprintf("%s.steps[%d]", path, i), last)
		last = s.At
		expects = expects || s.Verdict != "" || s.Groups != nil || slices.ContainsFunc(s.Descriptors, func(d Descriptor) bool { return d.expects() })
		t.Steps = append(t.Steps, s)
	}
	if !expects && len(t.Steps) > 0 {
		r.fail(n, path, "expects nothing, must have a step with an expectation: verdict, groups, rule, outcome, requests, remaining, wait or reset")
	}
	return t
}

func descriptorKeys() []string {
	return []string{"descriptor", "hits", "refund", "limit", "rule", "outcome", "requests", "remaining", "wait", "reset"}
}

const maxTimes = 1_000_000

func (r *reader) step(n *yaml.Node, path string, last time.Duration) Step {
	all := r.keys(n, path, append([]string{"at", "times", "verdict", "groups", "descriptors"}, descriptorKeys()...)...)
	s := Step{Line: n.Line, At: last, Times: 1}
	if all == nil {
		return s
	}
	if at := all["at"]; at != nil {
		if s.At = r.duration(at, path+".at"); s.At < last {
			r.fail(at, path+".at", "is %v, must be at least %v as in the step above: time does not go back", s.At, last)
		}
	}
	if all["times"] != nil {
		s.Times = int(r.number(all["times"], path+".times", 1, maxTimes))
	}
	if all["verdict"] != nil {
		s.Verdict = r.oneOf(all["verdict"], path+".verdict", ok, overLimit)
	}
	if groups := all["groups"]; groups != nil {
		s.Groups = []string{}
		if groups.Kind != yaml.SequenceNode {
			r.fail(groups, path+".groups", "must be a list of the groups with room, in the order of the rules, such as [pt, od] or []")
		}
		for i, name := range groups.Content {
			s.Groups = append(s.Groups, r.text(name, fmt.Sprintf("%s.groups[%d]", path, i)))
		}
	}
	if all["descriptors"] == nil {
		s.Descriptors = []Descriptor{r.descriptor(n, all, path)}
		return s
	}
	for _, key := range descriptorKeys() {
		if at := all[key]; at != nil {
			r.fail(at, path+"."+key, "stands beside descriptors, must be in one of them")
		}
	}
	for i, item := range r.list(all["descriptors"], n, path+".descriptors", "descriptors") {
		path := fmt.Sprintf("%s.descriptors[%d]", path, i)
		if item.Kind == yaml.ScalarNode {
			s.Descriptors = append(s.Descriptors, r.descriptor(item, map[string]*yaml.Node{"descriptor": item}, path))
		} else if all := r.keys(item, path, descriptorKeys()...); all != nil {
			s.Descriptors = append(s.Descriptors, r.descriptor(item, all, path))
		}
	}
	return s
}

func (r *reader) descriptor(n *yaml.Node, all map[string]*yaml.Node, path string) Descriptor {
	d := Descriptor{Line: n.Line, Text: r.text(all["descriptor"], path+".descriptor")}
	var err error
	if all["descriptor"] == nil {
		r.fail(n, path+".descriptor", "is missing, must be key=value[,key=value…]")
	} else if d.Entries, err = r.parse(d.Text); err != nil {
		r.fail(all["descriptor"], path+".descriptor", "%v", err)
	}
	if at := all["hits"]; at != nil {
		d.Hits = r.number(at, path+".hits", 0, 1<<32-1)
		d.Probe = d.Hits == 0
	}
	if at := all["refund"]; at != nil {
		if d.Refund = at.Value == "true"; !d.Refund && at.Value != "false" {
			r.fail(at, path+".refund", "must be true or false")
		}
	}
	if at := all["limit"]; at != nil {
		d.Override = r.override(at, path+".limit")
	}
	if at := all["rule"]; at != nil {
		rule := r.text(at, path+".rule")
		d.Rule = &rule
	}
	if at := all["outcome"]; at != nil {
		d.Outcome = r.oneOf(at, path+".outcome", Outcomes()...)
	}
	number := func(key string) *uint64 {
		if at := all[key]; at != nil {
			n := r.number(at, path+"."+key, 0, algorithms.MaxCount)
			return &n
		}
		return nil
	}
	duration := func(key string) *time.Duration {
		if at := all[key]; at != nil {
			d := r.duration(at, path+"."+key)
			return &d
		}
		return nil
	}
	d.Requests, d.Remaining = number("requests"), number("remaining")
	d.Wait, d.Reset = duration("wait"), duration("reset")
	return d
}

func (r *reader) override(n *yaml.Node, path string) *limiter.Override {
	all := r.keys(n, path, "requests_per_unit", "unit", "unit_multiplier")
	if all == nil {
		return nil
	}
	o := new(limiter.Override)
	if all["requests_per_unit"] == nil || all["unit"] == nil {
		r.fail(n, path, "must have requests_per_unit and unit")
		return o
	}
	o.Requests = uint32(r.number(all["requests_per_unit"], path+".requests_per_unit", 0, 1<<32-1))
	var known bool
	if o.Unit, known = descriptors.ParseUnit(r.text(all["unit"], path+".unit")); !known {
		r.fail(all["unit"], path+".unit", "must be second, minute, hour, day, week, month or year")
	}
	if at := all["unit_multiplier"]; at != nil {
		o.Multiplier = uint32(r.number(at, path+".unit_multiplier", 1, 1<<32-1))
	}
	return o
}

func (r *reader) number(n *yaml.Node, path string, least, most uint64) uint64 {
	got, err := strconv.ParseUint(n.Value, 10, 64)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil || got < least || got > most {
		r.fail(n, path, "must be a whole number from %d to %d", least, most)
		return 0
	}
	return got
}

// longest bounds a duration: a century.
const longest = 100 * 365 * 24 * time.Hour

// duration returns a duration that is not negative, see package timespan.
func (r *reader) duration(n *yaml.Node, path string) time.Duration {
	d, err := timespan.Parse(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || d < 0 || d > longest {
		r.fail(n, path, "is %q, must be a duration such as 250ms, 10s, 1h30m, 2d or 1w, at most 100 years%s", n.Value, timespan.Hint(n.Value))
		return 0
	}
	return d
}

func (r *reader) oneOf(n *yaml.Node, path string, words ...string) string {
	if n.Kind != yaml.ScalarNode || !slices.Contains(words, n.Value) {
		r.fail(n, path, "must be one of %s", strings.Join(words, ", "))
		return ""
	}
	return n.Value
}
