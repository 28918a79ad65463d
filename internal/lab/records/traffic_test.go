package records

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// linesOf returns the lines of requests of a client, one each second from an instant on.
func linesOf(client string, from time.Duration, many int) []byte {
	var b []byte
	for i := range many {
		r := Record{At: algorithms.Instant(from + time.Duration(i)*time.Second), Request: *requestOf(fmt.Sprint(client, i))}
		b = Append(b, &r)
	}
	return b
}

func compressed(tb testing.TB, text []byte) []byte {
	tb.Helper()
	e := must.Get(zstd.NewWriter(nil))(tb)
	return e.EncodeAll(text, nil)
}

func write(tb testing.TB, path string, data []byte) string {
	tb.Helper()
	must.Do(tb, os.WriteFile(path, data, 0o600))
	return path
}

func failing(t *testing.T, paths ...string) (records int, err error) {
	t.Helper()
	traffic, err := Open(t.Context(), paths, strings.NewReader(""))
	if err != nil {
		return 0, err
	}
	defer traffic.Close()
	for _, err := range traffic.All() {
		if err != nil {
			return records, err
		}
		records++
	}
	return records, nil
}

// Files of several sidecars, of any form, are read as one, in the order of the instants; names do
// not matter.
func TestFilesAreMergedByTime(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "b.jsonl"), linesOf("early", time.Hour, 3))
	write(t, filepath.Join(dir, "a.jsonl.zst"), compressed(t, linesOf("late", 2*time.Hour, 2)))
	write(t, filepath.Join(dir, "c.jsonl"), linesOf("between", time.Hour+1500*time.Millisecond, 2))
	write(t, filepath.Join(dir, "empty.jsonl"), nil)
	write(t, filepath.Join(dir, ".hidden.jsonl"), []byte("no record"))
	write(t, filepath.Join(dir, "README"), []byte("no record"))
	got, notes := readAll(t, dir)
	want := "[early0 early1 between0 early2 between1 late0 late1]"
	if fmt.Sprint(got) != want || len(notes) != 0 {
		t.Errorf("got %v and %v, want %s", got, notes, want)
	}
}

// Only files with times that overlap are open at once.
func TestManyFilesInARowAreOpenOneByOne(t *testing.T) {
	dir := t.TempDir()
	for i := range maxOpen + 100 {
		write(t, filepath.Join(dir, fmt.Sprintf("%d.jsonl", i)), linesOf("c", time.Duration(i)*time.Hour, 2))
	}
	if got, _ := readAll(t, dir); len(got) != 2*(maxOpen+100) {
		t.Errorf("got %d requests", len(got))
	}
	for i := range maxOpen + 100 {
		write(t, filepath.Join(dir, fmt.Sprintf("%d.jsonl", i)), linesOf("c", time.Hour, 2))
	}
	if _, err := failing(t, dir); err == nil || !strings.Contains(err.Error(), "the times of more than 1000 files overlap") {
		t.Errorf("got %v", err)
	}
}

// All lines before a cut are read, at any place of the cut, and a note tells about it.
func TestACutOffFileIsReadToItsLastWholeLine(t *testing.T) {
	plain := linesOf("c", time.Hour, 4)
	path := filepath.Join(t.TempDir(), "record.jsonl")
	for cut := range plain {
		write(t, path, plain[:cut])
		got, notes := readAll(t, path)
		whole := bytes.Count(plain[:cut], []byte("\n"))
		if cut > 0 && plain[cut-1] == '}' && plain[cut] == '\n' {
			whole++
		}
		if partly := cut > 0 && plain[cut-1] != '\n' && plain[cut] != '\n'; len(got) != whole || partly != (len(notes) == 1) {
			t.Fatalf("cut at %d: %q and %v, want %d requests", cut, got, notes, whole)
		}
	}
	var out bytes.Buffer
	e := must.Get(zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1)))(t)
	var flushed []int // lengths after which one more request is whole
	for i := range 4 {
		must.Get(e.Write(linesOf("c", time.Duration(i)*time.Hour, 1)))(t)
		must.Do(t, e.Flush())
		flushed = append(flushed, out.Len())
	}
	must.Do(t, e.Close())
	for cut := range out.Len() {
		write(t, path, out.Bytes()[:cut])
		want := 0
		for want < len(flushed) && flushed[want] <= cut {
			want++
		}
		if got, _ := readAll(t, path); len(got) != want {
			t.Fatalf("cut at %d: %q, want %d requests", cut, got, want)
		}
	}
}

// All mistakes of a place are told at once, with file and line, and those at the beginning of all
// files before anything is read.
func TestMistakesHaveFileAndLine(t *testing.T) {
	dir := t.TempDir()
	good := string(linesOf("c", time.Hour, 1))
	a := write(t, filepath.Join(dir, "a.jsonl"), []byte(good+"\n  \nnonsense\n"+good+"{}\n"))
	b := write(t, filepath.Join(dir, "b.jsonl"), []byte("[]\n"))
	_, err := failing(t, a, b, filepath.Join(dir, "missing"))
	for _, want := range []string{
		a + ":4: is not JSON", a + ":6: at: is missing", b + ":1: is a JSON array: must be an object", "missing: no such file",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	many := write(t, filepath.Join(dir, "many.jsonl"), []byte(strings.Repeat("nonsense\n", 100)))
	if _, err := failing(t, many); strings.Count(err.Error(), "\n") != maxMistakes-1 {
		t.Errorf("of 100 mistakes are listed %d", 1+strings.Count(err.Error(), "\n"))
	}
	late := write(t, filepath.Join(dir, "late.jsonl"), append(linesOf("c", time.Hour, 5000), "nonsense\n"...))
	if n, err := failing(t, late); err == nil || !strings.Contains(err.Error(), late+":5001: is not JSON") || n < 4000 {
		t.Errorf("after %d requests: %v", n, err)
	}
	damaged := compressed(t, linesOf("c", time.Hour, 5000))
	damaged[len(damaged)/2] ^= 0xff
	at := write(t, filepath.Join(dir, "damaged.jsonl.zst"), damaged)
	if _, err := failing(t, at); err == nil || !strings.Contains(err.Error(), at+":") {
		t.Errorf("a damaged file: %v", err)
	}
	if _, err := failing(t, t.TempDir()); err == nil || !strings.Contains(err.Error(), "has no file whose name ends in .jsonl") {
		t.Errorf("an empty directory: %v", err)
	}
}

// A small compressed file can have gigabytes, which take no memory, and end in a mistake.
func TestABombIsAMistake(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ fill, want string }{
		"one line":    {"x", ":1: is longer than 1048576 bytes"},
		"blank lines": {"\n", "there are more than 1048576 bytes of blank lines in a row"},
		"spaces":      {" ", ":1: is longer than 1048576 bytes"},
	} {
		bomb := compressed(t, bytes.Repeat([]byte(c.fill), 8<<20))
		if len(bomb) > 64<<10 {
			t.Fatalf("the bomb has %d bytes", len(bomb))
		}
		path := write(t, filepath.Join(dir, name), bomb)
		if _, err := failing(t, path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
	var large bytes.Buffer
	e := must.Get(zstd.NewWriter(&large, zstd.WithWindowSize(256<<20), zstd.WithEncoderConcurrency(1)))(t)
	must.Get(e.Write(linesOf("c", time.Hour, 1)))(t)
	must.Do(t, errors.Join(e.Flush(), e.Close()))
	if _, err := failing(t, write(t, filepath.Join(dir, "window"), large.Bytes())); err == nil || !strings.Contains(err.Error(), "window size exceeded") {
		t.Errorf("a window of 256 MiB: %v", err)
	}
}

// Instants of a file never go back: a little is the order of answers. After a step of the clock
// time goes on from where it was.
func TestTimesThatGoBack(t *testing.T) {
	at := func(times ...time.Duration) (got []time.Duration, notes []Note) {
		var text []byte
		for _, d := range times {
			r := Record{At: algorithms.Instant(d), Request: *requestOf("c")}
			text = Append(text, &r)
		}
		traffic := must.Get(Open(t.Context(), []string{"-"}, bytes.NewReader(text)))(t)
		defer traffic.Close()
		for r, err := range traffic.All() {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, time.Duration(r.At))
		}
		return got, traffic.Notes()
	}
	const h, s = time.Hour, time.Second
	got, notes := at(h, h+2*s, h+s, h+3*s)
	if want := fmt.Sprint([]time.Duration{h, h + 2*s, h + 2*s, h + 3*s}); fmt.Sprint(got) != want || len(notes) != 0 {
		t.Errorf("a little: %v and %v, want %s", got, notes, want)
	}
	got, notes = at(3*h, 2*h, 2*h+s, 2*h+5*s)
	if want := fmt.Sprint([]time.Duration{3 * h, 3 * h, 3*h + s, 3*h + 5*s}); fmt.Sprint(got) != want || len(notes) != 1 ||
		!strings.Contains(notes[0].String(), "standard input:2: the instant is 1h0m0s before the one ahead of it") {
		t.Errorf("a step: %v and %v, want %s", got, notes, want)
	}
	end := time.Duration(endOfTime-1) * s
	got, _ = at(end, 0, end, end)
	for i := 1; i < len(got); i++ {
		if got[i] < got[i-1] {
			t.Errorf("at the end of time: %v", got)
		}
	}
}

func TestAnEndedContextEndsTheReading(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in, out := io.Pipe() // with a writer that never ends
	defer func() { _ = out.Close() }()
	go func() { _, _ = out.Write(linesOf("c", time.Hour, 2000)) }()
	traffic := must.Get(Open(ctx, []string{"-"}, in))(t)
	var err error
	for _, err = range traffic.All() {
		cancel()
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	traffic.Close()
}

// recordForever is the child of the next test: a process that records until it is killed.
const recordForever = "WEIR_TEST_RECORD_FOREVER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(recordForever); dir != "" {
		os.Exit(child(dir))
	}
	os.Exit(m.Run())
}

func child(dir string) int {
	r, err := NewRecorder(context.Background(), Options{Dir: dir})
	if err != nil {
		return 1
	}
	go func() { _ = r.Run(context.Background()) }()
	for i := 0; ; i++ {
		saw(r, fmt.Sprint(i), false)
		if i%100 == 0 {
			time.Sleep(time.Millisecond)
		}
		if r.Stats().Recorded > 0 && i%1000 == 0 {
			_, _ = fmt.Fprintln(os.Stdout, "recorded", r.Stats().Recorded)
		}
	}
}

// A killed process leaves a record with all requests but the last moments'.
func TestAKilledProcessLeavesAGoodRecord(t *testing.T) {
	dir := t.TempDir()
	recorded := uint64(0)
	for range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), recordForever+"="+dir)
		out := must.Get(cmd.StdoutPipe())(t)
		must.Do(t, cmd.Start())
		var n uint64
		if _, err := fmt.Fscanf(out, "recorded %d\n", &n); err != nil {
			t.Fatalf("the child says: %v", err)
		}
		recorded += n
		must.Do(t, cmd.Process.Signal(syscall.SIGKILL))
		_ = cmd.Wait()
	}
	got, _ := readAll(t, dir)
	if uint64(len(got)) < recorded {
		t.Errorf("%d requests, fewer than the %d that were recorded before the kills", len(got), recorded)
	}
}

func FuzzTraffic(f *testing.F) {
	f.Add(linesOf("c", time.Hour, 3))
	f.Add(compressed(f, linesOf("c", time.Hour, 3)))
	f.Add([]byte{0x28, 0xb5})
	f.Fuzz(func(t *testing.T, data []byte) {
		traffic, err := Open(t.Context(), []string{"-"}, bytes.NewReader(data))
		if err != nil {
			return
		}
		defer traffic.Close()
		last := algorithms.Instant(0)
		for r, err := range traffic.All() {
			if err != nil {
				return
			}
			if r.At < last || r.Request.Domain == "" || len(r.Request.Descriptors) == 0 {
				t.Fatalf("%+v after %d", r, last)
			}
			last = r.At
		}
	})
}

// BenchmarkTraffic reads usual lines from a compressed file.
func BenchmarkTraffic(b *testing.B) {
	const many = 100_000
	path := write(b, filepath.Join(b.TempDir(), "record.jsonl.zst"), compressed(b, linesOf("client-", time.Hour, many)))
	read := 0
	for b.Loop() {
		traffic := must.Get(Open(b.Context(), []string{path}, nil))(b)
		for _, err := range traffic.All() {
			if err != nil {
				b.Fatal(err)
			}
			read++
		}
		traffic.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(read), "ns/request")
}
