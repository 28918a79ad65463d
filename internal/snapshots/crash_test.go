package snapshots

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/lockfile"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// faulty is files that fail from one operation on: for one operation, as a full disk does, or for
// good, as a machine that crashes.
type faulty struct {
	at      int // the operation that fails, from 0; negative: none
	crash   bool
	failure error
	done    int
	unsafe  []string // files whose bytes are not yet on the disk, by their present names
}

var errCrashed = errors.New("the machine has crashed")

// next counts an operation, and returns its failure.
func (f *faulty) next() error {
	f.done++
	switch {
	case f.at < 0 || f.done <= f.at:
		return nil
	case f.crash:
		return errCrashed
	case f.done == f.at+1:
		return f.failure
	default:
		return nil
	}
}

// lose is the restart after a crash: bytes that were not on the disk are lost.
func (f *faulty) lose(r *rand.Rand) {
	for _, path := range f.unsafe {
		if info, err := os.Stat(path); err == nil {
			_ = os.Truncate(path, r.Int64N(info.Size()+1)/2)
		}
	}
}

func (f *faulty) create(path string) (file, error) {
	if err := f.next(); err != nil {
		return nil, err
	}
	to, err := system{}.create(path)
	if err != nil {
		return nil, err
	}
	f.unsafe = append(f.unsafe, path)
	return &faultyFile{file: to, of: f, path: path}, nil
}

func (f *faulty) rename(from, to string) error {
	if err := f.next(); err != nil {
		return err
	}
	if i := slices.Index(f.unsafe, from); i >= 0 {
		f.unsafe[i] = to
	}
	return system{}.rename(from, to)
}

func (f *faulty) remove(path string) error {
	if err := f.next(); err != nil {
		return err
	}
	return system{}.remove(path)
}

func (f *faulty) syncDir(path string) error {
	if err := f.next(); err != nil {
		return err
	}
	return system{}.syncDir(path)
}

type faultyFile struct {
	file
	of   *faulty
	path string
}

func (f *faultyFile) Write(p []byte) (int, error) {
	if err := f.of.next(); err != nil {
		n, _ := f.file.Write(p[:len(p)/2])
		return n, err
	}
	return f.file.Write(p)
}

func (f *faultyFile) Sync() error {
	if err := f.of.next(); err != nil {
		return err
	}
	f.of.unsafe = slices.DeleteFunc(f.of.unsafe, func(path string) bool { return path == f.path })
	return f.file.Sync()
}

func (f *faultyFile) Close() error { return errors.Join(f.of.next(), f.file.Close()) }

// before returns a directory with a snapshot of that many keys.
func before(t *testing.T, keys int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	p := start(t, dir, system{})
	p.hit(t, keys)
	if err := p.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Close()
	return dir
}

// Wherever the machine crashes, the next start finds the old snapshot or the new one, whole.
func TestACrashLeavesTheOldSnapshotOrTheNew(t *testing.T) {
	const old, fresh = 100, 15_000 // a new snapshot takes several writes
	for at := 0; ; at++ {
		dir := before(t, old)
		f := &faulty{at: -1, crash: true}
		p := start(t, dir, f)
		p.hit(t, fresh)
		f.at, f.done = at, 0
		err := p.Save(t.Context())
		f.lose(rand.New(rand.NewPCG(1, uint64(at))))
		p.Close()

		next := start(t, dir, system{})
		keys := next.store.Stats().Keys
		if keys != old && keys != fresh || next.Stats().Refused != 0 {
			t.Fatalf("a crash at operation %d: %d keys, want %d or %d\n%s", at, keys, old, fresh, &next.log)
		}
		if got := names(t, dir); !slices.Equal(got, []string{"states"}) {
			t.Fatalf("a crash at operation %d: the next start leaves %q", at, got)
		}
		if err == nil {
			if keys != fresh || at < 7 {
				t.Fatalf("without a crash, after %d operations: %d keys, want %d", at, keys, fresh)
			}
			return
		}
	}
}

// Whichever operation fails, as on a full disk, the old snapshot stays, nothing is left over, and
// the next try succeeds.
func TestAFailureKeepsTheOldSnapshot(t *testing.T) {
	for _, failure := range []error{syscall.ENOSPC, syscall.EIO} {
		for at := 0; ; at++ {
			dir := before(t, 100)
			f := &faulty{at: -1, failure: failure}
			p := start(t, dir, f)
			p.hit(t, 15_000)
			f.at, f.done = at, 0
			err := p.Save(t.Context())
			if err == nil {
				break
			}
			if !errors.Is(err, failure) || p.Stats().Failures != 1 || !strings.Contains(p.log.String(), failure.Error()) {
				t.Fatalf("%v at operation %d: got %v, %+v\n%s", failure, at, err, p.Stats(), &p.log)
			}
			if got := names(t, dir); !slices.Equal(got, []string{"states"}) {
				t.Fatalf("%v at operation %d leaves %q", failure, at, got)
			}
			if err := p.Save(t.Context()); err != nil {
				t.Fatalf("the next snapshot: %v", err)
			}
			p.Close()
			if next := start(t, dir, system{}); next.store.Stats().Keys != 15_000 {
				t.Fatalf("after the next snapshot: %d keys, want 15000", next.store.Stats().Keys)
			}
		}
	}
}

// saveForever is the child of the next test: a process that does nothing but save.
const saveForever = "WEIR_TEST_SAVE_FOREVER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(saveForever); dir != "" {
		os.Exit(child(dir))
	}
	os.Exit(m.Run())
}

func child(dir string) int {
	s, err := memstore.New(memstore.Options{Savable: true, MaxKeys: 100_000})
	if err != nil {
		return 1
	}
	k, err := Open(context.Background(), Options{Dir: lockfile.NewDirectory(dir, "states"), Store: s, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return 1
	}
	if err := hit(context.Background(), s, 20_000); err != nil {
		return 1
	}
	for saves := 0; ; saves++ {
		if err := k.Save(context.Background()); err != nil {
			return 1
		}
		if saves == 0 {
			_, _ = os.Stdout.WriteString("saving\n")
		}
	}
}

// A process that saves all the time is killed at any moment. Each time the next start finds a whole
// snapshot.
func TestAKilledProcessLeavesAWholeSnapshot(t *testing.T) {
	kills := 8
	if n, err := strconv.Atoi(os.Getenv("WEIR_KILLS")); err == nil {
		kills = n
	}
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	unfinished := 0
	for n := range kills {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), saveForever+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 7)); err != nil {
			t.Fatalf("the child says nothing: %v", err)
		}
		<-time.After(time.Duration(r.Int64N(int64(30 * time.Millisecond)))) // any moment
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if _, err := os.Stat(filepath.Join(dir, "states.new")); err == nil {
			unfinished++
		}
		p := start(t, dir, system{})
		if keys := p.store.Stats().Keys; keys != 20_000 {
			t.Fatalf("kill %d: %d keys, want 20000\n%s", n, keys, &p.log)
		}
		if got := names(t, dir); !slices.Equal(got, []string{"states"}) {
			t.Fatalf("kill %d: the next start leaves %q", n, got)
		}
		p.Close()
	}
	t.Logf("%d of %d kills were in the middle of a snapshot", unfinished, kills)
}
