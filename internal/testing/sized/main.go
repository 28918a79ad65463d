// Sized finds the tests whose work depends on package internal/testing/race: their size, or whether
// they run at all. The program prints the arguments of a `go test` that runs these tests alone.
//
//	sized DIR…
//
// The packages are in the order of the directories; one directory may lie in a later one.
//
// A test depends on package race if its function names Scale, Short, Without or Enabled. So does a
// test that names another such function, variable or method of the module. Methods of a package are
// compared by name alone. So the program may print a test too many, and never one too few.
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// module is the import path of the directory in which the program runs.
const module = "github.com/weirproxy/weir/"

func main() {
	arguments, err := find(".", os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = fmt.Fprintln(os.Stdout, strings.Join(arguments, " "))
}

// name is a declaration in a package's directory. The name of a method begins with a dot.
type name struct{ dir, is string }

// graph is the module: for each name, the declarations whose text has the name.
type graph map[name]map[name]bool

// find returns a flag for the tests below some directories of a module, and their packages.
func find(root string, dirs []string) ([]string, error) {
	users, order := graph{}, []string(nil)
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "internal/testing/") || filepath.Ext(path) != ".go" {
				return err
			}
			below, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			if below = filepath.ToSlash(below); !slices.Contains(order, below) {
				order = append(order, below)
			}
			return users.read(path, below)
		})
		if err != nil {
			return nil, err
		}
	}
	const race = "internal/testing/race"
	next := []name{{race, "Scale"}, {race, "Short"}, {race, "Without"}, {race, "Enabled"}}
	tests, packages, seen := map[string]bool{}, map[string]bool{}, map[name]bool{}
	for len(next) > 0 {
		n := next[0]
		next = next[1:]
		if seen[n] {
			continue
		}
		seen[n] = true
		switch {
		case strings.HasPrefix(n.is, "Test"):
			tests[n.is], packages[n.dir] = true, true
		case len(n.is) > 1 && n.is[0] == '.' && token.IsExported(n.is[1:]):
			return nil, fmt.Errorf("%s: method %s depends on package race: must be a function", n.dir, n.is[1:])
		}
		next = slices.AppendSeq(next, maps.Keys(users[n]))
	}
	if len(tests) == 0 {
		return nil, errors.New("no test depends on package race")
	}
	all := strings.Join(slices.Sorted(maps.Keys(tests)), "|")
	arguments := []string{"-run=^(" + all + ")$"}
	for _, dir := range order {
		if packages[dir] {
			arguments = append(arguments, "./"+dir)
		}
	}
	return arguments, nil
}

// read adds the declarations of a file.
func (g graph) read(path, dir string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	imports := map[string]string{} // names in the file to directories
	for _, spec := range file.Imports {
		of, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		if below, ours := strings.CutPrefix(of, module); ours {
			as := below[strings.LastIndexByte(below, '/')+1:]
			if spec.Name != nil {
				as = spec.Name.Name
			}
			imports[as] = below
		}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			n := name{dir, d.Name.Name}
			if d.Recv != nil {
				n.is = "." + n.is
			}
			g.add(n, d, imports, dir)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if values, ok := spec.(*ast.ValueSpec); ok {
					for _, id := range values.Names {
						g.add(name{dir, id.Name}, values, imports, dir)
					}
				}
			}
		}
	}
	return nil
}

// add notes that a declaration uses each name in its text.
func (g graph) add(user name, text ast.Node, imports map[string]string, dir string) {
	use := func(n name) {
		if g[n] == nil {
			g[n] = map[name]bool{}
		}
		g[n][user] = true
	}
	var visit func(ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			use(name{dir, n.Name})
		case *ast.SelectorExpr:
			use(name{dir, "." + n.Sel.Name})
			if x, ok := n.X.(*ast.Ident); ok && imports[x.Name] != "" {
				use(name{imports[x.Name], n.Sel.Name})
			}
			ast.Inspect(n.X, visit)
			return false
		}
		return true
	}
	ast.Inspect(text, visit)
}
