package lockfile

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
)

func TestALockIsForOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thing")
	first := must.Get(Wait(t.Context(), path))(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Wait(ended, path); !errors.Is(err, ErrHeld) || !errors.Is(err, context.Canceled) {
		t.Errorf("a second lock: got %v, want ErrHeld", err)
	}
	if _, err := Try(path); !errors.Is(err, ErrHeld) {
		t.Errorf("a second lock that does not wait: got %v, want ErrHeld", err)
	}
	first.Unlock()
	again, err := Wait(t.Context(), path)
	if err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	again.Unlock()
	if info, err := os.Stat(path + ".lock"); err != nil || info.Mode() != 0o600 {
		t.Errorf("the lock file: got %v, %v, want the mode 0600", info, err)
	}
}

// Opening a pipe waits for a writer, and opening a device may do anything.
func TestALockIsARegularFile(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(path string) error
		want  string
	}{
		"a link":      {func(path string) error { return os.Symlink("/dev/null", path) }, "too many levels of symbolic links"},
		"a pipe":      {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "must be a regular file: remove it"},
		"a directory": {func(path string) error { return os.Mkdir(path, 0o700) }, "is a directory"},
		"a socket":    {func(path string) error { return syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0) }, "no such device or address"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "thing")
			must.Do(t, c.spoil(path+".lock"))
			_, err := Wait(t.Context(), path)
			if err == nil || errors.Is(err, ErrHeld) || err.Error() != "lock "+path+".lock: "+c.want {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// A user who may open a lock file can lock it. Such files are of older versions, or of other users.
func TestALockThatOthersCanHoldIsReplaced(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"others may read it":     func(path string) error { return os.Chmod(path, 0o640) },
		"another user owns it":   func(path string) error { return os.Chown(path, 12345, -1) },
		"others may write to it": func(path string) error { return os.Chmod(path, 0o602) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "thing")
			must.Do(t, os.WriteFile(path+".lock", nil, 0o600))
			if err := spoil(path + ".lock"); errors.Is(err, fs.ErrPermission) {
				t.Skip("only root can give a file to another user")
			}
			of := must.Get(os.Open(path + ".lock"))(t)
			defer func() { _ = of.Close() }()
			must.Do(t, syscall.Flock(int(of.Fd()), syscall.LOCK_EX))
			if _, err := Try(path); !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), "maybe of another user: the file has mode ") {
				t.Fatalf("while another user holds it: got %v", err)
			}
			must.Do(t, syscall.Flock(int(of.Fd()), syscall.LOCK_UN))
			l := must.Get(Try(path))(t)
			defer l.Unlock()
			must.Do(t, syscall.Flock(int(of.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)) // of a removed file
			if info, err := os.Stat(path + ".lock"); err != nil || !private(info) {
				t.Errorf("the lock file: got %v, %v, want one for this user alone", info, err)
			}
			if _, err := Try(path); !errors.Is(err, ErrHeld) {
				t.Errorf("a second lock: got %v, want ErrHeld", err)
			}
		})
	}
}

func TestARemovedLockIsNotHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thing")
	l := must.Get(Try(path))(t)
	if err := l.Held(); err != nil {
		t.Fatal(err)
	}
	must.Do(t, os.Remove(path+".lock"))
	if err := l.Held(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after its removal: got %v", err)
	}
	next := must.Get(Try(path))(t)
	if err := l.Held(); err == nil || next.Held() != nil {
		t.Errorf("after another lock: got %v and %v, want the second one held", err, next.Held())
	}
	l.Unlock()
	next.Unlock()
}

func TestADirectoryIsLockedAgainAfterItsRemoval(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "here")
	d := NewDirectory(path, "states")
	for range 2 {
		if tenure, err := d.Hold(); tenure != 1 || err != nil {
			t.Fatalf("the first tenure: got %d, %v", tenure, err)
		}
	}
	must.Do(t, os.RemoveAll(path))
	if tenure, err := d.Hold(); tenure != 2 || err != nil {
		t.Fatalf("after the removal: got %d, %v, want the second tenure", tenure, err)
	}
	must.Do(t, os.RemoveAll(path))
	other := NewDirectory(path, "states")
	must.Get(other.Wait(t.Context()))(t)
	if _, err := d.Hold(); !errors.Is(err, ErrHeld) || !strings.HasPrefix(err.Error(), "the directory was replaced, and another process uses it now: ") {
		t.Errorf("where another process made the directory: got %v", err)
	}
	other.Close()
	if _, err := other.Hold(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: got %v", err)
	}
	if tenure, err := d.Hold(); tenure != 3 || err != nil {
		t.Errorf("after the other process: got %d, %v, want the third tenure", tenure, err)
	}
	d.Close()
}

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Own: []string{"internal/regular"}, Std: []string{"context", "errors", "fmt", "io/fs", "os", "path/filepath", "sync", "syscall", "time"}, Third: []string{}})
}
