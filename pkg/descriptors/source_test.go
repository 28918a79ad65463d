package descriptors

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
)

const settings = `# A settings file.
log_level: debug
max_keys: 5
domains:
  - domain: One
    descriptors:
      - {key: Path, value: /A, metadata: {Key: Value}, rate_limit: {unit: second, requests_per_unit: 1}}
  - domain: two
    default: {unit: second, requests_per_unit: 2}
`

func TestSettingsFileHoldsDocuments(t *testing.T) {
	rules, warnings, err := Load([]Source{
		{Name: "weir.yaml", Data: []byte(settings), Settings: true},
		{Name: "three.yaml", Data: []byte("domain: Three\ndescriptors: [{key: a}]")},
	}, Options{})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("Load: %v, %v", err, warnings)
	}
	var got []string
	for _, r := range rules.All() {
		got = append(got, fmt.Sprintf("%d %s %s %s:%d %v", r.ID, r.Domain, r.Path, r.File, r.Line, r.Metadata))
	}
	want := []string{
		"0 One Path=/A weir.yaml:7 map[Key:Value]",
		"1 Three a three.yaml:2 map[]",
		"2 two default weir.yaml:9 map[]",
	}
	must.Match(t, "rules", want, got)
	if got := rules.Domain("One"); got == nil || got.File != "weir.yaml" || got.Line != 5 || got.Default != nil {
		t.Errorf("domain One: got %+v, want it from weir.yaml:5 without a default", got)
	}
	if got := rules.Domain("two"); got == nil || got.Default != rules.All()[2] {
		t.Errorf("domain two: got %+v, want it with a default", got)
	}
	if rules.Domain("one") != nil || rules.Len() != 3 {
		t.Errorf("Domain(one) = %v, Len() = %d, want nil and 3", rules.Domain("one"), rules.Len())
	}
}

func TestSettingsFileNeedsNoDocuments(t *testing.T) {
	for _, data := range []string{"", "# nothing\n", "---\n", "log_level: debug\n", "domains:\n", "domains: []\n", "{}", `{"domains": null}`} {
		rules, warnings, err := Load([]Source{{Name: "weir.yaml", Data: []byte(data), Settings: true}}, Options{})
		if err != nil || len(warnings) > 0 || rules.Len() != 0 || len(rules.Domains()) != 0 {
			t.Errorf("%q: got %v, %v, %v, want no rules", data, rules, warnings, err)
		}
	}
}

func TestMistakesOfAllSourcesComeTogether(t *testing.T) {
	inline := strings.Replace(settings, "unit: second, requests_per_unit: 2", "unit: fortnight", 1)
	const generated = `{"domains": [
		{"domain": "One", "descriptors": [{"key": "a", "rate_limit": {"unit": "second", "requests_per_unit": "5"}}]},
		{"domain": "four", "descriptors": [{"key": "a"}, {"key": "a"}, {"key": "b", "value": 1.5}]}]}`
	got := messages(
		t,
		Source{Name: "z.yaml", Data: []byte("domain: [")},
		Source{Name: "weir.yaml", Data: []byte(inline), Settings: true},
		Source{Name: "weir.toml", Data: []byte(generated), Settings: true, Generated: true},
		Source{Name: "a.yaml", Data: []byte("\ndescriptors: [{}, 5]\ndomain: two\n")},
		Source{Name: "list.yaml", Data: []byte("[]"), Settings: true},
		Source{Name: "map.yaml", Data: []byte("a: 1\ndomains: {domain: x}"), Settings: true},
	)
	want := []string{
		`a.yaml:2: descriptors[0].key: is missing or empty, must be the key of an entry, as Envoy sends it`,
		`a.yaml:2: descriptors[1]: is the number 5, must be a map`,
		`a.yaml:3: domain: domain "two" is defined already, at weir.yaml:8: a domain must be one document`,
		`list.yaml:1: the document is a list, must be a map`,
		`map.yaml:2: domains: is a map, must be a list of rule documents`,
		`weir.toml: domains[0].descriptors[0].rate_limit.requests_per_unit: is the text "5", must be a whole number from 0 to 4294967295, without quotes`,
		`weir.toml: domains[1].descriptors[1]: "a" is given twice: descriptors side by side must differ in key or value`,
		`weir.toml: domains[1].descriptors[2].value: is the floating-point number 1.5, must be text: put it in quotes`,
		`weir.toml: domains[0].domain: domain "One" is defined already, at weir.yaml:5: a domain must be one document`,
		`weir.yaml:9: domains[1].default.unit: "fortnight" is not a unit, must be second, minute, hour, day, week, month or year`,
		`z.yaml:1: not valid YAML: did not find expected node content: a text that begins with a mark such as : or , stands in quotes, such as "::1/128"`,
		`weir.yaml:9: warning: domains[1].default: has no requests_per_unit: that is 0, and denies every hit`,
	}
	must.Match(t, "messages", want, got)
}

func TestGeneratedDocumentsMeanTheSameAsFiles(t *testing.T) {
	const document = `{"domain": "edge", "defaults": {"algorithm": "token_bucket", "count_rejected": true}, "descriptors": [
		{"key": "a", "value": 5, "rate_limit": {"requests_per_unit": 7, "period": "10s", "burst": 9}},
		{"key": "b", "value": "yes", "shadow_mode": true, "rate_limits": [{"requests_per_unit": 7, "unit": "day"}]},
		{"key": "c", "value": true, "metadata": {"<<": "plain", "yes": "no", "float": 1.5, "nil": null, "number": 1e3, "whole": 12, "list": [1, "2"]}}]}`
	got := must.First(Load([]Source{{Name: "rules", Data: []byte(document), Generated: true}}, Options{}))(t)
	want := load(t, `
domain: edge
defaults: {algorithm: token_bucket, count_rejected: true}
descriptors:
  - {key: a, value: 5, rate_limit: {requests_per_unit: 7, period: 10s, burst: 9}}
  - {key: b, value: "yes", shadow_mode: true, rate_limits: [{requests_per_unit: 7, unit: day}]}
  - key: c
    value: true
    metadata: {"<<": plain, "yes": "no", float: 1.5, nil: , number: 1000, whole: 12, list: [1, "2"]}
`)
	if diff := cmp.Diff(want.All(), got.All(), cmp.AllowUnexported(Rule{}, Limit{}), cmpopts.IgnoreFields(Rule{}, "File", "Line")); diff != "" {
		t.Errorf("rules (-file +generated):\n%s", diff)
	}
	if r := got.All()[0]; r.Line != 0 || got.Domain("edge").Line != 0 {
		t.Errorf("lines: got %d and %d, want none", r.Line, got.Domain("edge").Line)
	}
}

func TestJSONTextsHoldCharactersThatYAMLRefuses(t *testing.T) {
	const odd = "del \x7f nel \u0085 end \u2028 \u2029 mark \ufeff none \ufffe\uffff smile \U0001f600"
	rules := load(t, `{"domain": "edge", "descriptors": [{"key": "a", "value": "`+odd+`"}]}`)
	if got := rules.All()[0].Levels[0].Value; got != odd {
		t.Errorf("got %q, want %q", got, odd)
	}
}

func TestJSONHasEscapesThatYAMLHasNot(t *testing.T) {
	rules := load(t, `{"domain": "edge", "descriptors": [
		{"key": "\/a\\/\u00e9", "value": "\ud83d\ude00 \ud83d \\ud83d\\ude00\n\"\/"}]}`)
	if got, want := rules.All()[0].Path, "/a\\/é=\U0001F600 \uFFFD \\ud83d\\ude00\n\"/"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDeepDocumentsAreMistakes(t *testing.T) {
	nested := func(levels int, opening, closing string) string {
		return strings.Repeat(opening, levels) + strings.Repeat(closing, levels)
	}
	for _, tt := range []struct {
		name, document, want string
	}{
		{"descriptors", "domain: edge\ndescriptors: " + nested(101, "[{key: a, descriptors: ", "}]"), "nested too deeply, must be at most 200"},
		{"metadata", "domain: edge\ndescriptors: [{key: a, metadata: {a: " + nested(200, "[", "]") + "}}]", "nested too deeply, must be at most 200"},
		{"yaml", "domain: " + nested(20000, "[", "]"), "exceeded max depth"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := messages(t, Source{Name: "rules.yaml", Data: []byte(tt.document)})
			if len(got) == 0 || !strings.Contains(got[0], tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	load(t, "domain: edge\ndescriptors: "+nested(95, "[{key: a, descriptors: ", "}]"))
}

func TestVeryManyMistakesAreCut(t *testing.T) {
	got := messages(t, Source{Name: "rules.yaml", Data: []byte("domain: edge\ndescriptors:\n" + strings.Repeat("- 5\n", 5000))})
	if len(got) != maxMistakes+1 || !strings.HasSuffix(got[maxMistakes], "too many mistakes, the rest was not read") {
		t.Errorf("got %d mistakes, the last %q, want %d and a line about the rest", len(got), got[len(got)-1], maxMistakes)
	}
}

func TestMistakesAreErrorsOneByOne(t *testing.T) {
	_, _, err := Load([]Source{{Name: "rules.yaml", Data: []byte("domain: edge\ndescriptors: [5, 6]")}}, Options{})
	var mistakes Errors
	if !errors.As(err, &mistakes) || len(mistakes.Unwrap()) != 2 {
		t.Fatalf("got %v of type %T, want two mistakes", err, err)
	}
	if got, want := err.Error(), mistakes[0].Error()+"\n"+mistakes[1].Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := (Error{Line: 5, Text: "text"}).Error(), "line 5: text"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := (Error{Text: "text"}).Error(), "text"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMistakesOfAGeneratorComeWithMistakesOfTheDocument(t *testing.T) {
	got := messages(
		t,
		Source{
			Name: "wire:1", Data: []byte(`{"descriptors": [{"key": "a"}, {"key": "a"}]}`), Generated: true,
			Mistakes: []Error{{Path: "metadata", Text: "is no metadata"}}, Warnings: []Warning{{Path: "descriptors[0]", Text: "odd"}},
		},
		Source{Name: "wire:2", Mistakes: []Error{{Text: "is noise"}}},
	)
	want := []string{
		"wire:1: metadata: is no metadata",
		"wire:1: domain: is missing or empty, must be the name of the domain, as Envoy sends it",
		`wire:1: descriptors[1]: "a" is given twice: descriptors side by side must differ in key or value`,
		"wire:2: is noise",
		"wire:1: warning: descriptors[0]: odd",
	}
	must.Match(t, "messages", want, got)
}

func TestStrictTreatsWarningsAsMistakes(t *testing.T) {
	source := Source{Name: "rules.yaml", Data: []byte("domain: edge\ndescriptors: [{key: a, rate_limit: }]")}
	rules, warnings, err := Load([]Source{source}, Options{Strict: true})
	const want = "rules.yaml:2: descriptors[0].rate_limit: is empty: the descriptor has no limit"
	if rules != nil || len(warnings) > 0 || err == nil || err.Error() != want {
		t.Errorf("got %v, %v, %v, want %s", rules, warnings, err, want)
	}
	if _, warnings, err := Load([]Source{source}, Options{}); err != nil || len(warnings) != 1 {
		t.Errorf("without Strict: got %v, %v, want one warning", warnings, err)
	}
}

func TestOddButValidFilesLoad(t *testing.T) {
	for name, row := range map[string]struct {
		text     string
		warnings int
	}{
		"json_with_a_byte_order_mark":    {"\xef\xbb\xbf{\"domain\":\"a\\/b\",\"descriptors\":[{\"key\":\"\\ud83d\\ude00\"}]}", 0},
		"a_broken_second_document":       {"domain: d\n---\n\"x\n", 1},
		"a_broken_document_after_a_mark": {"# first\n---\ndomain: d\n---\n@x\n", 1},
		"share_threshold_on_a_star_key":  {"domain: d\ndescriptors: [{key: \"path_*\", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}]\n", 2},
	} {
		rules, warnings, err := Load([]Source{{Name: "f", Data: []byte(row.text)}}, Options{})
		if err != nil || rules.Len() < 0 || len(warnings) != row.warnings {
			t.Errorf("%s: got %v, warnings %q; want it loaded with %d warnings", name, err, warnings, row.warnings)
		}
	}
}

func TestAFewAliasesOfALongTextAreRefused(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: &k " + strings.Repeat("x", 1<<20) + "\ndescriptors:\n")
	for depth := range 60 {
		b.WriteString(strings.Repeat("  ", depth) + "- key: *k\n" + strings.Repeat("  ", depth) + "  descriptors:\n")
	}
	b.WriteString(strings.Repeat("  ", 60) + "- key: last\n")
	_, _, err := Load([]Source{{Name: "f", Data: []byte(b.String())}}, Options{})
	if err == nil || !strings.Contains(err.Error(), "must have at most 65536 bytes together") {
		t.Errorf("got %.200v; want the length refused", err)
	}
}

func TestALateSyntaxErrorInALargeFileIsFoundOnce(t *testing.T) {
	race.Without(t)
	text := "domain: d\ndescriptors:\n" + strings.Repeat("- {key: a}\n", 120_000) + "  bad: [\n"
	_, _, err := Load([]Source{{Name: "f", Data: []byte(text)}}, Options{})
	if err == nil || !strings.Contains(err.Error(), "not valid YAML") {
		t.Errorf("got %v; want a syntax error", err)
	}
}

func TestAllMistakesOfALimitAreToldAtOnce(t *testing.T) {
	const text = "domain: d\ndescriptors:\n- key: a\n  rate_limit:\n    algorithm: token_bucket_integer\n" +
		"    requests_per_unit: 4000000000\n    period: 1ms\n    burst: 3\n    count_rejected: 7\n"
	_, _, err := Load([]Source{{Name: "f", Data: []byte(text)}}, Options{})
	if err == nil || len(strings.Split(err.Error(), "\n")) != 3 || !strings.Contains(err.Error(), "f:6: descriptors[0].rate_limit.requests_per_unit: ") {
		t.Errorf("got\n%v\nwant three mistakes, one of requests_per_unit", err)
	}
}

// Rules and tables go into messages, which have no other text than UTF-8.
func TestATextThatIsNotUTF8IsRefusedAndAFileNameIsShownAsUTF8(t *testing.T) {
	const text = "domain: d\ndescriptors: [{key: KEY, rate_limit: {unit: day, requests_per_unit: 1, table: t.csv}}]\n"
	load := func(key string) (*Rules, error) {
		table := func(string) (*Table, error) {
			return NewTable("d\xff/t.csv", []byte("value,requests_per_unit\na,1\n")), nil
		}
		rules, _, err := Load([]Source{{Name: "d\xff/r.yaml", Data: []byte(strings.Replace(text, "KEY", key, 1)), Table: table}}, Options{})
		return rules, err
	}
	if _, err := load("!!binary /w=="); err == nil || !strings.HasSuffix(err.Error(), "descriptors[0].key: is binary data that is not UTF-8, must be text") {
		t.Errorf("got %v; want the key refused", err)
	}
	rules := must.Get(load("!!binary aGk="))(t)
	r := rules.Domain("d").Match([]Entry{{"hi", "a"}})
	if got, want := rules.Domain("d").File+" "+r.File+" "+r.Limits[0].Table().File(), "d\uFFFD/r.yaml d\uFFFD/r.yaml d\uFFFD/t.csv"; got != want {
		t.Errorf("got the files %q; want %q", got, want)
	}
}
