package algorithms_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A copy of the source tree gets one Go file, one Lua file and one case in a list. The copy then keeps the contract of stores in
// memory and in Redis under the new algorithm too, and both stores decide alike.
func TestAddingAnAlgorithmTakesOneGoFileOneLuaFileAndOneCase(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the stores in a copy of the source tree")
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	tree := t.TempDir()
	for _, part := range []string{"go.mod", "go.sum", "pkg", "internal", "proto", "scripts", "test/parts"} {
		copyTree(t, filepath.Join(root, part), filepath.Join(tree, part))
	}
	algorithms := filepath.Join(tree, "pkg", "algorithms")
	copyTree(t, "testdata/adding/first_hit_window.go.txt", filepath.Join(algorithms, "first_hit_window.go"))
	copyTree(t, "testdata/adding/first_hit_window.lua", filepath.Join(tree, "pkg/store/redisstore/script/first_hit_window.lua"))
	list := filepath.Join(algorithms, "algorithm.go")
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	const last = "\t\treturn tokenBucketInteger{}\n"
	added := strings.Replace(string(text), last, last+"\tcase FirstHitWindow:\n\t\treturn firstHitWindow{}\n", 1)
	if added == string(text) {
		t.Fatalf("%s has no line %q", list, last)
	}
	if err := os.WriteFile(list, []byte(added), 0o600); err != nil {
		t.Fatal(err)
	}

	cmd := exec.CommandContext(t.Context(), "go", "test", "-short", "-count=1", "-v", "-run", "KeepsTheContract$|AreDecidedAsByMemstore$",
		"./pkg/store/memstore", "./pkg/store/redisstore")
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "REDIS_SERVER="+redisServer(t, root))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if want := "--- PASS: TestMemstoreKeepsTheContract"; !strings.Contains(string(out), want) {
		t.Errorf("no %q in\n%s", want, out)
	}
	if want := "--- PASS: TestRandomTransactionsAreDecidedAsByMemstore"; !strings.Contains(string(out), want) &&
		!strings.Contains(string(out), "--- SKIP: TestRandomTransactionsAreDecidedAsByMemstore") {
		t.Errorf("no %q in\n%s", want, out)
	}
}

// redisServer returns the redis-server that the script of the tests finds; "" if it finds none.
func redisServer(t *testing.T, root string) string {
	t.Helper()
	path, err := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "redis.sh")).Output()
	if err != nil {
		t.Logf("without Redis: %v", err)
	}
	return strings.TrimSpace(string(path))
}

// copyTree copies a file or a folder.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		if e.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.WriteFile(target, text, info.Mode().Perm())
	})
	if err != nil {
		t.Fatal(err)
	}
}
