package cases

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// For each name a failure is one printable line, and a report is XML.
func TestNamesCannotHarmTerminalsOrReports(t *testing.T) {
	const text = "rules: r\ndomain: d\ntests:\n- name: \"a\\x1b[31m\\nb \\0 \\uFFFE ]]> & é\"\n  steps:\n  - {descriptor: \"k=\\x1b\\r\", outcome: ok}\n"
	f := must.Get(Read("c.yaml", []byte(text), parse))(t)
	results, err := Run(t.Context(), f, new(descriptors.Rules))
	if err != nil || len(results) != 1 || len(results[0].Failures) != 1 {
		t.Fatalf("got %+v, %v", results, err)
	}
	got := results[0].Failures[0].Error()
	want := `c.yaml:6: "a\x1b[31m\nb \x00 \ufffe ]]> & é": at 0s: "k=\x1b\r": the outcome is no_domain, want ok (no rule)`
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	var out bytes.Buffer
	must.Do(t, WriteJUnit(&out, []Suite{{Path: "c.yaml", Results: results}}))
	for d := xml.NewDecoder(&out); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the report is no XML: %v", err)
		}
	}
}

func TestAnAliasIsAMistakeThatSaysSo(t *testing.T) {
	const text = "rules: r\ndomain: d\ntests:\n- &a {name: x, steps: [{descriptor: k=v, outcome: ok}]}\n- *a\n"
	_, err := Read("c.yaml", []byte(text), parse)
	if err == nil || !strings.Contains(err.Error(), "c.yaml:5: tests[1]: is an alias, must be written out") {
		t.Errorf("got %v", err)
	}
}
