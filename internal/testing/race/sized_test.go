package race

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// scripts/sized.sh runs the tests of files that import this package without the race detector. So a
// test of another file must not get its size from a function that uses this package.
func TestFilesOfTestsWithSizesImportThisPackage(t *testing.T) {
	folders := make(map[string]map[string]*ast.File)
	fset := token.NewFileSet()
	for _, root := range []string{"cmd", "internal", "pkg"} {
		err := filepath.WalkDir(filepath.Join("../../..", root), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			folder := filepath.Dir(path)
			if folders[folder] == nil {
				folders[folder] = make(map[string]*ast.File)
			}
			folders[folder][path] = f
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	sized := 0
	for _, files := range folders {
		uses := map[string]string{"race": ""} // functions that use this package, also through others, to their files
		for grown := true; grown; {
			grown = false
			for path, f := range files {
				for _, d := range f.Decls {
					fn, ok := d.(*ast.FuncDecl)
					if !ok || fn.Recv != nil || isTest(fn.Name.Name) || uses[fn.Name.Name] != "" {
						continue
					}
					for name := range names(fn.Body) {
						if _, ok := uses[name]; ok {
							uses[fn.Name.Name], grown = path, true
							break
						}
					}
				}
			}
		}
		for path, f := range files {
			if imports(f) {
				sized++
				continue
			}
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				for name := range names(fn.Body) {
					if from := uses[name]; from != "" {
						t.Errorf("%s: %s gets a size from %s in %s; call race.Scale here", path, fn.Name.Name, name, filepath.Base(from))
					}
				}
			}
		}
	}
	if sized < 10 {
		t.Errorf("%d files import this package: the test looks in the wrong place", sized)
	}
}

func isTest(name string) bool {
	return strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") || strings.HasPrefix(name, "Benchmark")
}

// names returns all identifiers in a body.
func names(body *ast.BlockStmt) map[string]bool {
	all := make(map[string]bool)
	ast.Inspect(body, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			all[id.Name] = true
		}
		return true
	})
	return all
}

func imports(f *ast.File) bool {
	for _, i := range f.Imports {
		if strings.HasSuffix(i.Path.Value, `internal/testing/race"`) {
			return true
		}
	}
	return false
}
