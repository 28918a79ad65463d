package grants

import (
	"os"
	"path/filepath"
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
		p := start(t, func(o *Options) { o.Dir = dir })
		revoked, _ := p.give(t, of("a", 5))
		due(p)
		p.give(t, of("b", 6))
		p.end()
		p = start(t, func(o *Options) { o.Dir = dir })
		p.wantLimit(t, "a", 5)
		p.wantLimit(t, "b", 6)
		due(p)
		if _, err := p.Revoke(t.Context(), revoked.ID, "me"); err != nil {
			t.Fatal(err)
		}
		p.end()
		p = start(t, func(o *Options) { o.Dir = dir })
		p.wantLimit(t, "a", 2)
		p.wantLimit(t, "b", 6)
	})
}

// Without its directory a file takes changes that nobody will ever read. The Keeper says so, and keeps all grants once the directory is back.
func TestGrantsOutliveADirectoryThatVanishes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := start(t, func(o *Options) { o.Dir = dir })
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
		p = start(t, func(o *Options) { o.Dir = dir })
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
		p := start(t, func(o *Options) { o.Dir = dir })
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
