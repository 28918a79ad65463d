// Package modules holds a test of go.mod: a program that imports Weir gets only the modules that
// Weir is built from.
package modules

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// onlyTests are modules that Weir's tests need. These modules stand in the go.mod of deploy, and
// never in Weir's own.
var onlyTests = regexp.MustCompile(`(?i)k8s\.io|kustomize|toxiproxy|envconfig|chromedp`)

// TestAProgramThatImportsTheLimiterGetsNoModulesOfTests asks the go command for the modules of such
// a program.
func TestAProgramThatImportsTheLimiterGetsNoModulesOfTests(t *testing.T) {
	all := modulesOf(t, "github.com/weirproxy/weir/pkg/limiter")
	for line := range strings.Lines(all) {
		if onlyTests.MatchString(line) {
			t.Errorf("the program gets %s", strings.TrimSpace(line))
		}
	}
	if !strings.Contains(all, "github.com/weirproxy/weir ") {
		t.Errorf("Weir itself is missing from:\n%s", all)
	}
	t.Logf("go list -m all:\n%s", all)
}

// modulesOf returns the output of `go list -m all` in the module of a program that imports one
// package of this work tree.
func modulesOf(t *testing.T, imports string) string {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{
		"main.go": "package main\n\nimport _ \"" + imports + "\"\n\nfunc main() {}\n",
		"go.mod": "module example.com/program\n\ngo 1.26.0\n\nrequire github.com/weirproxy/weir v0.0.0\n\n" +
			"replace github.com/weirproxy/weir => " + root + "\n",
		"go.sum": string(sums),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"mod", "tidy"}, {"build", "-o", os.DevNull, "."}, {"list", "-m", "all"}} {
		command := exec.CommandContext(t.Context(), "go", args...)
		command.Dir, command.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod")
		out, err := command.Output()
		if err != nil {
			t.Fatalf("go %s: %v", strings.Join(args, " "), err)
		}
		if args[0] == "list" {
			return string(out)
		}
	}
	return ""
}
