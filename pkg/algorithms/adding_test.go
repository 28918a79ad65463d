package algorithms_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// An overlay gives the source tree one Go file, one Lua file and one case in a list. The tree then
// keeps the contract of stores in memory and in Redis under the new algorithm too, and both stores
// decide alike. With an overlay all paths stay, so that a second run finds each package in the
// build cache.
func TestAddingAnAlgorithmTakesOneGoFileOneLuaFileAndOneCase(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the stores with another algorithm")
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(root, "pkg", "algorithms", "algorithm.go")
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	const last = "\t\treturn tokenBucketInteger{}\n"
	added := strings.Replace(string(text), last, last+"\tcase FirstHitWindow:\n\t\treturn firstHitWindow{}\n", 1)
	if added == string(text) {
		t.Fatalf("%s has no line %q", list, last)
	}
	longer := filepath.Join(t.TempDir(), "algorithm.go")
	if err := os.WriteFile(longer, []byte(added), 0o600); err != nil {
		t.Fatal(err)
	}
	testdata := filepath.Join(root, "pkg", "algorithms", "testdata", "adding")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		list: longer,
		filepath.Join(root, "pkg/algorithms/first_hit_window.go"):               filepath.Join(testdata, "first_hit_window.go.txt"),
		filepath.Join(root, "pkg/store/redisstore/script/first_hit_window.lua"): filepath.Join(testdata, "first_hit_window.lua"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	replaced := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(replaced, overlay, 0o600); err != nil {
		t.Fatal(err)
	}

	cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", replaced, "-short", "-count=1", "-vet=off", "-v",
		"-run", "KeepsTheContract$|AreDecidedAsByTheModel$", "./pkg/store/memstore", "./pkg/store/redisstore")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "REDIS_SERVER="+redisServer(t, root))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if want := "--- PASS: TestMemstoreKeepsTheContract"; !strings.Contains(string(out), want) {
		t.Errorf("no %q in\n%s", want, out)
	}
	if want := "--- PASS: TestRandomTransactionsAreDecidedAsByTheModel"; !strings.Contains(string(out), want) &&
		!strings.Contains(string(out), "--- SKIP: TestRandomTransactionsAreDecidedAsByTheModel") {
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
