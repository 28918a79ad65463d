package descriptors

import (
	"strings"
	"testing"
)

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
	rules, err := load("!!binary aGk=")
	if err != nil {
		t.Fatal(err)
	}
	r := rules.Domain("d").Match([]Entry{{"hi", "a"}})
	if got, want := rules.Domain("d").File+" "+r.File+" "+r.Limits[0].Table().File(), "d\uFFFD/r.yaml d\uFFFD/r.yaml d\uFFFD/t.csv"; got != want {
		t.Errorf("got the files %q; want %q", got, want)
	}
}
