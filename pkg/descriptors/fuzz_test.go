package descriptors

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// FuzzLoad: for any document, Load returns rules or mistakes. The rules are usable: a rule's own
// entries find the rule, and its keys can be read back.
func FuzzLoad(f *testing.F) {
	for _, pattern := range []string{"testdata/*/*.yaml", "testdata/*/*.txtar"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("no files %s: %v", pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data, false)
		}
	}
	f.Add([]byte(settings), true)
	f.Fuzz(func(t *testing.T, data []byte, inline bool) {
		source := Source{Name: "rules.yaml", Data: data, Settings: inline}
		checkPieces(t, source)
		rules, warnings, err := Load([]Source{source}, Options{})
		for _, w := range warnings {
			checkMessage(t, w.String())
		}
		if err != nil {
			var mistakes Errors
			if !errors.As(err, &mistakes) || len(mistakes) == 0 || rules != nil {
				t.Fatalf("got rules %v and the error %v of type %T, want Errors alone", rules, err, err)
			}
			for _, e := range mistakes {
				checkMessage(t, e.Error())
			}
			return
		}
		for i, r := range rules.All() {
			if r.ID != i || rules.Domain(r.Domain) == nil {
				t.Errorf("rule %d has the ID %d and the domain %q", i, r.ID, r.Domain)
			}
		}
		for _, d := range rules.Domains() {
			checkNode(t, d, &d.root, nil)
		}
	})
}

func checkMessage(t *testing.T, text string) {
	t.Helper()
	if !strings.HasPrefix(text, "rules.yaml:") || strings.ContainsAny(text, "\n\r\x00") {
		t.Errorf("message %q is not one line with a position", text)
	}
}

func checkNode(t *testing.T, d *Domain, n *node, entries []Entry) {
	t.Helper()
	for key, b := range n.keys {
		if b.rest != nil {
			below := append(slices.Clip(entries), Entry{key, "any value"})
			d.Match(withHolder(b.rest.rule, below)) // A wildcard may come first.
			checkRule(t, d, b.rest.rule, below)
		}
		for value, m := range b.exact {
			below := append(slices.Clip(entries), Entry{key, value})
			if got := d.Match(withHolder(m.rule, below)); got != m.rule {
				if allExact(d, below) {
					t.Errorf("Match(%q) = %v, want %v", below, got, m.rule)
				}
			}
			checkRule(t, d, m.rule, below)
			checkNode(t, d, m, below)
		}
	}
}

func withHolder(r *Rule, entries []Entry) []Entry {
	if !r.Holds() {
		return entries
	}
	return append(slices.Clip(entries), Entry{r.Begin, "holder"})
}

// allExact reports whether entries lead from exact value to exact value.
func allExact(d *Domain, entries []Entry) bool {
	n := &d.root
	for _, e := range entries {
		if n = n.keys[e.Key].exact[e.Value]; n == nil {
			return false
		}
	}
	return true
}

func checkRule(t *testing.T, d *Domain, r *Rule, entries []Entry) {
	t.Helper()
	if len(r.Levels) != len(entries) {
		t.Errorf("rule %q has %d levels, want %d", r.Path, len(r.Levels), len(entries))
	}
	entries = withHolder(r, entries)
	r.AppendMetricValue(nil, entries)
	if phase, name := r.Holder(entries); r.Holds() && (!phase.Begins() || name != "holder" || r.Pairs() != (phase == algorithms.HoldPair)) {
		t.Errorf("rule %q takes %q for phase %d of %q", r.Path, entries, phase, name)
	}
	entries = r.WithoutHolder(entries)
	seen := make(map[string]bool)
	for i := range r.Limits {
		l := &r.Limits[i]
		if err := l.Validate(); err != nil {
			t.Errorf("rule %q has the limit %+v: %v", r.Path, *l, err)
		}
		key := string(r.AppendKey(nil, d.Name, entries, l))
		if got, err := readKey(key); err != nil || got.Domain != d.Name || len(got.Entries) != len(entries) {
			t.Errorf("key %q is read as %+v, %v", key, got, err)
		}
		if seen[key] {
			t.Errorf("two limits of rule %q have the key %q", r.Path, key)
		}
		seen[key] = true
	}
}
