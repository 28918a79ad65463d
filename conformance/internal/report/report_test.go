package report_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"strings"
	"testing"

	"github.com/weirproxy/weir/conformance/cases"
	"github.com/weirproxy/weir/conformance/internal/report"
	"github.com/weirproxy/weir/conformance/internal/runner"
)

func TestEachFormHasEachOutcome(t *testing.T) {
	t.Parallel()
	r := report.Report{Target: "<target>", Profile: cases.Strict, Results: []runner.Result{
		{ID: "a/pass", Claim: "one", Profile: cases.Reference, Outcome: runner.Pass},
		{ID: "a/fail", Claim: "two", Profile: cases.Strict, Outcome: runner.Fail, Reason: "want <x>\x00"},
		{ID: "a/cannot", Claim: "three", Profile: cases.Strict, Outcome: runner.Cannot, Reason: "needs redis"},
	}}
	texts := make(map[string]string)
	for _, form := range report.Forms() {
		var text bytes.Buffer
		if err := r.Write(&text, form); err != nil {
			t.Fatal(err)
		}
		texts[form] = text.String()
		if !strings.Contains(texts[form], "fail") || !strings.Contains(texts[form], "needs redis") {
			t.Errorf("%s:\n%s", form, texts[form])
		}
	}
	if err := r.Write(new(bytes.Buffer), "pdf"); err == nil {
		t.Error("a form that does not exist is taken")
	}
	if !json.Valid([]byte(texts["json"])) {
		t.Error("not JSON")
	}
	var suite struct {
		Failures int `xml:"failures,attr"`
		Skipped  int `xml:"skipped,attr"`
	}
	if err := xml.Unmarshal([]byte(texts["junit"]), &suite); err != nil || suite.Failures != 1 || suite.Skipped != 1 {
		t.Errorf("got %+v, %v", suite, err)
	}
	if strings.Contains(texts["html"], "want <x>") {
		t.Error("the page does not escape texts")
	}
}
