package deptest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// internalTypes returns one line for every exported declaration in a Go file that names a type of
// an internal package.
func internalTypes(name string, source any) ([]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	internal := make(map[string]string) // import path by the name in this file
	for _, i := range file.Imports {
		of, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return nil, err
		}
		if !strings.Contains("/"+of+"/", "/internal/") {
			continue
		}
		local := path.Base(of)
		if i.Name != nil {
			local = i.Name.Name
		}
		internal[local] = of
	}
	ast.FileExports(file)
	var lines []string
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl: // FileExports keeps the methods of types that are not exported
			if n.Recv != nil && !exportedReceiver(n.Recv.List[0].Type) {
				return false
			}
		case *ast.BlockStmt: // a body is not a signature
			return false
		case *ast.ValueSpec: // nor is a value, such as an error
			n.Values = nil
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && internal[x.Name] != "" {
				lines = append(lines, fmt.Sprintf("%s: %s.%s", files.Position(n.Pos()), internal[x.Name], n.Sel.Name))
			}
		}
		return true
	})
	return lines, nil
}

func exportedReceiver(e ast.Expr) bool {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	if of, ok := e.(*ast.IndexExpr); ok { // a type parameter
		e = of.X
	}
	name, ok := e.(*ast.Ident)
	return !ok || name.IsExported()
}

func TestNoExportedSignatureNamesAnInternalType(t *testing.T) {
	seen := 0
	err := filepath.WalkDir("../../../pkg", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		seen++
		lines, err := internalTypes(name, nil)
		for _, line := range lines {
			t.Error(line)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 50 {
		t.Errorf("looked at %d files; want all of pkg", seen)
	}
}

func TestInternalTypesAreFoundInSignaturesAlone(t *testing.T) {
	const file = `package p
import (
	"m/internal/hidden"
	other "m/internal/alias"
	"m/public"
)
type T struct {
	A hidden.Type
	b hidden.Type
	C public.Type
}
type small struct{ A hidden.Type }
func F(x *other.Type) { hidden.G() }
func g(x hidden.Type) {}
func (T) M() []hidden.Elem { return nil }
func (s *small) M() []hidden.Elem { return nil }
`
	got, err := internalTypes("p.go", file)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"p.go:8:4: m/internal/hidden.Type", "p.go:13:11: m/internal/alias.Type", "p.go:15:16: m/internal/hidden.Elem"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("internalTypes: got %q; want %q", got, want)
	}
}
