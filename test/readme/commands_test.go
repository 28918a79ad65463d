package readme

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what commands print into the documents")

// TestCommandsPrintWhatTheDocumentsSay runs every document from its beginning to its end. A block
// that starts programs begins a subtest; the programs end with that subtest.
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

// A change is a new text for a block.
type change struct {
	block block
	text  string
}

// play runs the blocks of an act in order, and returns the outputs to write anew.
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
			s.demo(t, b.text)
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

// writeFile writes a file of the workspace. A file that the workspace holds already would be one of
// the repository: then writeFile fails the test.
func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := save(name, text); err != nil {
		t.Fatal(err)
	}
}

// save is writeFile, which returns its error.
func save(name, text string) error {
	if info, err := os.Lstat(name); err == nil && info.Mode()&os.ModeSymlink != 0 {
		return fmt.Errorf("%s is a file of the repository: a document must not overwrite it", name)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o644)
}

// A reader who follows several documents in one checkout keeps the rules of each. Documents that
// save rules in one directory save the same rules, and git ignores all files.
func TestDocumentsDoNotOverwriteEachOthersRulesAndGitIgnoresThem(t *testing.T) {
	type saved struct {
		by    string
		rules map[string]string
	}
	first := make(map[string]saved) // by directory
	for _, d := range documents(t) {
		own := make(map[string]map[string]string) // by directory and file
		for _, b := range d.blocks {
			if b.kind != "file" {
				continue
			}
			file := b.words[0]
			ignored := exec.CommandContext(t.Context(), "git", "check-ignore", "--quiet", "--no-index", file)
			ignored.Dir = repository
			if err := ignored.Run(); err != nil {
				t.Errorf("%s:%d: git does not ignore %s: %v", d.name, b.from, file, err)
			}
			if filepath.Ext(file) != ".yaml" {
				continue
			}
			dir := filepath.Dir(file)
			if own[dir] == nil {
				own[dir] = make(map[string]string)
			}
			own[dir][file] = b.text
		}
		for dir, rules := range own {
			if other, taken := first[dir]; !taken {
				first[dir] = saved{d.name, rules}
			} else if diff := cmp.Diff(other.rules, rules); diff != "" {
				t.Errorf("%s and %s save other rules in %s:\n%s", other.by, d.name, dir, diff)
			}
		}
	}
	if len(first) == 0 {
		t.Error("got no saved file, want the many that there are")
	}
}

// A reader's checkout holds the files that README.md and docs told the reader to save. The tests do
// not see these files.
func TestFilesThatAReaderSavedDoNotDisturbTheTests(t *testing.T) {
	dir := t.TempDir()
	for _, command := range []string{
		"git init --quiet", "mkdir -p rules docs/mine", "echo saved > rules/shop.yaml", "echo '[x](missing.md)' > docs/mine/note.md",
		"echo tracked > README.md", "git add README.md",
	} {
		run := exec.CommandContext(t.Context(), "bash", "-c", command)
		run.Dir = dir
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	real, binary := repository, os.Getenv(sidecarVariable)
	t.Cleanup(func() { repository = real })
	repository = dir
	if diff := cmp.Diff([]string{"README.md"}, trackedFiles(t)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if !filepath.IsAbs(binary) {
		t.Fatalf("%s: %q is no absolute path", sidecarVariable, binary)
	}
	enterWorkspace(t)
	if err := save("rules/shop.yaml", "mine"); err != nil {
		t.Errorf("a file that is saved in the checkout too: %v", err)
	}
	if err := save("README.md", "mine"); err == nil {
		t.Error("a file of the repository: got no error")
	}
}
