package grants

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// disk is a state directory that may be full. Each failure has another text, as the failures of a
// directory that somebody fills may have.
type disk struct {
	full  atomic.Bool
	tries atomic.Int64 // to write while full
	begun time.Time
	at    []time.Duration // of the tries, since begun; guarded by the mu of the Keeper
}

// under makes the files of a process lie on the disk from now on.
func (d *disk) under(p *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d.begun = time.Now()
	p.journal.sync = func(f *os.File) error {
		if !d.full.Load() {
			return f.Sync()
		}
		d.at = append(d.at, time.Since(d.begun))
		return fmt.Errorf("try %d: %w", d.tries.Add(1), syscall.ENOSPC)
	}
}

// While the disk is full, each wait for the next try is twice as long as the one before, and 30
// seconds at most. The log has one line about the begin and one about the end, also if the errors
// differ.
func TestTriesToWriteToAFullDiskWaitEverLonger(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p, d := in(t, dir), new(disk)
		d.under(p)
		for round := range 2 { // the second time begins with short waits again
			d.full.Store(true)
			p.mu.Lock()
			d.at, d.begun = nil, time.Now()
			p.mu.Unlock()
			p.give(t, of("a", uint32(5+round)))
			time.Sleep(3 * time.Minute)
			p.mu.Lock()
			got := fmt.Sprint(d.at)
			p.mu.Unlock()
			if want := "[0s 1s 3s 7s 15s 31s 1m1s 1m31s 2m1s 2m31s]"; got != want {
				t.Errorf("round %d: tries to write after %s, want %s", round, got, want)
			}
			d.full.Store(false)
			time.Sleep(maxRetryWait)
			synctest.Wait()
			if where, durable := p.Kept(); !durable {
				t.Errorf("round %d: %v after there is room: kept %s", round, maxRetryWait, where)
			}
		}
		for _, text := range []string{"grants cannot be kept", "grants are kept again"} {
			if n := strings.Count(p.log.String(), text); n != 2 {
				t.Errorf("the log of two full disks says %d times that %s, want 2\n%s", n, text, &p.log)
			}
		}
		in(t, copyOf(t, dir)).wantLimit(t, "a", 6)
	})
}

// An operator who makes room on the disk does not wait for the next try: the next grant is kept,
// with all that came before. Many grants on a disk that stays full cause one try a second at most.
func TestAGrantTriesAFullDiskAtOnce(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p, d := in(t, dir), new(disk)
		d.under(p)
		d.full.Store(true)
		p.give(t, of("a", 5))
		time.Sleep(100 * time.Second) // the next try of its own is at 2m1s
		before := d.tries.Load()
		for i := range 1000 {
			p.give(t, of("b", uint32(10+i)))
			time.Sleep(time.Millisecond)
		}
		if n := d.tries.Load() - before; n != 1 {
			t.Errorf("a thousand grants in a second tried %d times to write to the full disk, want 1", n)
		}
		p.wantLimit(t, "b", 1009)
		time.Sleep(time.Second)
		d.full.Store(false)
		given, _ := p.give(t, of("c", 7))
		if where, durable := p.Kept(); !durable {
			t.Errorf("a grant after there is room: kept %s", where)
		}
		next := in(t, copyOf(t, dir))
		for name, want := range map[string]uint32{"a": 5, "b": 1009, "c": 7} {
			next.wantLimit(t, name, want)
		}
		if _, notKept, err := p.Revoke(t.Context(), given.ID, "me"); err != nil || notKept != "" {
			t.Errorf("a revoke after there is room: %q, %v", notKept, err)
		}
	})
}

// A grant on a disk that has had no room for long still says why, in the words of the last try.
func TestTheReasonOfAFullDiskIsTheOneOfTheLastTry(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := in(t, dir)
		reason := errors.New("first reason")
		p.mu.Lock()
		p.journal.sync = func(*os.File) error { return reason }
		p.mu.Unlock()
		p.give(t, of("a", 5))
		p.mu.Lock()
		reason = errors.New("second reason")
		p.mu.Unlock()
		time.Sleep(maxRetryWait)
		synctest.Wait()
		if where, _ := p.Kept(); !strings.Contains(where, "second reason") {
			t.Errorf("kept %s", where)
		}
	})
}
