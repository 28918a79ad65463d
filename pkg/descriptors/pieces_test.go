package descriptors

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
)

// checkPieces fails if a source makes other rules, mistakes or warnings when the list of its
// descriptors is parsed in the smallest pieces.
func checkPieces(t *testing.T, s Source) {
	t.Helper()
	want, wantWarnings, wantErr := Load([]Source{s}, Options{})
	got, warnings, err := loadInPieces([]Source{s}, Options{}, 1)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("in pieces: error %v; want %v", err, wantErr)
	}
	if wantErr != nil && err.Error() != wantErr.Error() {
		t.Errorf("in pieces: error\n%v\nwant\n%v", err, wantErr)
	}
	if diff := cmp.Diff(wantWarnings, warnings); diff != "" {
		t.Errorf("warnings in pieces (-want +got):\n%s", diff)
	}
	if wantErr != nil {
		return
	}
	if got.Hash() != want.Hash() {
		t.Error("the hash of the rules differs in pieces")
	}
	lines := func(r *Rules) (all []string) {
		for _, rule := range r.All() {
			all = append(all, fmt.Sprintf("%d %s:%d %s", rule.ID, rule.File, rule.Line, rule.Path))
		}
		return all
	}
	if diff := cmp.Diff(lines(want), lines(got)); diff != "" {
		t.Errorf("rules in pieces (-want +got):\n%s", diff)
	}
}

func TestAListInPiecesIsTheSameList(t *testing.T) {
	const rule = "rate_limit: {unit: minute, requests_per_unit: 1}"
	for name, text := range map[string]string{
		"plain":            "domain: a\ndescriptors:\n- key: a\n  " + rule + "\n\n# between\n- key: b\n  " + rule + "\n",
		"indented":         "descriptors: # the list\n  # of two\n  - key: a\n    " + rule + "\n  -\n    key: b\n    " + rule + "\ndomain: a\n",
		"nested":           "domain: a\ndescriptors:\n  - key: a\n    descriptors:\n      - key: b\n        " + rule + "\n      - key: c\n  - key: d\n",
		"aliases":          "domain: a\ndescriptors:\n  - key: a\n    rate_limit: &l {unit: minute, requests_per_unit: 1}\n  - key: b\n    rate_limit: *l\n",
		"unknown alias":    "domain: a\ndescriptors:\n  - key: a\n    rate_limit: *l\n  - key: b\n",
		"twice":            "domain: a\ndescriptors:\n  - key: a\ndescriptors:\n  - key: b\n",
		"twice, then none": "domain: a\ndescriptors:\n  - key: a\ndescriptors:\n",
		"mistakes":         "domain: a\ndescriptors:\n  - key: a\n    x: 1\n  - kez: b\n  - c\n  - [d]\ndefault: 7\n",
		"no item":          "domain: a\ndescriptors:\n  - key: a\n  b\n  - key: c\n",
		"a bad ConfigMap":  "apiVersion: v1\nkind: ConfigMap\ndescriptors:\n  - key: a\n  - key: [b\n  - key: c\n",
		"a bad piece":      "domain: a\ndescriptors:\n  - key: a\n  - key: [b\n  - key: c\n",
		"a text of lines":  "domain: a\ndescriptors:\n  - key: 'a\n  - b'\n    " + rule + "\n  - key: c\n    " + rule + "\n",
		"a block":          "domain: a\ndescriptors:\n  - key: |-\n      - a\n    " + rule + "\n  - key: c\n    " + rule + "\n",
		"a map":            "domain: a\ndescriptors:\n  key: b\n",
		"a bad end":        "domain: a\ndescriptors:\n  - key: b\ndefault: [\n",
		"two documents":    "domain: a\ndescriptors:\n  - key: b\n---\ndomain: c\n",
		"a tab":            "domain: a\ndescriptors:\n  - key: b\n\t- key: c\n",
		"a dash":           "domain: a\ndescriptors:\n  -\n  - key: c\n  --- \n",
		"CRLF":             "domain: a\r\ndescriptors:\r\n  - key: b\r\n    " + rule + "\r\n  - key: c\r\n    " + rule + "\r\n",
		"a text above":     "note: \"a\ndescriptors:\n  - b\"\ndomain: a\ndescriptors:\n  - key: c\n    " + rule + "\n",
	} {
		t.Run(name, func(t *testing.T) { checkPieces(t, Source{Name: "rules.yaml", Data: []byte(text)}) })
	}
}

func TestADocumentIsSplitBetweenItems(t *testing.T) {
	rest, p := split([]byte("domain: a\ndescriptors:\n- key: a\n\n- key: b\n  x: 1\n- key: c\ndefault: 1\n"), 8)
	if p == nil {
		t.Fatal("not split")
	}
	if want := "domain: a\ndescriptors:\n\n\n\n\n\ndefault: 1\n"; string(rest) != want {
		t.Errorf("the document without its list is %q, want %q", rest, want)
	}
	var got []string
	for _, part := range p.parts {
		got = append(got, fmt.Sprintf("%d %s", part.line, part.data))
	}
	if diff := cmp.Diff([]string{"2 - key: a\n\n", "4 - key: b\n  x: 1\n", "6 - key: c\n"}, got); diff != "" {
		t.Errorf("pieces (-want +got):\n%s", diff)
	}
}

func TestALargeDocumentIsLoadedInPieces(t *testing.T) {
	var doc strings.Builder
	doc.WriteString("domain: edge\ndescriptors:\n")
	for i := range 10_000 {
		fmt.Fprintf(&doc, "- key: key\n  value: value%d\n  rate_limit: {unit: second, requests_per_unit: 1}\n", i)
	}
	if _, p := split([]byte(doc.String()), pieceBytes); p == nil || len(p.parts) < 5 {
		t.Fatal("the document is not split")
	}
	rules := must.First(Load([]Source{{Data: []byte(doc.String())}}, Options{}))(t)
	if last := rules.All()[9_999]; last.Path != "key=value9999" || last.Line != 3+3*9_999 {
		t.Errorf("the last rule is %s in line %d", last.Path, last.Line)
	}
}

func TestRulesWithTheSameLimitShareIt(t *testing.T) {
	doc := "domain: d\ndescriptors:\n" +
		"- {key: a, rate_limit: {unit: minute, requests_per_unit: 5}}\n" +
		"- {key: b, rate_limit: {unit: minute, requests_per_unit: 5}}\n" +
		"- {key: c, rate_limit: {unit: minute, requests_per_unit: 6}}\n" +
		"- {key: d, rate_limit: {unit: minute, requests_per_unit: 5, name: n}}\n"
	all := must.First(Load([]Source{{Data: []byte(doc)}}, Options{}))(t).All()
	for i, shares := range []bool{true, true, false, false} {
		if got := &all[i].Limits[0] == &all[0].Limits[0]; got != shares {
			t.Errorf("rule %s shares the limit of the first one: %v, want %v", all[i].Path, got, shares)
		}
	}
}
