package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/internal/lab/cases"
	"github.com/weirproxy/weir/internal/regular"
	"github.com/weirproxy/weir/internal/rules/reload"
	"github.com/weirproxy/weir/pkg/descriptors"
)

// outputJUnit is the form of a report for servers of continuous integration.
const outputJUnit = "junit"

func newTest() *cobra.Command {
	var output string
	var bounds ruleBounds
	cmd := &cobra.Command{
		Use:   "test PATH…",
		Short: "Run tests of rules and print every failure",
		Long: `Run files of cases, or the *.yaml and *.yml files of directories. A file names rules, and tests with requests at instants and the expected
answers. The requests go through the real limiter in virtual time, each test from idle counts. docs/rules-testing.md describes the files.

The command prints every failure and every mistake, one per line with file and line, on standard error. Exit code 1 when a test fails or
rules have mistakes, 2 when a file of cases has mistakes. --output junit prints a report for CI on standard output beside the failures.`,
		Example: `  sidecar test rules-test/
  sidecar test --output junit rules-test/ >report.xml`,
		Args: arguments(1, -1, "files of cases, or directories of them"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != outputText && output != outputJSON && output != outputJUnit {
				return usage("--output: %q: must be %s, %s or %s", output, outputText, outputJSON, outputJUnit)
			}
			files, err := caseFiles(args)
			if err != nil {
				return err
			}
			t := tested{bounds: bounds}
			for _, path := range files {
				if err := t.file(cmd, path); err != nil {
					return err
				}
			}
			return t.report(cmd, output)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&output, "output", outputText, "text|json|junit")
	addBounds(cmd, &bounds)
	return cmd
}

func caseFiles(paths []string) (files []string, err error) {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, usage("%w", err)
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, usage("%w", err)
		}
		before := len(files)
		for _, e := range entries {
			if !e.IsDir() && reload.IsRuleFile(e.Name()) && filepath.Ext(e.Name()) != ".json" {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
		if len(files) == before {
			return nil, usage("%s: holds no files of cases, must have at least one *.yaml or *.yml", path)
		}
	}
	return files, nil
}

// tested is the results so far.
type tested struct {
	bounds ruleBounds
	suites []cases.Suite
	tests  int
	steps  int
	failed int     // tests
	errs   []error // failures and mistakes
	code   int     // 0, exitBad or exitUsage
}

// file runs the tests of a file. The error is one that ends the command.
func (t *tested) file(cmd *cobra.Command, path string) error {
	suite := cases.Suite{Path: path}
	results, code, err := t.run(cmd, path)
	if f, ok := errors.AsType[failure](err); ok && f.code == exitUsage && !f.bare {
		return err
	}
	if err != nil {
		t.errs, t.code = append(t.errs, err), max(t.code, code)
		for _, f := range findings(err) {
			suite.Mistakes = append(suite.Mistakes, descriptors.Error(f).Error())
		}
	}
	for _, r := range results {
		t.tests++
		t.steps += len(r.Steps)
		if len(r.Failures) > 0 {
			t.failed++
			t.errs, t.code = append(t.errs, r.Failures), max(t.code, exitBad)
		}
	}
	suite.Results = results
	t.suites = append(t.suites, suite)
	return nil
}

// run returns the results of the tests of a file, or the mistakes that keep them from running, and
// the exit code of these.
func (t *tested) run(cmd *cobra.Command, path string) ([]cases.Result, int, error) {
	data, err := regular.Read(path, descriptors.DefaultMaxBytes)
	if err != nil {
		return nil, exitUsage, reload.FileError{File: path, Err: err}
	}
	file, err := cases.Read(path, data, parseEntries)
	if err != nil {
		return nil, exitUsage, err
	}
	rules, _, _, err := loadRules(file.Rules, "", t.bounds)
	if err != nil {
		return nil, exitBad, err
	}
	results, err := cases.Run(cmd.Context(), file, rules)
	return results, exitBad, err
}

func (t *tested) report(cmd *cobra.Command, output string) error {
	out := cmd.OutOrStdout()
	var err error
	switch output {
	case outputJSON:
		if err = writeJSON(out, t.json()); err == nil && t.code != 0 {
			err = reported(t.code)
		}
		return err
	case outputJUnit:
		err = cases.WriteJUnit(out, t.suites)
	default:
		if t.code == 0 {
			_, err = fmt.Fprintf(out, "ok: %s, %s, %s\n", count(len(t.suites), "file"), count(t.tests, "test"), count(t.steps, "step"))
		}
	}
	if err != nil || t.code == 0 {
		return err
	}
	all := t.errs
	if t.failed > 0 {
		all = append(all, fmt.Errorf("failed: %d of %s", t.failed, count(t.tests, "test")))
	}
	return bad(errors.Join(all...), t.code)
}

type testedJSON struct {
	OK    bool             `json:"ok"`
	Files []testedFileJSON `json:"files"`
}

type testedFileJSON struct {
	File     string     `json:"file"`
	Mistakes []string   `json:"mistakes"`
	Tests    []testJSON `json:"tests"`
}

type testJSON struct {
	Name     string    `json:"name"`
	Line     int       `json:"line"`
	OK       bool      `json:"ok"`
	Failures []finding `json:"failures"`
}

func (t *tested) json() testedJSON {
	out := testedJSON{OK: t.code == 0, Files: []testedFileJSON{}}
	for _, s := range t.suites {
		file := testedFileJSON{File: s.Path, Mistakes: append([]string{}, s.Mistakes...), Tests: []testJSON{}}
		for _, r := range s.Results {
			test := testJSON{Name: r.Name, Line: r.Line, OK: len(r.Failures) == 0, Failures: []finding{}}
			for _, f := range r.Failures {
				test.Failures = append(test.Failures, finding(f))
			}
			file.Tests = append(file.Tests, test)
		}
		out.Files = append(out.Files, file)
	}
	return out
}
