package cases

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/pkg/descriptors"
)

// firstInstant is the start of a test that names none: windows of up to a week begin then, as it is
// a Thursday.
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

// empty is the mistake of a file without content.
const empty = "is empty, must be a map with rules and tests"

// decode reads the one document of data. Some inputs make the parser panic: the panic becomes an
// error.
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

// reader decodes one file and collects all mistakes.
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

// list returns the elements of a list, at least one.
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

// text returns a text, "" without one.
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

// path returns a path that is relative to the directory of the file.
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
		expects = expects || s.Verdict != "" || slices.ContainsFunc(s.Descriptors, func(d Descriptor) bool { return d.expects() })
		t.Steps = append(t.Steps, s)
	}
	if !expects && len(t.Steps) > 0 {
		r.fail(n, path, "expects nothing, must have a step with an expectation: verdict, rule, outcome, requests, remaining, wait or reset")
	}
	return t
}
