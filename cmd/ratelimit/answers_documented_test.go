package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
)

// The tables of docs/migrating-differences.md, and what shows that their rows are true.
const (
	migratingDocument = "../../docs/migrating-differences.md"
	shownElsewhere    = "testdata/answers/elsewhere.list"
)

func shownTables() []string { return []string{"Answers", "Rules", "Counting"} }

// A difference that a case shows is a row of a table of docs/migrating-differences.md, and every
// row is shown: by a case, or by a test elsewhere that testdata/answers/elsewhere.list names.
func TestDifferencesAreThoseThatAreDocumented(t *testing.T) {
	rows := documentedRows(t)
	shown := make(map[string]bool)
	for _, s := range readScripts(t) {
		for _, c := range s.cases {
			for _, row := range c.differs {
				if shown[row] = true; !slices.Contains(rows, row) {
					t.Errorf("%s.txt: %s: %q is no row of %s", s.name, c.title, row, migratingDocument)
				}
			}
		}
	}
	text := must.Get(os.ReadFile(shownElsewhere))(t)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		row, test, _ := strings.Cut(line, " => ")
		if shown[row] {
			t.Errorf("%s: %q is shown by a case already, or twice", shownElsewhere, row)
		}
		if shown[row] = true; !slices.Contains(rows, row) {
			t.Errorf("%s: %q is no row of %s", shownElsewhere, row, migratingDocument)
		}
		if err := hasTest(test); err != nil {
			t.Errorf("%s: %q: %v", shownElsewhere, line, err)
		}
	}
	for _, row := range rows {
		if table, _, _ := strings.Cut(row, ": "); slices.Contains(shownTables(), table) && !shown[row] {
			t.Errorf("%s: nothing shows %q", migratingDocument, row)
		}
	}
}

// documentedRows returns the rows of the tables under the headings of
// docs/migrating-differences.md, as "heading: first cell".
func documentedRows(t *testing.T) []string {
	t.Helper()
	text := must.Get(os.ReadFile(migratingDocument))(t)
	var rows []string
	heading := ""
	tables := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if name, found := strings.CutPrefix(line, "### "); found {
			heading = name
		} else if strings.HasPrefix(line, "## ") {
			heading = ""
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		first := strings.TrimSpace(cells[0])
		if !strings.HasPrefix(line, "|") || heading == "" || first == "" || strings.Trim(first, "-") == "" {
			continue
		}
		tables[heading]++
		if row := heading + ": " + first; slices.Contains(rows, row) {
			t.Errorf("%s: %q is there twice", migratingDocument, row)
		} else {
			rows = append(rows, row)
		}
		if len(cells) != 3 {
			t.Errorf("%s: %q has %d cells, want what it is, the original and here", migratingDocument, line, len(cells))
		}
	}
	for _, table := range shownTables() {
		if tables[table] == 0 {
			t.Errorf("%s has no table under %q", migratingDocument, table)
		}
	}
	return rows
}

// hasTest returns why there is no such test, given as the folder of its package and its name.
func hasTest(test string) error {
	folder, name, found := strings.Cut(test, " ")
	if !found {
		return fmt.Errorf("%q must be a folder and the name of a test", test)
	}
	files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
	if err != nil {
		return err
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if strings.Contains(string(source), "\nfunc "+name+"(t *testing.T)") {
			return nil
		}
	}
	return fmt.Errorf("%s has no test %s", folder, name)
}
