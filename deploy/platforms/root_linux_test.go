package platforms

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

// A root is a directory that programs have for /. All files in it are copies, and nothing in it is
// mounted. So neither a program that writes there nor a test that removes the root reaches a file
// of the machine.
type root string

// layRoot makes a root with those hosts, the text of /etc/hosts.
func layRoot(t *testing.T, hosts string) root {
	t.Helper()
	r := root(t.TempDir())
	for _, dir := range []string{"dev/shm", "etc", "home", "tmp"} {
		if err := os.MkdirAll(r.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	parts.Write(t, r.path("etc/hosts"), hosts)
	parts.Write(t, r.path("dev/null"), "") // reads as the device does
	return r
}

// path returns the path outside the root of a file in it.
func (r root) path(file string) string { return filepath.Join(string(r), file) }

// program copies a program to a place in the root, and the libraries that it needs to their own
// places.
func (r root) program(t *testing.T, program, at string) {
	t.Helper()
	r.copy(t, program, at)
	out, err := exec.CommandContext(t.Context(), "ldd", program).CombinedOutput()
	if err != nil {
		return // needs none
	}
	for _, library := range regexp.MustCompile(`(?m)(/\S+) \(0x[0-9a-f]+\)$`).FindAllSubmatch(out, -1) {
		r.copy(t, string(library[1]), string(library[1]))
	}
}

// copy copies a file that can be executed.
func (r root) copy(t *testing.T, from, at string) {
	t.Helper()
	source, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	if err := os.MkdirAll(filepath.Dir(r.path(at)), 0o755); err != nil {
		t.Fatal(err)
	}
	target, err := os.OpenFile(r.path(at), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(target, source); err != nil {
		t.Fatal(err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
}
