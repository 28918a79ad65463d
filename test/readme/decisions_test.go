package readme

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTheIndexOfDecisionsIsCurrent compares the rows of docs/decisions/README.md with the titles
// and the statuses of the decisions.
func TestTheIndexOfDecisionsIsCurrent(t *testing.T) {
	const dir = "../../docs/decisions"
	files, err := filepath.Glob(filepath.Join(dir, "0*.md"))
	if err != nil || len(files) == 0 {
		t.Fatalf("got %d decisions, error %v", len(files), err)
	}
	head := regexp.MustCompile(`^# (\d+)\. (.+)\n\nStatus: (.+)\n\n`)
	var want []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(file)
		m := head.FindStringSubmatch(string(text))
		if m == nil || fmt.Sprintf("%04s", m[1]) != name[:4] {
			t.Errorf("%s: must begin with \"# N. Title\", an empty line, and \"Status: …\"", name)
			continue
		}
		want = append(want, fmt.Sprintf("| %s | [%s](%s) | %s |", m[1], m[2], name, m[3]))
	}
	index, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(index)) {
		if regexp.MustCompile(`^\| \d`).MatchString(line) {
			got = append(got, strings.TrimSuffix(line, "\n"))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/decisions/README.md (-want +got):\n%s", diff)
	}
}
