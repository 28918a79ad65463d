package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// The table of SECURITY.md has a row for each attack and each trap, in order. UPDATE=1 writes the
// rows.
func TestTheSecurityPageNamesEachAttackAndItsBound(t *testing.T) {
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "SECURITY.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const head = "| attack | how | bounds |\n|---|---|---|\n"
	before, rest, found := strings.Cut(string(page), head)
	if !found {
		t.Fatalf("SECURITY.md has no table that begins with\n%s", head)
	}
	table, after, _ := strings.Cut(rest, "\n\n")
	table = strings.TrimSpace(table)
	var rows []string
	for _, row := range attacks() {
		if row.bound == "" {
			t.Errorf("%s: names no bound", row.name)
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", row.name, row.how, row.bound))
	}
	for _, row := range traps() {
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", row.name, row.how, row.bound))
	}
	want := strings.Join(rows, "\n")
	if table == want {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Fatalf("the table of SECURITY.md differs from the attacks; UPDATE=1 go test ./test/hostile -run Security writes:\n%s", want)
	}
	text := before + head + want + "\n\n" + strings.TrimLeft(after, "\n")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
