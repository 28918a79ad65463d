package cases

import (
	"encoding/xml"
	"io"
)

// Suite is the results of one file, or the mistakes that keep its tests from running.
type Suite struct {
	Path     string
	Results  []Result
	Mistakes []string
}

// The elements and attributes of a report that GitLab, Jenkins and the actions of GitHub read.
// GitLab shows the attribute file.
type (
	junitReport struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name     string         `xml:"name,attr"`
		Class    string         `xml:"classname,attr"`
		File     string         `xml:"file,attr"`
		Line     int            `xml:"line,attr,omitempty"`
		Failures []junitMessage `xml:"failure"`
		Errors   []junitMessage `xml:"error"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes a report in the form that JUnit's is known for, which servers of continuous
// integration read. A mistake is the error of a test case with the name of its file.
func WriteJUnit(w io.Writer, suites []Suite) error {
	var report junitReport
	for _, s := range suites {
		out := junitSuite{Name: s.Path}
		for _, r := range s.Results {
			c := junitCase{Name: r.Name, Class: s.Path, File: s.Path, Line: r.Line}
			for _, f := range r.Failures {
				c.Failures = append(c.Failures, junitMessage{Message: f.Text, Text: f.Error()})
			}
			if len(c.Failures) > 0 {
				out.Failures++
			}
			out.Cases = append(out.Cases, c)
		}
		if len(s.Mistakes) > 0 {
			c := junitCase{Name: s.Path, Class: s.Path, File: s.Path}
			for _, m := range s.Mistakes {
				c.Errors = append(c.Errors, junitMessage{Message: m, Text: m})
			}
			out.Errors++
			out.Cases = append(out.Cases, c)
		}
		out.Tests = len(out.Cases)
		report.Tests, report.Failures, report.Errors = report.Tests+out.Tests, report.Failures+out.Failures, report.Errors+out.Errors
		report.Suites = append(report.Suites, out)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(report); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
