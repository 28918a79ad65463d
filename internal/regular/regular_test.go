package regular

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
)

func TestOnlyARegularFileIsOpened(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must.Do(t, os.WriteFile(at("file"), []byte("text"), 0o600))
	must.Do(t, os.Symlink("file", at("link")))
	must.Do(t, os.Mkdir(at("directory"), 0o700))
	must.Do(t, syscall.Mkfifo(at("pipe"), 0o600))
	must.Do(t, syscall.Mknod(at("socket"), syscall.S_IFSOCK|0o600, 0))
	for path, want := range map[string]error{
		at("file"): nil, at("link"): nil, at("directory"): ErrKind, at("pipe"): ErrKind, at("socket"): ErrKind, "/dev/zero": ErrKind,
		at("missing"): fs.ErrNotExist,
	} {
		if _, err := Read(path, 4); !errors.Is(err, want) {
			t.Errorf("Read of %s: got %v, want %v", path, err, want)
		}
	}
	if file, _, err := OpenNoLink(at("link")); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("OpenNoLink of a link: got %v, %v", file, err)
	}
	file, info, err := OpenNoLink(at("file"))
	if err != nil || info.Size() != 4 {
		t.Fatalf("OpenNoLink: got %v, %v", info, err)
	}
	must.Do(t, file.Close())
}

func TestAFileAboveTheBoundIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(path, []byte("text"), 0o600))
	if data, err := Read(path, 4); err != nil || string(data) != "text" {
		t.Errorf("at the bound: got %q, %v", data, err)
	}
	for name, size := range map[string]int64{"a byte more": 5, "a sparse file": 1 << 40} {
		must.Do(t, os.Truncate(path, size))
		if _, err := Read(path, 4); err == nil || err.Error() != "read "+path+": must have at most 4 bytes" {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Std: []string{"bytes", "errors", "fmt", "io", "io/fs", "os", "path/filepath", "slices", "syscall", "time"}, Third: []string{}})
}

func TestAFileIsMadeInPlaceOfAnything(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"nothing":     func(string) error { return nil },
		"a file":      func(path string) error { return os.WriteFile(path, []byte("before"), 0o666) },
		"a link":      func(path string) error { return os.Symlink("other", path) },
		"a directory": func(path string) error { return os.MkdirAll(filepath.Join(path, "below"), 0o700) },
		"a pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			must.Do(t, spoil(path))
			file := must.Get(Create(path))(t)
			must.Get(file.WriteString("text"))(t)
			must.Do(t, file.Close())
			must.Do(t, SyncDir(dir))
			if info := must.Get(os.Lstat(path))(t); info.Mode() != 0o600 || info.Size() != 4 {
				t.Errorf("got mode %v and %d bytes, want 0600 and 4", info.Mode(), info.Size())
			}
		})
	}
}
