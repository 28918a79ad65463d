package descriptors

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
		{Name: "weir.yaml", Data: []byte(settings), Inline: true},
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
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
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
		rules, warnings, err := Load([]Source{{Name: "weir.yaml", Data: []byte(data), Inline: true}}, Options{})
		if err != nil || len(warnings) > 0 || rules.Len() != 0 || len(rules.Domains()) != 0 {
			t.Errorf("%q: got %v, %v, %v, want no rules", data, rules, warnings, err)
		}
	}
}

func TestMistakesOfAllSourcesComeTogether(t *testing.T) {
	inline := strings.Replace(settings, "unit: second, requests_per_unit: 2", "unit: fortnight", 1)
	documents := []map[string]any{
		{"domain": "One", "descriptors": []any{map[string]any{"key": "a", "rate_limit": map[string]any{"unit": "second", "requests_per_unit": "5"}}}},
		{"domain": "four", "descriptors": []map[string]any{{"key": "a"}, {"key": "a"}, {"key": "b", "value": 1.5}}},
	}
	got := messages(
		t,
		Source{Name: "z.yaml", Data: []byte("domain: [")},
		Source{Name: "weir.yaml", Data: []byte(inline), Inline: true},
		Source{Name: "weir.toml", Documents: documents},
		Source{Name: "a.yaml", Data: []byte("\ndescriptors: [{}, 5]\ndomain: two\n")},
		Source{Name: "list.yaml", Data: []byte("[]"), Inline: true},
		Source{Name: "map.yaml", Data: []byte("a: 1\ndomains: {domain: x}"), Inline: true},
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
		`z.yaml:1: not valid YAML: did not find expected node content`,
		`weir.yaml:9: warning: domains[1].default: has no requests_per_unit: that is 0, and denies every hit`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

func TestDecodedDocumentsMeanWhatTheirTextMeans(t *testing.T) {
	document := map[string]any{
		"domain":   "edge",
		"defaults": map[string]any{"algorithm": "token_bucket", "count_rejected": true},
		"descriptors": []any{
			map[string]any{"key": "a", "value": int64(5), "rate_limit": map[string]any{"requests_per_unit": int64(7), "period": "10s", "burst": float64(9)}},
			map[string]any{"key": "b", "value": "yes", "shadow_mode": true, "rate_limits": []map[string]any{{"requests_per_unit": uint16(7), "unit": "day"}}},
			map[string]any{"key": "c", "value": true, "metadata": map[string]any{
				"<<": "plain", "yes": "no", "float": 1.5, "float32": float32(0.5), "nil": nil, "number": json.Number("1e3"), "whole": json.Number("12"),
				"date": time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC), "list": []any{1, "2"},
			}},
		},
	}
	got, _, err := Load([]Source{{Name: "rules", Documents: []map[string]any{document}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := load(t, `
domain: edge
defaults: {algorithm: token_bucket, count_rejected: true}
descriptors:
  - {key: a, value: 5, rate_limit: {requests_per_unit: 7, period: 10s, burst: 9}}
  - {key: b, value: "yes", shadow_mode: true, rate_limits: [{requests_per_unit: 7, unit: day}]}
  - key: c
    value: true
    metadata: {"<<": plain, "yes": "no", float: 1.5, float32: 0.5, nil: , number: 1000, whole: 12, date: "2024-01-02 03:04:05 +0000 UTC", list: [1, "2"]}
`)
	if diff := cmp.Diff(want.All(), got.All(), cmp.AllowUnexported(Rule{}, level{}, Limit{}), cmp.FilterPath(func(p cmp.Path) bool {
		return p.Last().String() == ".File" || p.Last().String() == ".Line"
	}, cmp.Ignore())); diff != "" {
		t.Errorf("rules (-of text +of values):\n%s", diff)
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

	cyclic := map[string]any{"key": "a"}
	cyclic["descriptors"] = []any{cyclic}
	got := messages(t, Source{Name: "rules", Documents: []map[string]any{cyclic}})
	if !strings.Contains(strings.Join(got, "\n"), "nested too deeply") {
		t.Errorf("a map inside itself: got %q, want a mistake", got)
	}
}

func TestVeryManyMistakesAreCut(t *testing.T) {
	got := messages(t, Source{Name: "rules.yaml", Data: []byte("domain: edge\ndescriptors:\n" + strings.Repeat("- 5\n", 5000))})
	if len(got) != maxMistakes+1 || !strings.HasSuffix(got[maxMistakes], "too many mistakes, what follows was not read") {
		t.Errorf("got %d mistakes, the last %q, want %d and a word on the rest", len(got), got[len(got)-1], maxMistakes)
	}
}

func TestTooLargeDocumentsAreMistakes(t *testing.T) {
	got := messages(t, Source{Name: "rules.yaml", Data: make([]byte, maxBytes+1)})
	if want := []string{"rules.yaml: 67108865 bytes are too many, must be at most 67108864"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
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

func TestASourceMayDecodeItsOwnData(t *testing.T) {
	var given string
	source := Source{Name: "wire:1", Data: []byte{0, 1}, Decode: func(data []byte) (map[string]any, []Error, []Warning) {
		given = string(data)
		return map[string]any{"domain": "edge", "descriptors": []any{
			map[string]any{"key": "user", "rate_limit": map[string]any{"unit": "MINUTE", "requests_per_unit": uint32(7)}},
		}}, nil, []Warning{{Path: "descriptors[0]", Text: "odd"}}
	}}
	rules, warnings, err := Load([]Source{source}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if given != "\x00\x01" || rules.All()[0].Limits[0].Requests != 7 || rules.All()[0].File != "wire:1" {
		t.Errorf("rules of %q: got %+v", given, rules.All())
	}
	if diff := cmp.Diff([]Warning{{File: "wire:1", Path: "descriptors[0]", Text: "odd"}}, warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestMistakesOfDecodingComeWithThoseOfTheDocument(t *testing.T) {
	got := messages(t, Source{Name: "wire:1", Decode: func([]byte) (map[string]any, []Error, []Warning) {
		return map[string]any{"descriptors": []any{}}, []Error{{Path: "metadata", Text: "is no metadata"}}, nil
	}}, Source{Name: "wire:2", Decode: func([]byte) (map[string]any, []Error, []Warning) {
		return nil, []Error{{Text: "is noise"}}, nil
	}})
	want := []string{
		"wire:1: metadata: is no metadata",
		"wire:1: domain: is missing or empty, must be the name of the domain, as Envoy sends it",
		"wire:2: is noise",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mistakes (-want +got):\n%s", diff)
	}
}
