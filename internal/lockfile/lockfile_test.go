package lockfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
)

func TestALockIsForOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thing")
	unlock := must.Get(Lock(t.Context(), path))(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Lock(ended, path); !errors.Is(err, ErrHeld) {
		t.Errorf("a second lock: got %v, want ErrHeld", err)
	}
	unlock()
	again, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	again()
	if _, err := os.Stat(path + ".lock"); err != nil {
		t.Errorf("the lock file is gone: %v", err)
	}
}

func TestALockIsNoLink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thing")
	must.Do(t, os.Symlink("/dev/null", path+".lock"))
	if _, err := Lock(t.Context(), path); err == nil || errors.Is(err, ErrHeld) {
		t.Errorf("a link in the place of the lock file: got %v, want a failure", err)
	}
}

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{Std: []string{"context", "errors", "fmt", "os", "syscall", "time"}, Third: []string{}})
}
