package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree writes files, by path, each with the clause of its package and an import of the race package
// and of storetest.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		whole := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(whole), 0o700); err != nil {
			t.Fatal(err)
		}
		head := "package p\nimport (\n\"github.com/weirproxy/weir/internal/testing/race\"\nst \"github.com/weirproxy/weir/internal/testing/storetest\"\n)\n"
		if err := os.WriteFile(whole, []byte(head+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestTestsThatDependOnTheRaceDetectorAreFound(t *testing.T) {
	for _, test := range []struct {
		name, text string
		sized      bool
	}{
		{"a size", "func TestX(t *testing.T) { for range race.Scale(10) {} }", true},
		{"a test that skips", "func TestX(t *testing.T) { race.Without(t) }", true},
		{"a condition in a subtest", `func TestX(t *testing.T) { t.Run("", func(*testing.T) { if race.Enabled {} }) }`, true},
		{"a function", "func TestX(t *testing.T) { f() }\nfunc f() { g() }\nfunc g() { race.Without(nil) }", true},
		{"a function as a value", "func TestX(t *testing.T) { run(f) }\nfunc f() { race.Without(nil) }", true},
		{"a variable", "func TestX(t *testing.T) { use(n) }\nvar n = race.Scale(10)", true},
		{"a method", "func TestX(t *testing.T) { new(s).f() }\nfunc (*s) f() { race.Without(nil) }", true},
		{"a method of a result", "func TestX(t *testing.T) { open().f().g() }\nfunc (*s) f() *s { race.Without(nil) }", true},
		{"a case of another package", "func TestX(t *testing.T) { run(st.Cases()) }", true},
		{"another function of that package", "func TestX(t *testing.T) { run(st.Algorithms()) }", false},
		{"another test of the file", "func TestX(t *testing.T) {}\nfunc TestY(t *testing.T) { race.Without(t) }", false},
		{"a benchmark", "func TestX(t *testing.T) {}\nfunc BenchmarkX(b *testing.B) { race.Without(b) }", false},
		{"a field of the same name", "func TestX(t *testing.T) { use(x.f) }\nfunc f() { race.Without(nil) }", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := tree(t, map[string]string{
				"internal/testing/storetest/cases.go": "func Cases() any { return []func(){large} }\nfunc large() { race.Scale(10) }\nfunc Algorithms() {}",
				"pkg/other/other_test.go":             "func TestOther(t *testing.T) { race.Without(t) }",
				"pkg/x/x_test.go":                     test.text,
				"pkg/x/x.go":                          "func f() { race.Without(nil) }", // not a test
			})
			got, err := find(root, []string{"internal", "pkg"})
			if err != nil {
				t.Fatal(err)
			}
			if sized := strings.Contains(got[0], "|TestX)"); sized != test.sized {
				t.Errorf("found %q; want TestX found: %t", got, test.sized)
			}
		})
	}
}

func TestTheArgumentsAreOneFlagAndThePackages(t *testing.T) {
	root := tree(t, map[string]string{
		"pkg/b/b_test.go": "func TestB(t *testing.T) { race.Without(t) }\nfunc TestC(t *testing.T) {}",
		"pkg/a/a_test.go": "func TestA(t *testing.T) { race.Without(t) }",
		"pkg/c/c_test.go": "func TestD(t *testing.T) {}",
	})
	got, err := find(root, []string{"pkg/b", "pkg"})
	if diff := cmp.Diff([]string{"-run=^(TestA|TestB)$", "./pkg/b", "./pkg/a"}, got); diff != "" || err != nil {
		t.Errorf("arguments (-want +got), %v:\n%s", err, diff)
	}
}

func TestTextThatCannotBeFollowedIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		"func TestX(t *testing.T) {}":                        "no test depends on package race",
		"func (s) Sized() { race.Scale(1) }":                 "pkg/x: method Sized depends on package race: must be a function",
		"func TestX(t *testing.T) { race.Scale(1) } }":       "x_test.go:6:44: ",
		"func TestX(t *testing.T) { race.Scale(1) }\nvar x(": "x_test.go:7:7: ",
	} {
		_, err := find(tree(t, map[string]string{"pkg/x/x_test.go": text}), []string{"pkg"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// The program finds tests of each kind in this module.
func TestTestsOfThisModuleAreFound(t *testing.T) {
	got, err := find("../../..", []string{"cmd", "internal", "pkg"})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []string{"TestTakeDoesNotAllocate", "TestMemstoreKeepsTheContract", "TestRandomHistoriesAreLinearizable"} {
		if !strings.Contains(got[0], "|"+test+"|") {
			t.Errorf("%s is not found in %s", test, got[0])
		}
	}
	if !slices.Contains(got, "./pkg/store/redisstore") {
		t.Errorf("the packages are %q", got[1:])
	}
}
