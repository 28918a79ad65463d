package main

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/internal/testing/race"
)

// ciLines returns the commands of a file of CI, without the one that installs sidecar.
func ciLines(t *testing.T, file string) (lines []string, report string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../deploy/ci", file))
	if err != nil {
		t.Fatal(err)
	}
	var in struct { // the keys of both
		Jobs map[string]struct {
			RunsOn string `yaml:"runs-on"`
			Steps  []struct {
				Uses, Run, If string
				With          map[string]any
			}
		}
		Rules struct {
			Image     string
			Script    []string
			Artifacts struct{ Reports struct{ Junit string } }
		}
	}
	if err := yaml.Unmarshal(data, &in); err != nil {
		t.Fatal(err)
	}
	lines, report = in.Rules.Script, in.Rules.Artifacts.Reports.Junit
	for _, job := range in.Jobs {
		if job.RunsOn == "" {
			t.Error("a job has no runs-on")
		}
		for _, s := range job.Steps {
			if (s.Uses == "") == (s.Run == "") {
				t.Errorf("a step has %q and %q, want one of uses and run", s.Uses, s.Run)
			}
			if s.Run != "" {
				lines = append(lines, s.Run)
			}
			if path, ok := s.With["path"].(string); ok {
				report = path
			}
		}
	}
	if len(lines) < 3 || !strings.HasPrefix(lines[0], "go install github.com/weirproxy/weir/cmd/sidecar@") || report == "" {
		t.Fatalf("got the lines %q and the report %q", lines, report)
	}
	return lines[1:], report
}

// With the example rules, the files of CI pass and leave a report. With a changed rule they fail.
func TestFilesOfCIRunAsTheyStand(t *testing.T) {
	race.Without(t) // six runs of the program would take a minute of CPU
	for _, file := range []string{"github.yaml", "gitlab.yaml"} {
		t.Run(file, func(t *testing.T) {
			lines, report := ciLines(t, file)
			dir := t.TempDir()
			for _, name := range []string{"rules", "rules-test"} {
				if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join("../../deploy", name))); err != nil {
					t.Fatal(err)
				}
			}
			run := func() (string, error) {
				cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", strings.Join(lines, "\n"))
				cmd.Dir = dir
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			if out, err := run(); err != nil {
				t.Fatalf("with the example rules: %v\n%s", err, out)
			}
			data, err := os.ReadFile(filepath.Join(dir, report))
			if err != nil {
				t.Fatal(err)
			}
			var suites struct {
				Tests    int `xml:"tests,attr"`
				Failures int `xml:"failures,attr"`
			}
			if err := xml.Unmarshal(data, &suites); err != nil || suites.Tests < 7 || suites.Failures != 0 {
				t.Errorf("the report has %d tests and %d failures, %v", suites.Tests, suites.Failures, err)
			}
			for name, change := range map[string][2]string{
				"rules/edge.yaml": {"requests_per_unit: 30\n", "requests_per_unit: 3000\n"}, "rules/teams.csv": {"5000", "500"},
			} {
				path := filepath.Join(dir, name)
				before, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				after := strings.Replace(string(before), change[0], change[1], 1)
				if after == string(before) {
					t.Fatalf("%s has no %q", name, change[0])
				}
				if err := os.WriteFile(path, []byte(after), 0o600); err != nil {
					t.Fatal(err)
				}
				if out, err := run(); err == nil || !strings.Contains(out, "rules-test/") {
					t.Errorf("with another number in %s: got %v, want a failure that names the test\n%s", name, err, out)
				}
				if err := os.WriteFile(path, before, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
