package snapshots

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/lockfile"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// inFleet opens a directory as a process of a fleet does. change may change the options.
func inFleet(t *testing.T, dir string, f files, change func(*Options)) (k *Keeper, log *bytes.Buffer, end func()) {
	t.Helper()
	s, err := memstore.New(memstore.Options{Savable: true})
	if err != nil {
		t.Fatal(err)
	}
	log = new(bytes.Buffer)
	d := lockfile.NewDirectory(dir, "states")
	o := Options{
		Dir: d, Store: s, Logger: slog.New(slog.NewTextHandler(log, nil)),
		Fleet: func() int { return 0 }, Member: func() string { return "" },
	}
	change(&o)
	if k, err = open(t.Context(), o, f); err != nil {
		t.Fatal(err)
	}
	return k, log, func() { d.Close(); s.Close() }
}

// of runs a process of a fleet, which saves once for each number, after a time. of returns the
// number that the process found, and its log.
func of(t *testing.T, dir string, wait time.Duration, numbers ...int) (found int, log string) {
	t.Helper()
	now := 0
	k, lines, end := inFleet(t, dir, system{}, func(o *Options) { o.Fleet = func() int { return now } })
	defer end()
	found = k.Fleet()
	for _, now = range numbers {
		time.Sleep(wait)
		if err := k.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return found, lines.String()
}

func TestTheLargestFleetOfAnHourOutlivesTheProcess(t *testing.T) {
	for _, test := range []struct {
		name    string
		wait    time.Duration
		numbers []int
		want    int
	}{
		{"not counted", time.Second, []int{0, 0}, 0},
		{"counted", time.Second, []int{0, 4}, 4},
		{"the others stop first", time.Second, []int{4, 3, 2, 1}, 4},
		{"not counted at the end", time.Second, []int{4, 0}, 4},
		{"it grows", time.Second, []int{1, 2, 5}, 5},
		{"it shrank long ago", 20 * time.Minute, []int{4, 2, 2, 2, 2}, 2},
		{"it is as large for long", 20 * time.Minute, []int{4, 4, 4, 4, 3}, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				of(t, dir, test.wait, test.numbers...)
				if got, log := of(t, dir, 0); got != test.want {
					t.Errorf("the next process finds %d, want %d\n%s", got, test.want, log)
				}
			})
		})
	}
}

func TestADamagedNumberOfAFleetIsLoggedAndReplaced(t *testing.T) {
	for _, text := range []string{"", "4", "four 2026-11-24T11:00:00Z\n", "0 2026-11-24T11:00:00Z\n", "-3 2026-11-24T11:00:00Z\n", "4 now\n", "9999999 2026-11-24T11:00:00Z\n", strings.Repeat("4", 1<<20)} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "fleet"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		found, log := of(t, dir, 0, 3)
		if found != 0 || strings.Count(log, "cannot be read") != 1 || len(log) > 2000 {
			t.Errorf("%.50q: got %d, want an unknown number and a line:\n%.2000s", text, found, log)
		}
		if found, _ := of(t, dir, 0); found != 3 {
			t.Errorf("after %.50q: got %d, want the 3 that were saved", text, found)
		}
	}
}

func TestADirectoryWithoutAFleetHasNoNumber(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir, system{})
	if err := p.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); len(got) != 1 || got[0] != "states" {
		t.Errorf("got the files %q, want states alone", got)
	}
}

// A directory stands where the file of the fleet belongs: the counts are saved all the same.
func TestANumberThatCannotBeSavedIsNoFailureOfTheCounts(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "fleet"), 0o700); err != nil {
		t.Fatal(err)
	}
	if found, log := of(t, dir, 0, 3, 3, 4); found != 0 || strings.Contains(log, "counts cannot be saved") || strings.Count(log, "counts saved") != 3 ||
		strings.Count(log, "the number of processes that share Redis cannot be saved") != 1 {
		t.Errorf("got %d, want an unknown number, three saves and a line about the number:\n%s", found, log)
	}
}

// The next process learns the name of the last one.
func TestTheNameOfTheLastProcessOutlivesIt(t *testing.T) {
	dir := t.TempDir()
	for n, want := range []string{"", "process 0", "process 1"} {
		k, _, end := inFleet(t, dir, system{}, func(o *Options) {
			o.Fleet, o.Member = func() int { return 4 }, func() string { return fmt.Sprint("process ", n) }
		})
		must.Do(t, k.Save(t.Context()))
		if got := k.Former(); got != want {
			t.Errorf("process %d: the former is %q, want %q", n, got, want)
		}
		end()
	}
}
