package race

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestScaleIsATenthWithTheRaceDetector(t *testing.T) {
	full := !Enabled && !testing.Short()
	for n, want := range map[int]int{1000: 100, 5: 1} {
		if full {
			want = n
		}
		if got := Scale(n); got != want {
			t.Errorf("Scale(%d) = %d, want %d", n, got, want)
		}
	}
}

// TestMakeRunsTestsThatUseThisPackageAlsoWithoutTheRaceDetector reads WHOLE of the Makefile.
func TestMakeRunsTestsThatUseThisPackageAlsoWithoutTheRaceDetector(t *testing.T) {
	const root = "../../.."
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^WHOLE := (\S+)$`).FindSubmatch(makefile)
	if line == nil {
		t.Fatal("the Makefile has no line WHOLE := REGEXP")
	}
	whole := regexp.MustCompile(string(line[1]))
	used := 0
	for _, pattern := range []string{"pkg/*", "pkg/*/*", "internal/*", "internal/*/*", "cmd/*"} {
		dirs, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			for _, name := range testsThatUseRace(t, dir) {
				used++
				if !whole.MatchString(name) {
					t.Errorf("%s: %s uses package race, and WHOLE of the Makefile does not name it", dir, name)
				}
			}
		}
	}
	if used < 5 {
		t.Errorf("got %d tests that use package race, want the many that do", used)
	}
}

// testsThatUseRace returns the names of a directory's tests that use this package, by themselves or
// through functions of the tests' files. The cases of storetest use this package, too.
func testsThatUseRace(t *testing.T, dir string) (tests []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	uses := make(map[string]bool)      // by function: it uses package race
	names := make(map[string][]string) // by function: all names in it
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range parsed.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(function, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && (x.Name == "race" || x.Name == "storetest") {
						uses[function.Name.Name] = true
					}
				case *ast.Ident:
					names[function.Name.Name] = append(names[function.Name.Name], n.Name)
				}
				return true
			})
		}
	}
	for changed := true; changed; {
		changed = false
		for function, all := range names {
			for _, name := range all {
				if uses[name] && !uses[function] {
					uses[function], changed = true, true
				}
			}
		}
	}
	for function := range uses {
		if strings.HasPrefix(function, "Test") {
			tests = append(tests, function)
		}
	}
	return tests
}
