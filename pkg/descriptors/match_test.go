package descriptors

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// Every file in testdata/match has rules, descriptors (a line each: key=value key=value), and the
// expected results: the rule, its keys, and its value in metrics. Without a rule, the key comes
// from the domain's default, or from an override of a token bucket per second.
func TestMatchFindsRuleKeyAndMetric(t *testing.T) {
	files, err := filepath.Glob("testdata/match/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			parts := readParts(t, file)
			domain := load(t, parts["rules.yaml"]).Domain("edge")
			var got strings.Builder
			for line := range strings.Lines(parts["cases"]) {
				got.WriteString(line)
				describe(&got, domain, parseEntries(t, line))
			}
			must.Match(t, "result", parts["want"], got.String())
		})
	}
}

func readParts(t *testing.T, file string) map[string]string {
	t.Helper()
	data := must.Get(os.ReadFile(file))(t)
	parts, name := make(map[string]string), ""
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "-- "); ok {
			name, _, _ = strings.Cut(rest, " --")
			continue
		}
		parts[name] += line
	}
	return parts
}

func parseEntries(t *testing.T, line string) []Entry {
	t.Helper()
	var entries []Entry
	for f := range strings.FieldsSeq(line) {
		key, value, ok := strings.Cut(f, "=")
		if !ok {
			t.Fatalf("entry %q has no =", f)
		}
		entries = append(entries, Entry{key, value})
	}
	return entries
}

func describe(b *strings.Builder, d *Domain, entries []Entry) {
	rule := d.Match(entries)
	if rule == nil {
		own := NewLimit(algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 1, Period: Second.Duration()}, Second, 1, false, 1)
		if d.Default != nil {
			own = d.Default.Limits[0]
		}
		fmt.Fprintf(b, "\tno rule\n\tkey %s\n", AppendKey(nil, d.Name, entries, &own))
		return
	}
	fmt.Fprintf(b, "\trule %s", rule.Path)
	switch {
	case rule.Unlimited:
		b.WriteString(", unlimited")
	case len(rule.Limits) == 0:
		b.WriteString(", without limits")
	}
	b.WriteString("\n")
	for i := range rule.Limits {
		fmt.Fprintf(b, "\tkey %s\n", rule.AppendKey(nil, d.Name, entries, &rule.Limits[i]))
	}
	if rule.Detailed() {
		fmt.Fprintf(b, "\tmetric %s\n", rule.AppendMetricValue(nil, entries))
	}
	switch phase, name := rule.Holder(entries); phase {
	case algorithms.HoldBegin:
		fmt.Fprintf(b, "\tholder %q begins\n", name)
	case algorithms.HoldEnd:
		fmt.Fprintf(b, "\tholder %q ends\n", name)
	case algorithms.HoldPair:
		fmt.Fprintf(b, "\tholder %q begins or ends\n", name)
	case algorithms.HoldBegun, algorithms.HoldCancel:
		fmt.Fprintf(b, "\tholder %q of phase %d\n", name, phase)
	}
}

type child struct {
	key, value string
	path       string
	hold       bool // begin: r, end: d
	children   []child
}

// matchSlowly is semantics 4.3 read word by word, with a regular expression for each wildcard.
func matchSlowly(children []child, entries []Entry) string {
	found := -1
	if len(entries) == 1 { // which leads to no rule with hold
		children = slices.DeleteFunc(slices.Clone(children), func(c child) bool { return c.hold })
	}
	for i, c := range children {
		if c.key == entries[0].Key && c.value != "" && c.value == entries[0].Value {
			found = i
		}
	}
	for i := 0; i < len(children) && found < 0; i++ {
		if c := children[i]; c.key == entries[0].Key && strings.Contains(c.value, "*") && expression(c.value).MatchString(entries[0].Value) {
			found = i
		}
	}
	for i := 0; i < len(children) && found < 0; i++ {
		if c := children[i]; c.key == entries[0].Key && c.value == "" {
			found = i
		}
	}
	switch {
	case found < 0:
		return ""
	case len(entries) == 1:
		return children[found].path
	case len(entries) == 2 && children[found].hold && (entries[1].Key == "r" || entries[1].Key == "d"):
		return children[found].path
	}
	return matchSlowly(children[found].children, entries[1:])
}

// expression is a wildcard as a regular expression.
func expression(pattern string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for _, r := range pattern {
		if r == '*' {
			b.WriteString(`.*`)
		} else {
			b.WriteString(regexp.QuoteMeta(string(r)))
		}
	}
	return regexp.MustCompile(b.String() + `\z`)
}

func TestMatchAgreesWithASlowMatcher(t *testing.T) {
	found := 0
	rapid.Check(t, func(t *rapid.T) {
		children, document := drawTree(t, 0, "")
		rules, _, err := Load([]Source{{Name: "rules.yaml", Data: []byte("domain: edge\ndescriptors: " + document)}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			entries := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Entry {
				return Entry{pick(t, "key", "a", "b", "c", "a", "b", "c", "r", "d"), rapid.StringOfN(rapid.RuneFrom([]rune("xy*")), 0, 4, -1).Draw(t, "value")}
			}), 1, 4).Draw(t, "entries")
			if rapid.Bool().Draw(t, "begins") {
				entries = append(entries, Entry{"r", "x"})
			}
			want, got := matchSlowly(children, entries), ""
			if rule := rules.Domain("edge").Match(entries); rule != nil {
				got = rule.Path
			}
			if got != want {
				t.Fatalf("Match(%q) = %q, want %q, in\n%s", entries, got, want, document)
			}
			if want != "" {
				found++
			}
		}
	})
	if found == 0 {
		t.Error("no descriptor matched, so nothing was compared")
	}
}

func drawTree(t *rapid.T, depth int, parent string) ([]child, string) {
	var (
		children []child
		items    []string
		seen     = make(map[Entry]bool)
	)
	for range rapid.IntRange(0, 6-depth).Draw(t, "children") {
		c := child{key: pick(t, "key", "a", "b", "c"), value: rapid.StringOfN(rapid.RuneFrom([]rune("xy**")), 0, 4, -1).Draw(t, "value")}
		if seen[Entry{c.key, c.value}] {
			continue
		}
		seen[Entry{c.key, c.value}] = true
		if c.path = parent + c.key; c.value != "" {
			c.path += "=" + c.value
		}
		item := fmt.Sprintf("{key: %s, value: %q", c.key, c.value)
		if c.hold = rapid.IntRange(0, 2).Draw(t, "hold") == 0; c.hold {
			item += ", rate_limit: {algorithm: concurrency, max_in_flight: 5, hold: {begin: r, end: d, at_most: 1s}}"
		}
		if depth < 3 {
			var below string
			c.children, below = drawTree(t, depth+1, c.path+",")
			item += ", descriptors: " + below
		}
		items = append(items, item+"}")
		children = append(children, c)
	}
	return children, "[" + strings.Join(items, ", ") + "]"
}

func FuzzMatchWildcard(f *testing.F) {
	for _, s := range [][2]string{
		{"*", ""},
		{"**", "x"},
		{"a*", "a"},
		{"*a", "ba"},
		{"a*a", "a"},
		{"a*a", "aa"},
		{"a*b*c", "abbc"},
		{"*ab*ba*", "aba"},
		{"*ab*ba*", "abba"},
		{"*ab*bc*", "xabc"},
		{"a*aa*a", "aaa"},
		{"x*y", "x\ny"},
		{"*\xff", "\xff\xff"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, pattern, value string) {
		if !strings.Contains(pattern, "*") || len(pattern) > 100 {
			t.Skip()
		}
		w := newWildcard(pattern)
		// One byte is one character.
		want := expression(latin(pattern)).MatchString(latin(value))
		if got := w.test(value) == yes; got != want {
			t.Errorf("%q matches %q: got %t, want %t", pattern, value, got, want)
		}
	})
}

// latin returns a text with a character for each byte of s.
func latin(s string) string {
	runes := make([]rune, len(s))
	for i := range len(s) {
		runes[i] = rune(s[i])
	}
	return string(runes)
}

func TestOverlapsAgreesWithMatches(t *testing.T) {
	texts := func(alphabet string, length int) []string {
		all, last := []string{""}, []string{""}
		for range length {
			var next []string
			for _, text := range last {
				for _, c := range alphabet {
					next = append(next, text+string(c))
				}
			}
			all, last = append(all, next...), next
		}
		return all
	}
	var patterns []program
	for _, text := range texts("ab*", 3) {
		if strings.Contains(text, "*") {
			patterns = append(patterns, newWildcard(text))
		}
	}
	values := texts("ab", 5) // two patterns have at most four plain characters
	for _, x := range patterns {
		for _, y := range patterns {
			want := slices.ContainsFunc(values, func(v string) bool { return x.test(v) == yes && y.test(v) == yes })
			if got := x.overlaps(y); got != want {
				t.Errorf("%q and %q: got %t, want %t", x, y, got, want)
			}
		}
	}
}
