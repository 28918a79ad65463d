package grants

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

func TestGrantsInADirectoryOutliveTheProcess(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := in(t, dir)
		if where, durable := p.Kept(); !durable || where != "in the state directory" {
			t.Errorf("kept %s, %v", where, durable)
		}
		revoked, _ := p.give(t, of("a", 5))
		p.give(t, of("b", 5))
		p.give(t, of("b", 6))
		short := of("c", 7)
		short.Until = time.Now().Add(time.Minute)
		p.give(t, short)
		if _, _, err := p.Revoke(t.Context(), revoked.ID, "me"); err != nil {
			t.Fatal(err)
		}
		p.end()
		time.Sleep(time.Minute)
		next := in(t, dir)
		next.wantLimit(t, "a", 2)
		next.wantLimit(t, "b", 6)
		next.wantLimit(t, "c", 2)
		if all := next.List(); len(all) != 1 || all[0].Reason != "a test" || all[0].By != "me" || all[0].Rule != "tenant" || all[0].ID == "" {
			t.Errorf("got %+v", all)
		}
	})
}

// Wherever a crash cuts the file off, the whole lines before count, and the next grant is kept.
func TestACutOffJournal(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := in(t, dir)
		p.give(t, of("a", 5))
		one, err := os.Stat(filepath.Join(dir, "grants"))
		if err != nil {
			t.Fatal(err)
		}
		p.give(t, of("b", 6))
		p.end()
		whole, err := os.ReadFile(filepath.Join(dir, "grants"))
		if err != nil {
			t.Fatal(err)
		}
		for size := one.Size(); size < int64(len(whole)); size += 7 {
			if err := os.WriteFile(filepath.Join(dir, "grants"), whole[:size], 0o600); err != nil {
				t.Fatal(err)
			}
			p := in(t, dir)
			p.wantLimit(t, "a", 5)
			p.wantLimit(t, "b", 2)
			p.give(t, of("c", 7))
			p.end()
			next := in(t, dir)
			next.wantLimit(t, "a", 5)
			next.wantLimit(t, "c", 7)
			next.end()
		}
	})
}

func TestADamagedJournalLosesItsDamagedLinesOnly(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := in(t, dir)
		p.give(t, of("a", 5))
		p.end()
		path := filepath.Join(dir, "grants")
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		damaged := "nonsense\n{}\n" + `{"slot":"x","grant":{"id":"y"}}` + "\n" + string(whole)
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		next := in(t, dir)
		next.wantLimit(t, "a", 5)
		if !strings.Contains(next.log.String(), "some lines of the saved grants cannot be read") || !strings.Contains(next.log.String(), "lines=3") {
			t.Errorf("the log says nothing\n%s", &next.log)
		}
		aside, err := filepath.Glob(path + ".refused-*")
		if err != nil || len(aside) != 1 {
			t.Fatalf("set aside: %v, %v", aside, err)
		}
		if got, err := os.ReadFile(aside[0]); err != nil || string(got) != damaged {
			t.Errorf("set aside: %q, %v", got, err)
		}
	})
}

// Each line has a checksum. Whichever bit of a line flips, the line has no effect. All other lines
// have theirs.
func TestAFlippedBitCostsItsLineOnly(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := in(t, dir)
		revoked, _ := p.give(t, of("a", 5))
		p.give(t, of("b", 6))
		p.give(t, of("c", 7))
		if _, _, err := p.Revoke(t.Context(), revoked.ID, "me"); err != nil {
			t.Fatal(err)
		}
		p.end()
		path := filepath.Join(dir, "grants")
		whole := must.Get(os.ReadFile(path))(t)
		second := bytes.IndexByte(whole, '\n') + 1
		third := second + bytes.IndexByte(whole[second:], '\n') + 1
		for bit := 0; bit < 8*(third-1-second); bit += 7 { // each of the eight bits in turn
			damaged := bytes.Clone(whole)
			damaged[second+bit/8] ^= 1 << (bit % 8)
			must.Do(t, os.WriteFile(path, damaged, 0o600))
			next := in(t, dir)
			next.wantLimit(t, "a", 2)
			next.wantLimit(t, "b", 2)
			next.wantLimit(t, "c", 7)
			text := next.log.String()
			if n := strings.Count(text, "level=ERROR"); n != 1 || !strings.Contains(text, "first_line=2") {
				t.Fatalf("bit %d of the line: got %d lines of the log about damage, want 1 that names line 2\n%s", bit, n, text)
			}
			next.end()
			for _, aside := range must.Get(filepath.Glob(path + ".refused-*"))(t) {
				must.Do(t, os.Remove(aside))
			}
			if t.Failed() {
				t.Fatalf("bit %d of the line", bit)
			}
		}
	})
}

// A file that is damaged again and again does not fill the disk with copies.
func TestTheNewestThreeRefusedFilesStay(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(dir, "grants")
		for i := range 8 {
			must.Do(t, os.WriteFile(path, fmt.Appendf(nil, "damage %d\n", i), 0o600))
			if i%2 > 0 {
				must.Do(t, os.Truncate(path, maxFile+1))
			}
			in(t, dir).end()
			time.Sleep(time.Second)
		}
		all := must.Get(filepath.Glob(path + ".refused-*"))(t)
		if len(all) != 3 {
			t.Fatalf("%d files stay, want 3: %q", len(all), all)
		}
		if first := must.Get(os.ReadFile(all[1]))(t); string(first) != "damage 6\n" {
			t.Errorf("the second one is %q, want the last but one", first)
		}
	})
}

// The version before wrote lines without a checksum.
func TestAFileOfTheVersionBeforeLoads(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		grant := func(id, name, requests string) string {
			return `{"slot":"` + name + `","grant":{"id":"` + id + `","domain":"edge","entries":[["tenant","` + name + `"]],"requests":` + requests +
				`,"until":"2000-01-01T09:00:00Z","given":"2000-01-01T00:00:00Z","reason":"a test"}}` + "\n"
		}
		before := grant("1", "a", "5") + grant("2", "b", "6") + `{"slot":"a"}` + "\n"
		must.Do(t, os.WriteFile(filepath.Join(dir, "grants"), []byte(before), 0o600))
		p := in(t, dir)
		p.wantLimit(t, "a", 2)
		p.wantLimit(t, "b", 6)
		p.end()
		if strings.Contains(p.log.String(), "level=ERROR") {
			t.Errorf("the log has an error\n%s", &p.log)
		}
		if got := must.Get(os.ReadFile(filepath.Join(dir, "grants.old")))(t); string(got) != before {
			t.Errorf("the copy of the file is %q", got)
		}
		if got := must.Get(os.ReadFile(filepath.Join(dir, "grants")))(t); bytes.Count(got, []byte(`,"sum":"`)) != 1 {
			t.Errorf("the new file is %q, want one line with a checksum", got)
		}
	})
}

// A file above the bound is not read, and gets another name. The file here has one byte more than
// the bound, and no block of the disk.
func TestAFileAboveTheBoundIsSetAside(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := in(t, dir)
		p.give(t, of("a", 5))
		p.end()
		path := filepath.Join(dir, "grants")
		must.Do(t, os.Truncate(path, maxFile+1))
		next := in(t, dir)
		next.wantLimit(t, "a", 2)
		if n := strings.Count(next.log.String(), "\n"); n != 1 || !strings.Contains(next.log.String(), "1073741825 bytes, must be at most 1073741824") {
			t.Errorf("got %d lines in the log, want one\n%s", n, &next.log)
		}
		if aside := must.Get(filepath.Glob(path + ".refused-*"))(t); len(aside) != 1 {
			t.Errorf("set aside: %v", aside)
		}
		next.give(t, of("b", 6))
		next.end()
		in(t, dir).wantLimit(t, "b", 6)
	})
}

// A line without an end, as of a sparse file, takes no memory.
func TestAFileOfZerosTakesNoMemory(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "grants")
	must.Do(t, os.WriteFile(path, nil, 0o600))
	must.Do(t, os.Truncate(path, 256<<20))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p := in(t, dir)
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
		t.Errorf("reading 256 MiB of zeros allocates %d bytes, want at most 16 MiB", grown)
	}
	p.give(t, of("a", 5))
	p.end()
	in(t, dir).wantLimit(t, "a", 5)
}

// A pipe in place of a file keeps nobody waiting.
func TestAPipeInPlaceOfTheNewFile(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, syscall.Mkfifo(filepath.Join(dir, "grants.new"), 0o600))
	p := in(t, dir)
	p.give(t, of("a", 5))
	p.end()
	in(t, dir).wantLimit(t, "a", 5)
}

// On a full disk a grant is in force and not kept, and is kept as soon as there is room.
func TestAFullDisk(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := in(t, dir)
		p.give(t, of("a", 5))
		full := true
		p.mu.Lock()
		p.journal.sync = func(f *os.File) error {
			if full {
				return syscall.ENOSPC
			}
			return f.Sync()
		}
		p.mu.Unlock()
		p.give(t, of("b", 6))
		p.wantLimit(t, "b", 6)
		if where, durable := p.Kept(); durable || !strings.Contains(where, "no space left") {
			t.Errorf("kept %s, %v", where, durable)
		}
		other := in(t, copyOf(t, dir))
		other.wantLimit(t, "a", 5)
		other.wantLimit(t, "b", 2)
		time.Sleep(10 * time.Second)
		if n := strings.Count(p.log.String(), "grants cannot be kept"); n != 1 {
			t.Errorf("the log says %d times that grants cannot be kept, want 1\n%s", n, &p.log)
		}
		p.mu.Lock()
		full = false
		p.mu.Unlock()
		time.Sleep(maxRetryWait)
		synctest.Wait()
		if _, durable := p.Kept(); !durable || !strings.Contains(p.log.String(), "grants are kept again") {
			t.Errorf("not kept again\n%s", &p.log)
		}
		next := in(t, copyOf(t, dir))
		next.wantLimit(t, "b", 6)
	})
}

// copyOf returns a directory with a copy of the journal, as a crash at this moment leaves it.
func copyOf(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "grants"))
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	if err := os.WriteFile(filepath.Join(to, "grants"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestAJournalDoesNotGrowForEver(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := in(t, dir)
		p.mu.Lock()
		p.journal.sync = func(*os.File) error { return nil } // for speed
		p.mu.Unlock()
		for i := range 3 * spareLines {
			p.give(t, of("a", uint32(i)))
		}
		info, err := os.Stat(filepath.Join(dir, "grants"))
		if err != nil || info.Size() > 2*spareLines*400 {
			t.Errorf("the journal has %d bytes, %v", info.Size(), err)
		}
		p.end()
		next := in(t, dir)
		next.wantLimit(t, "a", 3*spareLines-1)
	})
}

// grantForever is the child of the next test: a process that does nothing but give grants.
const grantForever = "WEIR_TEST_GRANT_FOREVER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(grantForever); dir != "" {
		os.Exit(child(dir))
	}
	os.Exit(m.Run())
}

// child gives tenant x one request more each time, and prints the number once the grant is given.
func child(dir string) int {
	s, err := memstore.New(memstore.Options{MaxKeys: 100})
	if err != nil {
		return 1
	}
	l, err := limiter.New(s, limiter.Options{Now: time.Now})
	if err != nil {
		return 1
	}
	set, _, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(rules)}}, descriptors.Options{})
	if err != nil {
		return 1
	}
	l.SetRules(set)
	k, err := Open(context.Background(), Options{Limiter: l, Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return 1
	}
	for n := uint32(10); ; n++ {
		if _, _, err := k.Grant(context.Background(), of("x", n)); err != nil {
			return 1
		}
		_, _ = os.Stdout.WriteString(strconv.Itoa(int(n)) + "\n")
	}
}

// A process is killed at any moment: each grant that was answered is known to the next one.
func TestAKilledProcessKeepsItsGrants(t *testing.T) {
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(3, 4))
	for range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), grantForever+"="+dir)
		var out lines
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		soon(t, "the child gives grants", func() bool { return strings.Count(out.String(), "\n") > 2 })
		<-time.After(time.Duration(r.Int64N(int64(50 * time.Millisecond)))) // any moment
		_ = cmd.Process.Kill()
		if err := cmd.Wait(); err == nil {
			t.Fatal("the child was not killed")
		}
		answered := strings.Split(strings.TrimSpace(out.String()[:strings.LastIndexByte(out.String(), '\n')]), "\n")
		last, err := strconv.Atoi(answered[len(answered)-1])
		if err != nil {
			t.Fatal(err)
		}
		p := in(t, dir)
		if got := p.limit(t, "x"); got < uint32(last) || got > uint32(last)+1 {
			t.Errorf("the last answered grant had %d requests, the next process knows %d\n%s", last, got, &p.log)
		}
		p.end()
	}
}

func TestADirectoryThatCannotBeUsedIsNoReasonNotToStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := in(t, filepath.Join(file, "below"))
	p.give(t, of("a", 5))
	p.wantLimit(t, "a", 5)
	if _, durable := p.Kept(); durable {
		t.Error("the grant is said to be kept")
	}
	if _, _, err := p.Grant(t.Context(), limiter.Grant{}); !errors.Is(err, limiter.ErrInvalidGrant) {
		t.Errorf("got %v", err)
	}
}
