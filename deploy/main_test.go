package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/weirproxy/weir/test/parts"
)

var (
	binaries string     // where programs are built, once for all tests
	buildMu  sync.Mutex // guards the files
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "weir-deploy-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binaries = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// program builds a program of the image, static as it is there, and returns its path.
func program(t *testing.T, name string) string {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	build := parts.BuildRatelimit
	if name == "sidecar" {
		build = parts.BuildSidecar
	}
	buildMu.Lock()
	defer buildMu.Unlock()
	if binary := filepath.Join(binaries, name); exists(binary) {
		return binary
	}
	binary, err := build(t.Context(), root, binaries, false)
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// exists reports whether there is a file.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
