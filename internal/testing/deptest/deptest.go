// Package deptest checks the imports of packages: a test fails when the package under test imports
// a forbidden one, directly or through others.
//
// The test sits in the package that it guards, so that a new import changes the test binary and `go
// test` never answers from its cache:
//
//	func TestDeps(t *testing.T) {
//		deptest.Check(t, deptest.Rules{
//			Own:   []string{"pkg/algorithms", "pkg/store"},
//			Never: []string{"google.golang.org/grpc", "google.golang.org/protobuf"},
//		})
//	}
//
// Only the imports of the package itself count; its tests may import anything. Files excluded by
// build constraints on this machine are not seen.
package deptest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Rules are the imports that one package may have. The zero value allows the whole standard library
// and every third-party package, and no package of ours.
//
// A path in a list covers exactly that package; with "/..." at its end it covers the package and
// everything below. Never is the exception: there every path covers everything below it.
type Rules struct {
	// Own lists the packages of this module that may be reached, directly or
	// through others, as paths below the module root: "pkg/algorithms".
	// Nil allows none.
	Own []string

	// Std lists the standard packages that may be imported directly. Imports of standard packages do
	// not count, for fmt alone imports os and sync. Nil allows all, an empty list none.
	Std []string

	// Third lists the third-party packages that may be imported directly.
	// Nil allows all, an empty list none.
	Third []string

	// Never lists import paths that must not be reached: third-party ones and ours neither directly
	// nor through others, standard ones not directly. Never wins over the other lists.
	Never []string
}

// Check fails tb, once for every forbidden import with the way it is reached, when the package in
// whose directory the test runs breaks rules. Check runs the go command, which must be on the PATH,
// as in every `go test`.
func Check(tb testing.TB, rules Rules) {
	tb.Helper()
	findings, err := check(".", rules)
	if err != nil {
		tb.Fatalf("read the imports of this package: %v", err)
	}
	for _, f := range findings {
		tb.Error(f)
	}
}

// check returns one line for every forbidden import of the package in dir.
func check(dir string, rules Rules) ([]string, error) {
	g, err := load(dir)
	if err != nil {
		return nil, err
	}
	return g.findings(rules), nil
}

// listed is one package in the output of `go list -json`.
type listed struct {
	ImportPath string
	Standard   bool
	DepOnly    bool
	Imports    []string
	Module     *struct{ Path string }
}

// graph is a package and all that it is built from.
type graph struct {
	root     string            // import path of the package under test
	module   string            // module of the package under test
	packages map[string]listed // by import path, root included
}

// load asks the go command for the package in dir and its dependencies.
func load(dir string) (graph, error) {
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,DepOnly,Imports,Module", ".")
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return graph{}, fmt.Errorf("go list: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}

	g := graph{packages: make(map[string]listed)}
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return graph{}, fmt.Errorf("decode the answer of go list: %w", err)
		}
		g.packages[p.ImportPath] = p
		if !p.DepOnly && p.Module != nil {
			g.root, g.module = p.ImportPath, p.Module.Path
		}
	}
	if g.root == "" {
		return graph{}, errors.New("go list: no package of a module here")
	}
	return g, nil
}

// findings walks outward from the root, nearest packages first, so that the
// way reported to a forbidden package is a shortest one.
func (g graph) findings(rules Rules) []string {
	var lines []string
	from := map[string]string{g.root: ""}
	for queue := []string{g.root}; len(queue) > 0; queue = queue[1:] {
		importer := queue[0]
		for _, path := range g.packages[importer].Imports {
			if _, seen := from[path]; seen {
				continue
			}
			standard := g.packages[path].Standard
			if standard && importer != g.root {
				continue // Standard packages count where the root names them.
			}
			from[path] = importer
			if why := g.refusal(rules, path, importer == g.root); why != "" {
				lines = append(lines, fmt.Sprintf("%s: %s", g.way(from, path), why))
				continue // The packages below are no news.
			}
			if !standard {
				queue = append(queue, path)
			}
		}
	}
	return lines
}

// refusal says why path may not be reached, or "".
func (g graph) refusal(rules Rules, path string, direct bool) string {
	if slices.ContainsFunc(rules.Never, func(p string) bool { return within(path, strings.TrimSuffix(p, "/...")) }) {
		return "must never be imported here"
	}
	switch {
	case g.packages[path].Standard:
		if rules.Std != nil && !covered(path, rules.Std) {
			return fmt.Sprintf("of the standard library only %q may be imported here", rules.Std)
		}
	case within(path, g.module):
		if !covered(strings.TrimPrefix(strings.TrimPrefix(path, g.module), "/"), rules.Own) {
			return fmt.Sprintf("of our packages only %q may be imported here", rules.Own)
		}
	default:
		if direct && rules.Third != nil && !covered(path, rules.Third) {
			return fmt.Sprintf("of third-party packages only %q may be imported here", rules.Third)
		}
	}
	return ""
}

// way spells how path is reached: "weir/pkg/a -> weir/pkg/b -> google.golang.org/grpc".
func (g graph) way(from map[string]string, path string) string {
	way := path
	for p := from[path]; p != ""; p = from[p] {
		way = p + " -> " + way
	}
	return way
}

// covered reports whether path is in list, by itself or below a "/..." entry.
func covered(path string, list []string) bool {
	return slices.ContainsFunc(list, func(p string) bool {
		if below, ok := strings.CutSuffix(p, "/..."); ok {
			return within(path, below)
		}
		return path == p
	})
}

// within reports whether path is root or lies below it.
func within(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}
