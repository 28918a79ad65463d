package descriptors

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/ranges", "internal/spelling", "internal/timespan", "internal/zones", "pkg/algorithms"},
		Third: []string{"go.yaml.in/yaml/v3"},
		Never: []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/spf13/viper", "os", "net"},
	})
}

func load(tb testing.TB, document string) *Rules {
	tb.Helper()
	rules, _, err := Load([]Source{{Name: "rules.yaml", Data: []byte(document)}}, Options{})
	if err != nil {
		tb.Fatalf("Load: %v", err)
	}
	return rules
}

func messages(tb testing.TB, sources ...Source) []string {
	tb.Helper()
	rules, warnings, err := Load(sources, Options{})
	if (rules == nil) != (err != nil) {
		tb.Errorf("Load returned rules %v and error %v, want one of them", rules, err)
	}
	var got []string
	if err != nil {
		var mistakes Errors
		if !errors.As(err, &mistakes) || len(mistakes) == 0 {
			tb.Fatalf("Load returned the error %v of type %T, want Errors", err, err)
		}
		for _, e := range mistakes {
			got = append(got, e.Error())
		}
	}
	for _, w := range warnings {
		got = append(got, w.String())
	}
	return got
}

// wanted returns the texts of a file's lines that start with "# want: ".
func wanted(data []byte) []string {
	var want []string
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, "# want: "); ok {
			want = append(want, strings.TrimSuffix(text, "\n"))
		}
	}
	return want
}

// Every file in testdata/bad ends with the messages it must give, all of them and in this order.
// With WRITE_TESTDATA set they are written there, to be read before they are believed.
func TestLoadReportsEveryMistakeWithItsLine(t *testing.T) {
	testMessages(t, "testdata/bad/*.yaml", true)
}

// envoyproxy/ratelimit accepts every file in testdata/reference, and says nothing where Weir warns.
func TestLoadTakesFilesOfTheReference(t *testing.T) {
	testMessages(t, "testdata/reference/*.yaml", false)
}

func testMessages(t *testing.T, pattern string, mistakes bool) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			data := must.Get(os.ReadFile(file))(t)
			got := messages(t, Source{Name: name, Data: data})
			if got := len(got) > 0 && !strings.Contains(got[0], ": warning: "); got != mistakes {
				t.Errorf("got mistakes %t, want %t", got, mistakes)
			}
			if diff := cmp.Diff(wanted(data), got); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
				if os.Getenv("WRITE_TESTDATA") != "" {
					writeWanted(t, file, data, got)
				}
			}
		})
	}
}

func writeWanted(t *testing.T, file string, data []byte, got []string) {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "# want: ") {
			b.WriteString(line)
		}
	}
	for _, g := range got {
		b.WriteString("# want: " + g + "\n")
	}
	must.Do(t, os.WriteFile(file, []byte(b.String()), 0o644))
}

func sources(documents ...string) []Source {
	var all []Source
	for i, d := range documents {
		all = append(all, Source{Name: string(rune('a'+i)) + ".yaml", Data: []byte(d)})
	}
	return all
}

func TestMergedDocumentsAreOneDomainInTheOrderOfTheSources(t *testing.T) {
	all := sources(
		"domain: d\ndescriptors:\n- {key: k, value: foo*, rate_limit: {unit: second, requests_per_unit: 1}}\n"+
			"default: {unit: second, requests_per_unit: 9}\n",
		"domain: other\ndescriptors:\n- {key: k}\n",
		"domain: d\ndefaults: {algorithm: token_bucket}\ndescriptors:\n"+
			"- {key: k, value: foob*, rate_limit: {unit: second, requests_per_unit: 2, replaces: [{name: of_d}]}}\n"+
			"- {key: k, value: bar, rate_limit: {unit: second, requests_per_unit: 3}}\n",
		"domain: d\ndescriptors:\n- {key: l, rate_limit: {unit: second, requests_per_unit: 4, name: of_d}}\n",
	)
	rules, warnings, err := Load(all, Options{MergeDomains: true})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`c.yaml:4: warning: descriptors[0].value: is reached by its own text only: every other value that it matches goes to "foo*" at a.yaml:3, which comes first`}
	var got []string
	for _, w := range warnings {
		got = append(got, w.String())
	}
	must.Match(t, "warnings", want, got)
	if n := len(rules.Domains()); n != 2 {
		t.Fatalf("there are %d domains, want 2", n)
	}
	d := rules.Domain("d")
	if d.File != "a.yaml" || d.Line != 1 {
		t.Errorf("the domain is at %s:%d, want at that of its first document", d.File, d.Line)
	}
	for _, test := range []struct {
		key, value string
		file       string
		requests   uint32
		algorithm  string
	}{
		{"k", "foobar", "a.yaml", 1, "fixed_window"},
		{"k", "bar", "c.yaml", 3, "token_bucket"},
		{"l", "x", "d.yaml", 4, "fixed_window"},
	} {
		r := d.Match([]Entry{{test.key, test.value}})
		if r == nil || r.File != test.file || r.Limits[0].Requests != test.requests || r.Limits[0].Algorithm.String() != test.algorithm {
			t.Errorf("%s=%s meets %+v, want %+v", test.key, test.value, r, test)
		}
	}
	ids := rules.All()
	for i, r := range ids {
		if r.ID != i {
			t.Errorf("rule %d has the ID %d", i, r.ID)
		}
	}
	if last := d.rules[len(d.rules)-1]; last != d.Default || d.Default.Limits[0].Requests != 9 {
		t.Errorf("the last rule is %v, want the default", last)
	}
}

func TestMergedDocumentsMustNotContradictEachOther(t *testing.T) {
	all := sources(
		"domain: d\ndescriptors:\n- {key: k, value: v}\n- {key: l}\ndefault: {unit: second, requests_per_unit: 9}\n",
		"domain: d\ndescriptors:\n- {key: k, value: v, descriptors: [{key: m}]}\n- {key: l}\ndefault: {unit: second, requests_per_unit: 9}\n",
	)
	_, _, err := Load(all, Options{MergeDomains: true})
	want := `b.yaml:3: descriptors[0]: "k=v" is given twice, first at a.yaml:3: descriptors side by side must differ in key or value
b.yaml:4: descriptors[1]: "l" is given twice, first at a.yaml:4: descriptors side by side must differ in key or value
b.yaml:5: default: the domain has a default already, at a.yaml:5: it can have one`
	if err == nil || err.Error() != want {
		t.Errorf("error:\n%v\nwant:\n%s", err, want)
	}
	if _, _, err := Load(all, Options{}); err == nil {
		t.Error("two documents of a domain load without MergeDomains")
	}
}

func TestANameMayBeReplacedThatNoDocumentOfTheDomainHas(t *testing.T) {
	all := sources(
		"domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: second, requests_per_unit: 1, replaces: [{name: none}]}}\n",
		"domain: e\ndescriptors:\n- {key: k, rate_limit: {unit: second, requests_per_unit: 1, name: none}}\n",
	)
	_, warnings, err := Load(all, Options{MergeDomains: true})
	if err != nil || len(warnings) != 1 || warnings[0].File != "a.yaml" {
		t.Errorf("warnings %v, error %v; want one of a.yaml", warnings, err)
	}
}

func TestDroppedHitsAreTheDefaultOfFixedWindowsWhenAskedFor(t *testing.T) {
	const document = `
domain: d
descriptors:
- {key: a, rate_limit: {unit: second, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: second, requests_per_unit: 1, count_rejected: true}}
- {key: c, rate_limit: {unit: second, requests_per_unit: 1, algorithm: token_bucket}}
`
	for _, drop := range []bool{false, true} {
		rules := must.First(Load(sources(document), Options{DropRejected: drop}))(t)
		var got []bool
		for _, r := range rules.All() {
			got = append(got, r.Limits[0].CountRejected)
		}
		if diff := cmp.Diff([]bool{!drop, true, false}, got); diff != "" {
			t.Errorf("DropRejected %t: denied hits count (-want +got):\n%s", drop, diff)
		}
	}
}

func TestMetricLevelsAreTheTextOfAMetricInParts(t *testing.T) {
	rules := load(t, `
domain: d
descriptors:
- key: route
  value: a.b
  descriptors:
  - key: path
    value: files/*
    share_threshold: true
    descriptors:
    - key: user
      value_to_metric: true
      rate_limit: {unit: second, requests_per_unit: 1}
default: {unit: second, requests_per_unit: 1}
`)
	r := rules.All()[2]
	entries := []Entry{{"route", "a.b"}, {"path", "files/x"}, {"user", "u.1"}}
	must.Match(t, "levels of a descriptor", []string{"route_a.b", "path_files/*", "user_u.1"}, r.MetricLevels(entries))
	must.Match(t, "levels as configured", []string{"route_a.b", "path_files/*", "user"}, r.MetricLevels(nil))
	if got := rules.All()[3].MetricLevels(nil); len(got) != 0 {
		t.Errorf("levels of a default: %q, want none", got)
	}
}

// The text of a pattern is no value of it.
func TestMetricLevelsAsConfiguredHaveThePattern(t *testing.T) {
	for _, pattern := range []string{
		`{path: '/t/{id}', count_by: [id]}`, `{cidr: [10.0.0.0/8], group_by: {v4: 24, v6: 128}}`,
		`{any_of: [{path: '/t/{id}', count_by: [id]}, {cidr: [10.0.0.0/8], group_by: {v4: 24, v6: 128}}]}`,
	} {
		rules := load(t, "{domain: d, descriptors: [{key: k, match: "+pattern+", detailed_metric: true}]}")
		got := strings.ReplaceAll(rules.All()[0].MetricLevels(nil)[0], `"`, "'")
		must.Match(t, "level as configured", "k_"+pattern, got)
	}
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// repeated returns a text that is repeated up to a length, after a head.
func repeated(head, text string, length int) []byte {
	return []byte(head + strings.Repeat(text, (length-len(head))/len(text)+1))
}

const head = "domain: edge\ndescriptors:\n"

// The shapes took 45 to 140 times their text when the bound was 64 MiB of text.
func TestSourcesAboveTheBoundAreRefusedUnread(t *testing.T) {
	for name, data := range map[string][]byte{
		"many rules":       repeated(head, "- {key: a, rate_limit: {unit: day, requests_per_unit: 5}}\n", 50_000_000),
		"one text":         append(repeated(head+`- key: "`, "a", 50_000_000), '"'),
		"empty items":      repeated(head, "-\n", DefaultMaxBytes/6+100),
		"numbers":          repeated("domain: edge\ndescriptors: [", "1,", DefaultMaxBytes/6+100),
		"empty maps":       repeated("domain: edge\ndescriptors: [", "{},", DefaultMaxBytes/4),
		"keys":             repeated("domain: edge\n", "a: 1\n", DefaultMaxBytes/4),
		"keys in JSON":     repeated(`{"domain":"edge","descriptors":[`, `{"a":1},`, DefaultMaxBytes/4),
		"unclosed nesting": repeated("domain: edge\ndescriptors: ", "[", DefaultMaxBytes/12+100),
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			used := allocated(func() { got = messages(t, Source{Name: "rules.yaml", Data: data}) })
			if len(got) != 1 || !strings.HasPrefix(got[0], "rules.yaml: has ") || !strings.HasSuffix(got[0], ", must be at most 20971520 together (max-rules-bytes)") {
				t.Errorf("got %q, want one mistake about the size", got)
			}
			if used > 64<<10 {
				t.Errorf("%d bytes allocated to refuse %d bytes, want at most 64 KiB", used, len(data))
			}
		})
	}
}

func TestTheBoundIsOnAllSourcesTogether(t *testing.T) {
	document := func(domain string, length int) Source {
		return Source{Name: domain, Data: repeated("domain: "+domain+"\n", "# a comment\n", length-len("# a comment\n"))}
	}
	load := func(sources ...Source) []string {
		_, _, err := Load(sources, Options{MaxBytes: 10_000})
		if err == nil {
			return nil
		}
		return strings.Split(err.Error(), "\n")
	}
	if got := load(document("a", 5000), document("b", 4990)); got != nil {
		t.Errorf("9990 bytes of 10000: got %q", got)
	}
	want := []string{"b: has 5998 bytes beside 4990 bytes of other rules, must be at most 10000 together (max-rules-bytes)"}
	if diff := cmp.Diff(want, load(document("a", 5000), document("b", 6000), document("c", 5000))); diff != "" {
		t.Errorf("a source that does not fit must not count (-want +got):\n%s", diff)
	}
	many := Source{Name: "d", Data: repeated(head, "- {}\n", 5000)}
	want = []string{"d: has 5001 bytes with so many values that it counts as 23928: it has 23928 bytes, must be at most 10000 together (max-rules-bytes)"}
	must.Match(t, "values", want, load(many))
}

// Ten thousand rules of 1 KiB, and a hundred thousand short rules, are within the default. Of the
// short rules a tenth is loaded.
func TestLargeConfigurationsLoad(t *testing.T) {
	if race.Enabled {
		t.Skip("costs seconds with the race detector, and has one goroutine")
	}
	for _, c := range []struct {
		name        string
		rules, load int
		filling     int // bytes of a value
	}{
		{"1 KiB", 10_000, 10_000, 960},
		{"short", 100_000, 10_000, 0},
	} {
		document := func(rules int) []byte {
			text := []byte(head)
			for i := range rules {
				text = fmt.Appendf(text, "- {key: user, value: %d%s, rate_limit: {unit: day, requests_per_unit: 5}}\n", i, strings.Repeat("x", c.filling))
			}
			return text
		}
		if text, tooLarge := (Options{}).TooLarge(Size(document(c.rules)), 0); tooLarge {
			t.Errorf("%s: %d rules: %s", c.name, c.rules, text)
		}
		data := document(c.load)
		var rules *Rules
		used := float64(allocated(func() { rules = load(t, string(data)) })) / float64(Size(data))
		if rules.Count() != c.load || used > 38 {
			t.Errorf("%s: %d rules of %d, and %.1f times the size allocated, want at most 38 times", c.name, rules.Count(), c.load, used)
		}
	}
}

// FuzzSize: the parser makes at most two nodes for each value that Size counts, and a few.
func FuzzSize(f *testing.F) {
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
			f.Add(data)
		}
	}
	for _, text := range []string{
		"[{a},{b},{c}]", "{a,b,c,d}", "? a\n? b\n? c", "-\n-\n-", "a:\nb:\nc:", `{"a":1,"b":[2,3]}`, "[[[]],[[]]]", "a:\u2028b:\u0085c:", "- - - a",
		"{a: b, ? c : d, 'e':f}", "&a [*a, *a]", "a: {b: {c: {d}}}", "[a: b, c: d]", "!!set {a, b}", "- ? - ? - a",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var doc yaml.Node
		if n, ok := jsonNode(data); ok {
			doc.Content = []*yaml.Node{n}
		} else if decodeNode(data, &doc) != nil {
			return
		}
		if got, most := count(&doc), 2*values(data)+4; got > most {
			t.Errorf("%q has %d nodes, values counts %d", data, got, values(data))
		}
	})
}

func count(n *yaml.Node) int {
	sum := 1
	for _, c := range n.Content {
		sum += count(c)
	}
	return sum
}
