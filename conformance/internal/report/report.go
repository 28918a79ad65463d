// Package report writes the results of a run.
package report

import (
	"embed"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"html/template"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weirproxy/weir/conformance/cases"
	"github.com/weirproxy/weir/conformance/internal/runner"
)

//go:embed page.html.tmpl
var page embed.FS

// A Report is the results of one run.
type Report struct {
	Target  string          `json:"target"`
	Profile cases.Profile   `json:"profile"`
	When    time.Time       `json:"when"`
	Results []runner.Result `json:"results"`
}

// Forms returns the names of the forms that Write has.
func Forms() []string { return []string{"text", "json", "junit", "html"} }

// Count returns the number of results of an outcome, of one profile or, with "", of all.
func (r Report) Count(outcome runner.Outcome, profile cases.Profile) int {
	n := 0
	for _, result := range r.Results {
		if result.Outcome == outcome && (profile == "" || result.Profile == profile) {
			n++
		}
	}
	return n
}

// Rows returns the profiles of the run, for tables.
func (r Report) Rows() []cases.Profile {
	var rows []cases.Profile
	for _, p := range cases.Profiles() {
		if r.Profile.Includes(p) {
			rows = append(rows, p)
		}
	}
	return rows
}

// Write writes the report in one of the forms.
func (r Report) Write(w io.Writer, form string) error {
	switch form {
	case "text":
		return r.text(w)
	case "json":
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	case "junit":
		return r.junit(w)
	case "html":
		t, err := template.ParseFS(page, "page.html.tmpl")
		if err != nil {
			return err
		}
		return t.Execute(w, r)
	default:
		return fmt.Errorf("report %q must be one of %s", form, strings.Join(Forms(), ", "))
	}
}

func (r Report) text(w io.Writer) error {
	for _, result := range r.Results {
		if result.Outcome != runner.Fail {
			continue
		}
		reason := strings.ReplaceAll(result.Reason, "\n", "\n      ")
		fmt.Fprintf(w, "FAIL  %s\n      %s\n      from %s\n      %s\n", result.ID, result.Claim, result.From, reason)
	}
	reasons := make(map[string]int)
	var order []string
	for _, result := range r.Results {
		if result.Outcome != runner.Cannot {
			continue
		}
		if reasons[result.Reason] == 0 {
			order = append(order, result.Reason)
		}
		reasons[result.Reason]++
	}
	for _, reason := range order {
		fmt.Fprintf(w, "cannot  %d cases: %s\n", reasons[reason], reason)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "profile\tpass\tfail\tcannot\n")
	for _, p := range r.Rows() {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\n", p, r.Count(runner.Pass, p), r.Count(runner.Fail, p), r.Count(runner.Cannot, p))
	}
	return table.Flush()
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string      `xml:"classname,attr"`
	Name    string      `xml:"name,attr"`
	Time    string      `xml:"time,attr"`
	Failure *junitEvent `xml:"failure,omitempty"`
	Skipped *junitEvent `xml:"skipped,omitempty"`
}

type junitEvent struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

func (r Report) junit(w io.Writer) error {
	suite := junitSuite{
		Name: "rls-conformance", Tests: len(r.Results),
		Failures: r.Count(runner.Fail, ""), Skipped: r.Count(runner.Cannot, ""),
	}
	for _, result := range r.Results {
		class, name, _ := strings.Cut(result.ID, "/")
		c := junitCase{Class: class, Name: name, Time: fmt.Sprintf("%.3f", result.Took.Seconds())}
		switch result.Outcome {
		case runner.Fail:
			c.Failure = &junitEvent{Message: result.Claim, Text: result.Reason + "\nfrom " + result.From}
		case runner.Cannot:
			c.Skipped = &junitEvent{Message: result.Reason}
		case runner.Pass:
		}
		suite.Cases = append(suite.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(w)
	encoder.Indent("", "  ")
	if err := encoder.Encode(suite); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
