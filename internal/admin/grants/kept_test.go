package grants

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A change that comes when the file is due to be written anew is in the file afterwards.
func TestAChangeAtARewriteIsKept(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		due := func(p *process) {
			p.mu.Lock()
			p.journal.lines = 2*len(p.slots) + spareLines
			p.mu.Unlock()
		}
		p := in(t, dir)
		revoked, _ := p.give(t, of("a", 5))
		due(p)
		p.give(t, of("b", 6))
		p.end()
		p = in(t, dir)
		p.wantLimit(t, "a", 5)
		p.wantLimit(t, "b", 6)
		due(p)
		if _, _, err := p.Revoke(t.Context(), revoked.ID, "me"); err != nil {
			t.Fatal(err)
		}
		p.end()
		p = in(t, dir)
		p.wantLimit(t, "a", 2)
		p.wantLimit(t, "b", 6)
	})
}

// Without its directory a file takes changes that nobody will ever read. The Keeper says so, and
// keeps all grants once the directory is back.
func TestGrantsOutliveADirectoryThatVanishes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := in(t, dir)
		p.give(t, of("a", 5))
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		p.give(t, of("b", 6))
		p.wantLimit(t, "b", 6)
		if where, durable := p.Kept(); durable {
			t.Errorf("kept %s, which is gone", where)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * sweepEvery)
		synctest.Wait()
		if where, durable := p.Kept(); !durable {
			t.Errorf("with the directory back, kept %s", where)
		}
		if err := os.Remove(filepath.Join(dir, "grants")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * sweepEvery)
		synctest.Wait()
		p.end()
		p = in(t, dir)
		p.wantLimit(t, "a", 5)
		p.wantLimit(t, "b", 6)
	})
}

// A file that cannot be read may have grants, so no other file takes its place.
func TestAJournalThatCannotBeReadIsSetAside(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(dir, "grants")
		if err := os.Symlink("elsewhere", path); err != nil { // links are not followed
			t.Fatal(err)
		}
		p := in(t, dir)
		p.give(t, of("a", 5))
		aside, err := filepath.Glob(path + ".refused-*")
		if err != nil || len(aside) != 1 {
			t.Fatalf("set aside: %v, %v\n%s", aside, err, &p.log)
		}
		if to, err := os.Readlink(aside[0]); err != nil || to != "elsewhere" {
			t.Errorf("set aside: %q, %v", to, err)
		}
	})
}

// On a full disk a revoke counts at once. The answer says that a restart may bring the grant back,
// and a restart does.
func TestARevokeOnAFullDiskSaysThatARestartMayBringTheGrantBack(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := in(t, dir)
		first, _ := p.give(t, of("a", 5))
		second, _ := p.give(t, of("b", 6))
		full := true
		p.mu.Lock()
		p.journal.sync = func(f *os.File) error {
			if full {
				return syscall.ENOSPC
			}
			return f.Sync()
		}
		p.mu.Unlock()
		g, notKept, err := p.Revoke(t.Context(), first.ID, "me")
		if err != nil || g.ID != first.ID || !strings.Contains(notKept, "no space left") {
			t.Errorf("got %v, %q, %v", g, notKept, err)
		}
		p.wantLimit(t, "a", 2)
		if n := strings.Count(p.log.String(), `revoked_by=me not_kept="the state directory cannot be written: no space left on device"`); n != 1 {
			t.Errorf("the log says it %d times, want 1\n%s", n, &p.log)
		}
		in(t, copyOf(t, dir)).wantLimit(t, "a", 5)

		p.mu.Lock()
		full = false
		p.mu.Unlock()
		time.Sleep(2 * sweepEvery)
		synctest.Wait()
		in(t, copyOf(t, dir)).wantLimit(t, "a", 2)
		if _, notKept, err := p.Revoke(t.Context(), second.ID, "me"); err != nil || notKept != "" {
			t.Errorf("with room: got %q, %v", notKept, err)
		}
		in(t, copyOf(t, dir)).wantLimit(t, "b", 2)
	})
}

// Damage of some length, such as a block that a crash lost, costs no line behind the damage: a
// revoke may stand there.
func TestALongDamagedLineCostsNoLineBehindIt(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := in(t, dir)
		revoked, _ := p.give(t, of("a", 5))
		path := filepath.Join(dir, "grants")
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		p.give(t, of("b", 6))
		if _, _, err := p.Revoke(t.Context(), revoked.ID, "me"); err != nil {
			t.Fatal(err)
		}
		p.end()
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		damaged := string(before) + strings.Repeat("\x00", 1<<20) + "\n" + string(whole[len(before):])
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		next := in(t, dir)
		next.wantLimit(t, "a", 2)
		next.wantLimit(t, "b", 6)
	})
}

// A grant of a later version takes the place of an earlier one, also for a version that cannot read
// the later one.
func TestAnUnreadableGrantReplacesTheOneInItsPlace(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := in(t, dir)
		g, _ := p.give(t, of("a", 5))
		at := p.byID[g.ID]
		p.end()
		path := filepath.Join(dir, "grants")
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := string(whole) + `{"slot":"` + at + `","grant":{"id":"y","gives":"something new"}}` + "\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		in(t, dir).wantLimit(t, "a", 2)
	})
}

// On a full disk a grant in the place of a kept one counts. The answer says that a restart brings
// the kept one back, and a restart does.
func TestAReplacingGrantOnAFullDiskSaysThatTheEarlierOneComesBack(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := in(t, dir)
		p.give(t, of("a", 5))
		p.mu.Lock()
		p.journal.sync = func(*os.File) error { return syscall.ENOSPC }
		p.mu.Unlock()
		p.give(t, of("a", 6))
		p.wantLimit(t, "a", 6)
		if where, durable := p.Kept(); durable || !strings.Contains(where, "a restart goes back to the saved grants") {
			t.Errorf("kept %s, %v", where, durable)
		}
		in(t, copyOf(t, dir)).wantLimit(t, "a", 5)
	})
}
