// Package platforms plays the tests of other projects against Weir: of Envoy Gateway, and of
// envoyproxy/ratelimit, and the documented examples of Istio and of Contour.
// docs/platforms-cases.md names each case and its result. The tests fail if another case or another
// result is found.
package platforms

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/test/parts"
)

// The results of a case on the page.
const (
	pass   = "pass"
	fail   = "fail"   // runs, and another answer is expected
	cannot = "cannot" // does not run here
)

// A row is a case of the page.
type row struct {
	result string
	why    string // empty for most that pass
}

// An outcome is the end of a case that was played.
type outcome struct {
	result string
	took   time.Duration // 0 when nothing ran
}

// unplayed returns the outcomes of the cases that cannot be played.
func unplayed(page map[string]row) map[string]outcome {
	outcomes := make(map[string]outcome)
	for name, row := range page {
		if row.result == cannot {
			outcomes[name] = outcome{result: cannot}
		}
	}
	return outcomes
}

// report prints each case of a page with its outcome, and fails where the page has another result.
func report(t *testing.T, page map[string]row, outcomes map[string]outcome) {
	t.Helper()
	count := make(map[string]int)
	for _, name := range slices.Sorted(maps.Keys(page)) {
		want, got := page[name], outcomes[name]
		count[got.result]++
		t.Logf("%-6s %6.1f s  %s  %s", got.result, got.took.Seconds(), name, want.why)
		if got.result != want.result {
			t.Errorf("%s: got %q, the page says %s", name, got.result, want.result)
		}
	}
	t.Logf("%d cases: %d pass, %d fail, %d cannot", len(page), count[pass], count[fail], count[cannot])
}

// cases returns the cases in the table below a heading of the page, by name.
func cases(t *testing.T, heading string) map[string]row {
	t.Helper()
	page := parts.Read(t, filepath.Join(parts.RootFor(t), "docs/platforms-cases.md"))
	_, text, found := strings.Cut(page, "\n## "+heading+"\n")
	if !found {
		t.Fatalf("the page has no heading %q", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	all := make(map[string]row)
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (\\w+) \\|(.*)\\|$").FindAllStringSubmatch(text, -1) {
		name, result, why := m[1], m[2], strings.TrimSpace(m[3])
		switch {
		case all[name] != row{}:
			t.Errorf("%s: twice on the page", name)
		case result != pass && result != fail && result != cannot:
			t.Errorf("%s: got %q, want pass, fail or cannot", name, result)
		case result != pass && why == "":
			t.Errorf("%s: the page does not say why it is %s", name, result)
		}
		all[name] = row{result, why}
	}
	return all
}

// tree returns the directory that a variable names, of another project's source. Without the
// variable the test skips.
func tree(t *testing.T, variable string) string {
	t.Helper()
	dir := os.Getenv(variable)
	if dir == "" {
		t.Skip(variable + " names no tree of the source: see docs/platforms-cases.md")
	}
	return dir
}

// ratelimitModule returns the source of envoyproxy/ratelimit in the version that go.mod names: its
// runner is replaced by package runner, which needs that version's settings.
func ratelimitModule(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/envoyproxy/ratelimit").Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	return module.Dir
}

// integrationTests returns the names of the integration tests in a tree of envoyproxy/ratelimit.
func integrationTests(t *testing.T, source string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(source, "test/integration/*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: got %v, %v; want the integration tests", source, files, err)
	}
	return parse(t, files...).tests()
}

// sameCases holds that the page names the cases that the source has.
func sameCases(t *testing.T, page map[string]row, source []string) {
	t.Helper()
	if diff := cmp.Diff(slices.Sorted(slices.Values(source)), slices.Sorted(maps.Keys(page))); diff != "" {
		t.Errorf("cases (-source +page):\n%s", diff)
	}
}

// A source is the functions and variables of Go files.
type source struct {
	declarations []ast.Decl
}

// parse reads Go files.
func parse(t *testing.T, files ...string) source {
	t.Helper()
	var s source
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		s.declarations = append(s.declarations, parsed.Decls...)
	}
	return s
}

// tests returns the names of the tests: of each test function without steps, and of the steps of
// the others, as `go test` prints them.
func (s source) tests() []string {
	var names []string
	for _, declaration := range s.declarations {
		f, ok := declaration.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") {
			continue
		}
		steps := stepsOf(f.Body)
		if len(steps) == 0 {
			names = append(names, f.Name.Name)
		}
		for _, step := range steps {
			names = append(names, f.Name.Name+"/"+step)
		}
	}
	return names
}

// stepsOf returns the names of the steps in a node: the first arguments of t.Run.
func stepsOf(node ast.Node) []string {
	var names []string
	ast.Inspect(node, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 2 {
			return true
		}
		function, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || function.Sel.Name != "Run" {
			return true
		}
		if name, ok := text(call.Args[0]); ok {
			names = append(names, strings.ReplaceAll(name, " ", "_"))
		}
		return true
	})
	return names
}

// text returns the value of a literal of text.
func text(node ast.Expr) (string, bool) {
	literal, ok := node.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	value, err := strconv.Unquote(literal.Value)
	return value, err == nil
}

// A new version of the module may have other tests.
func TestThePageHasTheTestsOfTheModuleOfTheOriginal(t *testing.T) {
	t.Parallel()
	sameCases(t, cases(t, "envoyproxy/ratelimit"), integrationTests(t, ratelimitModule(t)))
}

// A page whose table could lose a row, or have a result of its own making, proves nothing.
func TestEachCaseOfThePageHasAResultAndAReason(t *testing.T) {
	t.Parallel()
	for heading, least := range map[string]int{"Envoy Gateway": 23, "envoyproxy/ratelimit": 40, "Istio": 1, "Contour": 3, "agentgateway": 3} {
		if got := len(cases(t, heading)); got < least {
			t.Errorf("%s: got %d cases, want %d or more", heading, got, least)
		}
	}
}
