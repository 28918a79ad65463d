package records

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/limiter"
)

func requestOf(client string) *limiter.Request {
	return &limiter.Request{Domain: "edge", Descriptors: []limiter.Descriptor{
		{Entries: []limiter.Entry{{Key: "path", Value: "/cart"}, {Key: "client", Value: client}}},
	}}
}

func saw(r *Recorder, client string, over bool) {
	r.Observe(limiter.Observed{Begun: time.Now(), Request: requestOf(client), Verdict: &limiter.Verdict{OverLimit: over}})
}

func running(t *testing.T, o Options, create func(string) (io.WriteCloser, error)) (r *Recorder, stop func()) {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	r = must.Get(newRecorder(t.Context(), o, create))(t)
	ctx, cancel := context.WithCancel(context.Background())
	var going sync.WaitGroup
	going.Go(func() { _ = r.Run(ctx) })
	return r, func() { cancel(); going.Wait() }
}

// readAll returns the clients of all requests in the paths, and the notes.
func readAll(t *testing.T, paths ...string) (clients []string, notes []Note) {
	t.Helper()
	traffic := must.Get(Open(t.Context(), paths, strings.NewReader("")))(t)
	defer traffic.Close()
	last := algorithms.Instant(0)
	for r, err := range traffic.All() {
		if err != nil {
			t.Fatal(err)
		}
		if r.At < last {
			t.Fatalf("instant %d comes after %d", r.At, last)
		}
		last = r.At
		entries := r.Request.Descriptors[0].Entries
		clients = append(clients, strings.Clone(entries[len(entries)-1].Value))
	}
	return clients, traffic.Notes()
}

func TestARecordHasEachRequestOnceAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "made", "here")
		r, stop := running(t, Options{Dir: dir}, create)
		const many = 10_000
		for i := range many {
			saw(r, strconv.Itoa(i), i%2 == 1)
			if i%1000 == 0 {
				time.Sleep(time.Second)
				synctest.Wait()
			}
		}
		r.Observe(limiter.Observed{Begun: time.Now(), Request: requestOf("x"), Verdict: new(limiter.Verdict), Err: errors.New("late")})
		stop()
		got, notes := readAll(t, dir)
		if len(got) != many || len(notes) != 0 {
			t.Fatalf("%d requests and the notes %v; want %d and none", len(got), notes, many)
		}
		for i, client := range got {
			if client != strconv.Itoa(i) {
				t.Fatalf("request %d is of client %s", i, client)
			}
		}
		if s := r.Stats(); s.Recorded != many || s.Failed != 1 || s.Dropped+s.Lost+s.Failures != 0 {
			t.Errorf("%+v", s)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the directory: %v, %v; want mode 0700", info.Mode(), err)
		}
	})
}

func TestEverythingOfARequestIsRecorded(t *testing.T) {
	want := everything()
	var r Record
	packed := pack(nil, want.At, want.Answer, &want.Request)
	if len(packed) > packedSize(&want.Request) {
		t.Errorf("packed in %d bytes, more than the announced %d", len(packed), packedSize(&want.Request))
	}
	u := unpacker{packed}
	u.next(&r)
	if got, line := string(Append(nil, &r)), string(Append(nil, &want)); got != line || len(u.rest) > 0 {
		t.Errorf("got %s, want %s", got, line)
	}
}

// Equal values of a key have equal hashes in a record. Another record, with a salt of its own, has
// other ones, unless both have one salt.
func TestHashedValues(t *testing.T) {
	record := func(salt []byte) []string {
		dir := t.TempDir()
		r, stop := running(t, Options{Dir: dir, HashValues: []string{"client"}, Salt: salt}, create)
		for _, client := range []string{"alice", "bob", "alice"} {
			saw(r, client, false)
		}
		stop()
		data, err := filepath.Glob(filepath.Join(dir, "*"+Extension))
		if err != nil || len(data) != 1 {
			t.Fatalf("%q, %v", data, err)
		}
		got, _ := readAll(t, dir)
		return got
	}
	first, second := record(nil), record(nil)
	if first[0] != first[2] || first[0] == first[1] || len(first[0]) != 16 || strings.Contains(strings.Join(first, ""), "alice") {
		t.Errorf("a record: %q", first)
	}
	if first[0] == second[0] {
		t.Errorf("two records have the same hash %s", first[0])
	}
	salt := []byte("0123456789abcdef")
	if a, b := record(salt), record(salt); a[0] != b[0] || a[0] == first[0] {
		t.Errorf("with one salt: %q and %q", a, b)
	}
	if _, err := NewRecorder(t.Context(), Options{Dir: t.TempDir(), Salt: salt[:15]}); err == nil {
		t.Error("a salt of 15 bytes is accepted")
	}
}

// faulty is a disk that is full for a time.
type faulty struct {
	mu   sync.Mutex
	full bool
}

func (f *faulty) set(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = full
}

func (f *faulty) create(path string) (io.WriteCloser, error) {
	to, err := create(path)
	return faultyFile{to, f}, err
}

type faultyFile struct {
	io.WriteCloser
	of *faulty
}

func (f faultyFile) Write(p []byte) (int, error) {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if f.of.full {
		n, _ := f.WriteCloser.Write(p[:len(p)/2])
		return n, syscall.ENOSPC
	}
	return f.WriteCloser.Write(p)
}

// A full disk costs the requests of that time, and one line in the log. With room on the disk the
// recording goes on.
func TestAFullDiskEndsNoRecording(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, disk, log := t.TempDir(), new(faulty), new(strings.Builder)
		r, stop := running(t, Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(log, nil))}, disk.create)
		second := func(name string) {
			saw(r, name, false)
			time.Sleep(time.Second)
			synctest.Wait()
		}
		second("before")
		disk.set(true)
		for i := range 300 {
			second(fmt.Sprint("full", i))
		}
		if files, _ := filepath.Glob(filepath.Join(dir, "*"+Extension)); len(files) > 30 {
			t.Errorf("the full disk has %d files", len(files))
		}
		disk.set(false)
		for range 31 {
			second("after")
		}
		stop()
		got, _ := readAll(t, dir)
		s := r.Stats()
		if got[0] != "before" || got[len(got)-1] != "after" || uint64(len(got)) != s.Recorded || s.Recorded+s.Lost != 332 || s.Lost < 300 {
			t.Errorf("read %q; %+v", got, s)
		}
		if failed := strings.Count(log.String(), "requests cannot be recorded"); failed != 1 || strings.Count(log.String(), "recorded again") != 1 {
			t.Errorf("want one line of the failure and one of its end:\n%s", log)
		}
	})
}

func TestADirectoryThatVanishesIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "record")
		r, stop := running(t, Options{Dir: dir}, create)
		saw(r, "lost with the directory", false)
		time.Sleep(time.Second)
		synctest.Wait()
		must.Do(t, os.RemoveAll(dir))
		time.Sleep(time.Second)
		synctest.Wait()
		saw(r, "after", false)
		time.Sleep(time.Second)
		synctest.Wait()
		if got, _ := readAll(t, dir); len(got) != 1 || got[0] != "after" {
			t.Errorf("read %q, want the request after", got)
		}
		stop()
	})
}

// A directory that cannot be made is tried again, and costs requests only.
func TestADirectoryThatCannotBeUsedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		place := filepath.Join(t.TempDir(), "file")
		must.Do(t, os.WriteFile(place, nil, 0o600))
		r, stop := running(t, Options{Dir: filepath.Join(place, "record")}, create)
		saw(r, "early", false)
		time.Sleep(2 * time.Second)
		must.Do(t, os.Remove(place))
		time.Sleep(maxWait)
		saw(r, "late", false)
		stop()
		if got, _ := readAll(t, filepath.Join(place, "record")); len(got) != 1 || got[0] != "late" {
			t.Errorf("read %q, want the late request; %+v", got, r.Stats())
		}
	})
}

func TestTwoRecordersDoNotShareADirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		_, stop := running(t, Options{Dir: dir}, create)
		defer stop()
		if _, err := NewRecorder(t.Context(), Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "another process records there") {
			t.Errorf("got %v", err)
		}
	})
}

// The files together stay below the bound, and the newest requests stay.
func TestTheOldestFilesGoAtTheBound(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, "a-file-of-mine.jsonl.zst")
	must.Do(t, os.WriteFile(foreign, []byte("{}"), 0o600))
	r := must.Get(NewRecorder(t.Context(), Options{Dir: dir, MaxBytes: MinMaxBytes, Logger: slog.New(slog.DiscardHandler)}))(t)
	size := func() (sum int64, oldest string) {
		all, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
		if err != nil || len(all) == 0 {
			t.Fatal(err)
		}
		for _, name := range all {
			info := must.Get(os.Stat(name))(t)
			sum += info.Size()
		}
		return sum, all[0]
	}
	first, random := "", rand.NewChaCha8([32]byte{1})
	for round := 0; r.Stats().Bytes < 2*MinMaxBytes; round++ {
		for range 40 { // which hardly compress
			text := make([]byte, 30_000)
			_, _ = random.Read(text)
			saw(r, base64.StdEncoding.EncodeToString(text), false)
		}
		r.write()
		sum, oldest := size()
		if sum > MinMaxBytes {
			t.Fatalf("round %d: the files have %d bytes together, more than %d", round, sum, MinMaxBytes)
		}
		if first == "" {
			first = oldest
		}
	}
	r.out.close()
	if sum, oldest := size(); oldest == first || r.Stats().Removed == 0 || sum < MinMaxBytes/2 {
		t.Errorf("the files have %d bytes, the oldest is %s; %+v", sum, oldest, r.Stats())
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("a file of somebody else: %v", err)
	}
}

// Without a disk that keeps up, Observe drops requests at once and counts them.
func TestAFullBufferDropsAndNeverWaits(t *testing.T) {
	r := must.Get(NewRecorder(t.Context(), Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}))(t)
	long := strings.Repeat("x", bufferBytes/5)
	for range 10 { // nobody writes
		saw(r, long, false)
	}
	if s := r.Stats(); s.Dropped != 6 {
		t.Errorf("%d were dropped, want 6 of 10: a buffer has room for 4 with their sizes", s.Dropped)
	}
	r.write()
	saw(r, "small", false)
	r.write()
	r.out.close()
	if s := r.Stats(); s.Recorded != 5 {
		t.Errorf("%+v, want 5 recorded", s)
	}
}

func TestObserveDoesNotAllocate(t *testing.T) {
	r := must.Get(NewRecorder(t.Context(), Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}))(t)
	defer r.out.close()
	o := limiter.Observed{Begun: time.Now(), Request: requestOf("alice"), Verdict: new(limiter.Verdict)}
	if n := testing.AllocsPerRun(1000, func() { r.Observe(o) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	r := must.Get(NewRecorder(b.Context(), Options{Dir: b.TempDir(), Logger: slog.New(slog.DiscardHandler)}))(b)
	defer r.out.close()
	o := limiter.Observed{Begun: time.Now(), Request: requestOf("alice"), Verdict: new(limiter.Verdict)}
	for b.Loop() {
		if r.Observe(o); len(r.filling) > bufferBytes/2 {
			r.filling = r.filling[:0]
		}
	}
}
