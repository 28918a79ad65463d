package grants

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/lockfile"
	"github.com/weirproxy/weir/internal/testing/must"
)

// locked starts a process that locks its directory.
func locked(t *testing.T, dir string) *process {
	t.Helper()
	lock := lockfile.NewDirectory(dir, "states")
	must.Get(lock.Wait(t.Context()))(t)
	t.Cleanup(lock.Close)
	p := start(t, func(o *Options) { o.Dir, o.Lock = dir, lock })
	ended := p.end
	p.end = func() { ended(); lock.Close() }
	return p
}

// Somebody removed the directory, and another process made it anew.
func TestAProcessKeepsNoGrantsInTheDirectoryOfAnother(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	synctest.Test(t, func(t *testing.T) {
		first := locked(t, dir)
		first.give(t, of("a", 5))
		must.Do(t, os.RemoveAll(dir))
		second := locked(t, dir)
		second.give(t, of("b", 6))
		first.give(t, of("c", 7))
		time.Sleep(time.Minute) // the first process tries again
		if got := strings.Count(first.log.String(), "the directory was replaced, and another process uses it now"); got != 1 {
			t.Errorf("%d lines of the first process say so, want 1\n%s", got, &first.log)
		}
		if where, durable := first.Kept(); durable {
			t.Errorf("the grants of the first process: kept %s", where)
		}
		second.end()
		next := locked(t, copyOf(t, dir))
		next.wantLimit(t, "b", 6)
		next.wantLimit(t, "c", 2)
		time.Sleep(time.Minute) // nothing else uses the directory now
		if where, durable := first.Kept(); !durable {
			t.Errorf("after the second process has ended, the grants of the first one: kept %s", where)
		}
	})
}
