package readme

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what commands print into the documents")

// TestCommandsPrintWhatTheDocumentsSay runs every document from its beginning to its end. A block that starts programs begins a subtest,
// whose end is theirs.
func TestCommandsPrintWhatTheDocumentsSay(t *testing.T) {
	for _, d := range documents(t) {
		t.Run(d.name, func(t *testing.T) {
			enterWorkspace(t)
			var changes []change
			rest := d.blocks
			for n := 1; len(rest) > 0; n++ {
				end := 1
				for end < len(rest) && !starts(rest[end]) {
					end++
				}
				act, line := rest[:end], rest[0].from
				t.Run("from line "+strconv.Itoa(line), func(t *testing.T) {
					changes = append(changes, play(t, d, act)...)
				})
				rest = rest[end:]
			}
			if *update && len(changes) > 0 {
				rewrite(t, d, changes)
			}
		})
	}
}

// starts reports whether a block starts programs.
func starts(b block) bool {
	switch b.kind {
	case "serve", "demo", "redis", "start":
		return !b.has("and")
	default:
		return false
	}
}

// A change is what a block should say.
type change struct {
	block block
	text  string
}

// play does what the blocks of an act say, in order, and returns the outputs that differ when they are to be written anew.
func play(t *testing.T, d document, act []block) (changes []change) {
	t.Helper()
	var s stage
	for i, b := range act {
		switch b.kind {
		case "serve":
			s.serve(t, serveArgs(t, b.text))
		case "start":
			if !b.has("nothing") {
				s.serve(t, arguments(b.text))
			}
		case "demo":
			s.demo(t)
		case "redis":
			s.redis(t, b.text)
		case "file":
			writeFile(t, b.words[0], b.text)
		case "run":
			need(t, b.text)
			got, code := s.run(t, b.text)
			want := 0
			if exit := b.option("exit"); exit != "" {
				want, _ = strconv.Atoi(exit) // 0 would be noticed
			}
			if code != want {
				t.Errorf("%s:%d: exit code: got %d, want %d; it printed\n%s", d.name, b.from, code, want, got)
			}
			if i+1 == len(act) || act[i+1].kind != "output" {
				continue
			}
			output := act[i+1]
			diff := differ(output.text, got, b.option("waits") == "any")
			if diff != "" && *update && !strings.Contains(output.text, "…\n") {
				changes = append(changes, change{output, got})
			} else if diff != "" {
				t.Errorf("%s:%d: what is printed (-the document, +the command):\n%s", d.name, output.from, diff)
			}
		}
	}
	return changes
}

// rewrite writes a document with other texts in some blocks, given in order.
func rewrite(t *testing.T, d document, changes []change) {
	t.Helper()
	lines, from := []string{}, 0
	for _, c := range changes {
		lines = append(lines, d.lines[from:c.block.from]...)
		lines = append(lines, strings.Split(strings.TrimRight(strings.ReplaceAll(c.text, "\r", ""), "\n"), "\n")...)
		from = c.block.to
	}
	lines = append(lines, d.lines[from:]...)
	if err := os.WriteFile(filepath.Join(repository, d.name), []byte(strings.Join(lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
}

// writeFile writes a file of the workspace, which must not be one of the repository.
func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if dir := filepath.Dir(name); dir != "." {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(repository, name)); err == nil {
		t.Fatalf("%s is a file of the repository: a document must not have it written", name)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
