package grants

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// in starts a process whose grants are in a directory.
func in(t *testing.T, dir string) *process {
	t.Helper()
	return start(t, func(o *Options) { o.Dir = dir })
}

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
		other := start(t, func(o *Options) { o.Dir = copyOf(t, dir) })
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
		next := start(t, func(o *Options) { o.Dir = copyOf(t, dir) })
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
