package records

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// After many leaps of a clock, far ahead and back again, requests a second apart stay a second
// apart. A simulation would else decide all of them at one instant, and deny for years.
func TestLeapsOfTheClockDoNotStopTime(t *testing.T) {
	const now, future = 1_800_000_000 * time.Second, (endOfTime - 1) * time.Second
	var text []byte
	for i := range 20 {
		text = append(text, linesOf("leap", now+time.Duration(i)*time.Second, 1)...)
		text = append(text, linesOf("leap", future, 1)...)
	}
	const many = 1000
	text = append(text, linesOf("client", now+time.Hour, many)...)
	traffic := must.Get(Open(t.Context(), []string{"-"}, bytes.NewReader(text)))(t)
	defer traffic.Close()
	var all []algorithms.Instant
	for r, err := range traffic.All() {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r.At)
	}
	after := all[len(all)-many:]
	for i := 1; i < many; i++ {
		if got := time.Duration(after[i] - after[i-1]); got != time.Second {
			t.Fatalf("request %d after the leaps came %v after the one before, want a second", i, got)
		}
	}
}

// Files from before a step of the clock back have names of the future. These files go before the
// files of today.
func TestFilesOfTheFutureGoFirst(t *testing.T) {
	dir := t.TempDir()
	text := compressed(t, bytes.Repeat([]byte("x"), 10))
	future, past := filepath.Join(dir, prefix+"21991231T235959.000000000Z"+Extension), filepath.Join(dir, prefix+"20200101T000000.000000000Z"+Extension)
	for _, path := range []string{future, past} {
		must.Do(t, os.Truncate(write(t, path, text), MinMaxBytes/2-100))
	}
	r := must.Get(NewRecorder(t.Context(), Options{Dir: dir, MaxBytes: MinMaxBytes, Logger: slog.New(slog.DiscardHandler)}))(t)
	saw(r, "alice", false)
	r.write()
	r.out.close()
	if _, err := os.Stat(future); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of the future is there: %v", err)
	}
	if _, err := os.Stat(past); err != nil {
		t.Errorf("the file of the past: %v", err)
	}
}

// A request whose line is longer than a reader takes would make the whole file a mistake.
func TestARequestThatIsTooLongIsNotRecorded(t *testing.T) {
	dir := t.TempDir()
	r := must.Get(NewRecorder(t.Context(), Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)}))(t)
	for _, client := range []string{"alice", strings.Repeat("<\"", maxLine/8), strings.Repeat("x", maxLine-200), "bob"} {
		saw(r, client, false)
	}
	r.write()
	r.out.close()
	clients, _ := readAll(t, dir)
	if len(clients) != 3 || clients[0] != "alice" || clients[2] != "bob" {
		t.Errorf("got %d requests", len(clients))
	}
	if s := r.Stats(); s.Recorded != 3 || s.Dropped != 1 {
		t.Errorf("%+v", s)
	}
}

// Editors begin a file with a byte order mark, and a crash of the machine may leave a tail of
// zeros.
func TestAByteOrderMarkAndATailOfZerosAreNoMistakes(t *testing.T) {
	text := linesOf("client", time.Hour, 3)
	marked := append([]byte("\xef\xbb\xbf"), text...)
	zeros := append(bytes.Clone(text), make([]byte, 3*chunkBytes)...)
	for name, data := range map[string][]byte{"mark": marked, "zeros": zeros, "compressed mark": compressed(t, marked)} {
		clients, notes := readAll(t, write(t, filepath.Join(t.TempDir(), "a.jsonl"), data))
		if want := "[client0 client1 client2]"; fmt.Sprint(clients) != want || (len(notes) == 1) != (name == "zeros") {
			t.Errorf("%s: got %v and %v, want %s", name, clients, notes, want)
		}
	}
	for name, data := range map[string][]byte{
		"a mark in the middle": append(bytes.Clone(text), marked...), "zeros in the middle": append(append(bytes.Clone(text), 0, 0, '\n'), text...),
	} {
		if _, err := failing(t, write(t, filepath.Join(t.TempDir(), "a.jsonl"), data)); err == nil || !strings.Contains(err.Error(), "a.jsonl:4: is not JSON") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Two readers of one stream would each get parts of lines.
func TestStandardInputCanBeReadOnce(t *testing.T) {
	if _, err := failing(t, "-", "-"); err == nil || !strings.Contains(err.Error(), "standard input is given twice") {
		t.Errorf("got %v", err)
	}
}

// On a full disk somebody removes the directory to make room. The recording goes on in a new one.
func TestADirectoryThatIsRemovedOnAFullDiskIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, disk := filepath.Join(t.TempDir(), "record"), new(faulty)
		r, stop := running(t, Options{Dir: dir}, disk.create)
		disk.set(true)
		saw(r, "lost", false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		must.Do(t, os.RemoveAll(dir))
		disk.set(false)
		time.Sleep(maxWait)
		for range 3 {
			saw(r, "after", false)
			time.Sleep(maxWait)
			synctest.Wait()
		}
		if got, _ := readAll(t, dir); len(got) != 3 {
			t.Errorf("read %q, want three requests; %+v", got, r.Stats())
		}
		if _, err := NewRecorder(t.Context(), Options{Dir: dir}); err == nil {
			t.Error("another process can record there")
		}
		stop()
	})
}
