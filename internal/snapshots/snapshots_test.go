package snapshots

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/lockfile"
	"github.com/weirproxy/weir/internal/regular"
	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/metricstest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// process is a store with its keeper, as one process has them.
type process struct {
	*Keeper
	dir   *lockfile.Directory
	store *memstore.Store
	log   bytes.Buffer
}

// start is the start of a process. The test ends the process, if it has not ended before.
func start(t *testing.T, dir string, f files) *process {
	t.Helper()
	p, err := tryStart(t, dir, f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func tryStart(t *testing.T, dir string, f files) (*process, error) {
	t.Helper()
	s, err := memstore.New(memstore.Options{Savable: true, MaxKeys: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	p := &process{store: s, dir: lockfile.NewDirectory(dir, "states")}
	p.Keeper, err = open(t.Context(), Options{Dir: p.dir, Store: s, Logger: slog.New(slog.NewTextHandler(&p.log, nil))}, f)
	if err == nil {
		t.Cleanup(p.Close)
	}
	return p, err
}

// Close is the end of the process, without a last snapshot.
func (p *process) Close() { p.dir.Close() }

// hit takes that many keys once.
func (p *process) hit(t *testing.T, keys int) {
	t.Helper()
	if err := hit(t.Context(), p.store, keys); err != nil {
		t.Fatal(err)
	}
}

func hit(ctx context.Context, s *memstore.Store, keys int) error {
	limit := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 10, Period: 1000 * time.Hour}
	for i := range keys {
		if _, err := store.Take(ctx, s, []store.Charge{{Key: fmt.Append(nil, i), Limit: limit, Hits: 1}}, make([]algorithms.Decision, 1)); err != nil {
			return err
		}
	}
	return nil
}

// names returns the names of the files in a directory, without the lock.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		if e.Name() != "states.lock" {
			all = append(all, e.Name())
		}
	}
	return all
}

func TestCountsOutliveTheProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	first := start(t, dir, system{})
	first.hit(t, 100)
	if err := first.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.Close()
	for name, want := range map[string]fs.FileMode{".": 0o700 | fs.ModeDir, "states": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: got %v, %v, want the mode %v", name, info, err, want)
		}
	}
	second := start(t, dir, system{})
	if got := second.store.Stats().Keys; got != 100 {
		t.Errorf("after the restart: %d keys, want 100; log:\n%s", got, &second.log)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(second.Metrics(), collectors.NewGoCollector())
	if err := second.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := metricstest.Gather(t, registry, "weir_state_")
	info, err := os.Stat(filepath.Join(dir, "states"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{
		`weir_state_saves_total{result="success"}`: 1, `weir_state_saves_total{result="failure"}`: 0,
		"weir_state_loaded_keys": 100, "weir_state_last_save_keys": 100, "weir_state_last_save_bytes": float64(info.Size()),
		"weir_state_refused_total": 0,
	} {
		if got[name] != want {
			t.Errorf("%s: got %v, want %v", name, got[name], want)
		}
	}
	if ago := time.Since(time.Unix(int64(got["weir_state_last_save_timestamp_seconds"]), 0)); ago < 0 || ago > time.Hour {
		t.Errorf("the last snapshot was %v ago", ago)
	}
}

func TestTwoProcessesCannotHaveOneDirectory(t *testing.T) {
	dir := t.TempDir()
	first := start(t, dir, system{})
	_, err := tryStart(t, dir, system{})
	if !errors.Is(err, lockfile.ErrHeld) || !strings.Contains(err.Error(), dir+": another process keeps its counts there") {
		t.Errorf("a second process: got %v", err)
	}
	first.Close()
	start(t, dir, system{})
}

func TestAFileThatIsNoSnapshotIsSetAside(t *testing.T) {
	make := map[string]func(path string) error{
		"empty":      func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"foreign":    func(path string) error { return os.WriteFile(path, []byte("domain: edge\n"), 0o600) },
		"directory":  func(path string) error { return os.Mkdir(path, 0o700) },
		"pipe":       func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"link":       func(path string) error { return os.Symlink("/etc/hostname", path) },
		"newer":      func(path string) error { return os.WriteFile(path, []byte("weir\r\n\x1a\x00\x02\x00\x00\x00"), 0o600) },
		"unfinished": func(path string) error { return os.WriteFile(path, []byte("weir\r\n\x1a\x00\x01\x00\x00\x00"), 0o600) },
	}
	for name, spoil := range make {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := spoil(filepath.Join(dir, "states")); err != nil {
				t.Fatal(err)
			}
			p := start(t, dir, system{})
			if got := names(t, dir); len(got) != 1 || !strings.HasPrefix(got[0], "states.refused-") {
				t.Errorf("got the files %q, want one set aside", got)
			}
			for _, want := range []string{"level=ERROR", "saved counts refused", "file=" + dir + "/states", "set_aside=" + dir + "/states.refused-"} {
				if !strings.Contains(p.log.String(), want) {
					t.Errorf("no %q in the log:\n%s", want, &p.log)
				}
			}
			p.hit(t, 5)
			if err := p.Save(t.Context()); err != nil || p.Stats().Refused != 1 {
				t.Errorf("Save: %v, %+v; want 1 refused", err, p.Stats())
			}
		})
	}
}

// Somebody may put anything in the place of the new file while the process runs. A pipe that
// somebody holds open and does not read takes 64 KiB; a Save, and so the stop, would wait for room.
func TestNothingInPlaceOfTheNewFileStopsASave(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"pipe": func(path string) error {
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				return err
			}
			pipe, err := os.OpenFile(path, os.O_RDWR, 0)
			if err == nil {
				t.Cleanup(func() { _ = pipe.Close() })
			}
			return err
		},
		"directory": func(path string) error { return os.MkdirAll(filepath.Join(path, "more"), 0o700) },
		"link":      func(path string) error { return os.Symlink("/etc/hostname", path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := start(t, dir, system{})
			p.hit(t, 20_000)
			must.Do(t, spoil(filepath.Join(dir, "states.new")))
			must.Do(t, p.Save(t.Context()))
			if got := names(t, dir); !slices.Equal(got, []string{"states"}) {
				t.Errorf("got the files %q, want states alone", got)
			}
		})
	}
}

func TestOnlyThreeFilesStaySetAside(t *testing.T) {
	dir := t.TempDir()
	for i := range 6 {
		if err := os.WriteFile(filepath.Join(dir, "states"), fmt.Append(nil, "file ", i), 0o600); err != nil {
			t.Fatal(err)
		}
		start(t, dir, system{}).Close()
	}
	got := names(t, dir)
	if len(got) != regular.MaxRefused {
		t.Fatalf("got %q, want %d files", got, regular.MaxRefused)
	}
	for i, name := range got {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != fmt.Sprint("file ", i+3) {
			t.Errorf("%s: %q, %v; want the newest files", name, text, err)
		}
	}
}

// A directory that cannot be used: the service goes on, and saves when the directory can be used.
func TestADirectoryThatCannotBeUsedEndsNoStart(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "dir")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, dir, system{})
	p.hit(t, 7)
	for range 3 {
		if err := p.Save(t.Context()); err == nil {
			t.Error("Save into a file: no error")
		}
	}
	if got := strings.Count(p.log.String(), "counts cannot be saved"); got != 1 || p.Stats().Failures != 4 {
		t.Errorf("%d lines, %d failures; want 1 and 4:\n%s", got, p.Stats().Failures, &p.log)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := p.Save(t.Context()); err != nil || !strings.Contains(p.log.String(), "counts saved") {
		t.Errorf("when the directory can be used: %v\n%s", err, &p.log)
	}
}

// slow is files of a disk that takes so long for each snapshot.
type slow struct {
	system
	takes time.Duration
}

func (s slow) rename(from, to string) error {
	time.Sleep(s.takes)
	return s.system.rename(from, to)
}

func TestSnapshotsAreTenSecondsApartAndFiftyTimesTheirDuration(t *testing.T) {
	tests := []struct {
		takes, after time.Duration
		want         uint64
	}{
		{0, 35 * time.Second, 3},
		{200 * time.Millisecond, 35 * time.Second, 3}, // starts at 10, 20 and 30 s
		{time.Second, 59 * time.Second, 1},
		{time.Second, 115 * time.Second, 3}, // starts at 10, 60 and 110 s
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.takes, " each, after ", test.after), func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				k := start(t, dir, slow{takes: test.takes})
				go func() { _ = k.Run(t.Context()) }()
				time.Sleep(test.after)
				synctest.Wait()
				if got := k.Stats().Saves; got != test.want {
					t.Errorf("got %d snapshots, want %d", got, test.want)
				}
			})
		})
	}
}

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/lockfile", "internal/metrics", "internal/regular", "pkg/algorithms", "pkg/store", "pkg/store/memstore"},
		Never: []string{"google.golang.org/grpc", "github.com/redis", "github.com/spf13"},
	})
}

func TestASnapshotThatTheStartCouldNotReadIsSetAside(t *testing.T) {
	dir := t.TempDir()
	first := start(t, dir, system{})
	first.hit(t, 7)
	if err := first.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.Close()
	lock := filepath.Join(dir, "states.lock")
	if err := errors.Join(os.Remove(lock), os.Symlink(filepath.Join(dir, "nowhere", "x"), lock)); err != nil {
		t.Fatal(err)
	}
	second := start(t, dir, system{})
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	if err := second.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	aside, err := filepath.Glob(filepath.Join(dir, "states.refused-*"))
	if err != nil || len(aside) != 1 {
		t.Errorf("set aside: %q, %v; want the first snapshot\n%s", aside, err, &second.log)
	}
}

// replaced removes a directory, and lets another process make it anew with that many keys.
func replaced(t *testing.T, dir string, keys int) *process {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	other := start(t, dir, system{})
	other.hit(t, keys)
	if err := other.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	return other
}

func TestAProcessDoesNotWriteIntoADirectoryThatAnotherProcessMadeAnew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	first := start(t, dir, system{})
	first.hit(t, 100)
	if err := first.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := replaced(t, dir, 7)
	const reason = "the directory was replaced, and another process uses it now"
	for range 2 {
		if err := first.Save(t.Context()); !errors.Is(err, lockfile.ErrHeld) || !strings.Contains(err.Error(), reason) {
			t.Errorf("Save of the first process: got %v, want %q", err, reason)
		}
	}
	if got := strings.Count(first.log.String(), reason); got != 1 {
		t.Errorf("%d lines say so, want 1:\n%s", got, &first.log)
	}
	second.Close()
	third := start(t, dir, system{})
	if got := third.store.Stats().Keys; got != 7 {
		t.Errorf("after the first process tried to save: %d keys, want the 7 of the second one", got)
	}
	third.Close()
	if err := first.Save(t.Context()); err != nil { // nobody else uses the directory
		t.Fatal(err)
	}
	if got := names(t, dir); len(got) != 2 || got[0] != "states" || !strings.HasPrefix(got[1], "states.refused-") {
		t.Errorf("got %q, want the counts of the first process, and those of the second set aside", got)
	}
}

// replacing is files of a directory that another process makes anew while a snapshot is written.
type replacing struct {
	system
	replace func()
}

func (r replacing) create(path string) (file, error) {
	f, err := r.system.create(path)
	r.replace()
	return f, err
}

func TestADirectoryMayBeReplacedWhileASnapshotIsWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	var second *process
	first := start(t, dir, &replacing{replace: func() {
		second = replaced(t, dir, 7)
		if err := os.WriteFile(filepath.Join(dir, "states.new"), nil, 0o600); err != nil { // as while the second one writes
			t.Error(err)
		}
	}})
	first.hit(t, 100)
	if err := first.Save(t.Context()); !errors.Is(err, lockfile.ErrHeld) {
		t.Errorf("Save: got %v, want ErrHeld", err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"states", "states.new"}) {
		t.Errorf("got %q, want the files of the second process", got)
	}
	second.Close()
	if got := start(t, dir, system{}).store.Stats().Keys; got != 7 {
		t.Errorf("the next start: %d keys, want the 7 of the second process", got)
	}
}
