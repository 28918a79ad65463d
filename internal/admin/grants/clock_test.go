package grants

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/limiter"
)

// clock is a wall clock that steps.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// step makes the clock go so far ahead of the right time, and lets the process see that.
func (c *clock) step(ahead time.Duration) {
	c.ahead.Store(int64(ahead))
	time.Sleep(2 * sweepEvery)
	synctest.Wait()
}

// at starts a process with a clock.
func (c *clock) at(t *testing.T, dir string) *process {
	t.Helper()
	return startAt(t, func(o *Options) { o.Dir = dir }, c.now)
}

const years = 10 * 365 * 24 * time.Hour

// As a window, a grant ends by the new time after a step of the wall clock. After the step back the
// grant is in force again, in the process as after a restart.
func TestAGrantFollowsStepsOfTheWallClock(t *testing.T) {
	for _, kept := range []bool{false, true} {
		t.Run(fmt.Sprintf("kept=%t", kept), func(t *testing.T) {
			dir := ""
			if kept {
				dir = t.TempDir()
			}
			synctest.Test(t, func(t *testing.T) {
				var c clock
				p := c.at(t, dir)
				block, _ := p.give(t, of("a", 0))
				restart := func() {
					if kept {
						p.end()
						p = c.at(t, dir)
					}
				}
				for range 2 {
					c.step(years)
					p.wantLimit(t, "a", 2)
					restart()
					p.wantLimit(t, "a", 2)
					if _, _, err := p.Revoke(t.Context(), block.ID, "me"); !errors.Is(err, limiter.ErrUnknownGrant) {
						t.Errorf("revoking a grant that has ended: got %v", err)
					}
					c.step(0)
					p.wantLimit(t, "a", 0)
					restart()
					p.wantLimit(t, "a", 0)
				}
				if kept {
					return
				}
				for _, text := range []string{
					`level=WARN msg="the wall clock has stepped: grants end by the new time" step=87600h0m0s ended=1 in_force_again=0`,
					"step=-87600h0m0s ended=0 in_force_again=1", `msg="a grant is in force again" grant=` + block.ID,
				} {
					if !strings.Contains(p.log.String(), text) {
						t.Errorf("the log has no %s\n%s", text, &p.log)
					}
				}
			})
		})
	}
}

// The end of a grant is a line of the file. A grant that has ended stays there for the grace time,
// also if a start or a step of the clock ends the grant.
func TestAnEndByTheClockDeletesNothingBeforeTheGraceTime(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var c clock
		p := c.at(t, dir)
		p.give(t, of("a", 5))
		p.end()
		c.ahead.Store(int64(years))
		p = c.at(t, dir)
		p.wantLimit(t, "a", 2)
		text := string(must.Get(os.ReadFile(filepath.Join(dir, "grants")))(t))
		if n := strings.Count(text, `"ended":"2009-12-2`); n != 1 {
			t.Errorf("the file names %d ends, want 1\n%s", n, text)
		}
		time.Sleep(graceTime - time.Minute)
		p.end()
		c.ahead.Store(0)
		of := func(ahead time.Duration) uint32 { // on another machine with a copy of the directory
			other := clock{}
			other.ahead.Store(int64(ahead))
			p := other.at(t, copyOf(t, dir))
			defer p.end()
			return p.limit(t, "a")
		}
		if got := of(-graceTime); got != 5 {
			t.Errorf("with the right time: %d requests, want 5", got)
		}
		c.ahead.Store(int64(years))
		p = c.at(t, dir)
		time.Sleep(2 * time.Minute)
		p.end()
		if got := of(-graceTime); got != 2 {
			t.Errorf("after the grace time: %d requests, want 2", got)
		}
	})
}

// Grants that have ended make room for new ones, the first one to end first.
func TestAGrantThatHasEndedMakesRoom(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var c clock
		p := startAt(t, func(o *Options) { o.Dir, o.Max = dir, 2 }, c.now)
		for i, name := range []string{"a", "b"} {
			g := of(name, 5)
			g.Until = time.Now().Add(time.Duration(i+1) * time.Minute)
			p.give(t, g)
		}
		time.Sleep(3 * time.Minute)
		p.give(t, of("c", 7))
		p.end()
		c.ahead.Store(int64(-3 * time.Minute))
		p = c.at(t, dir)
		p.wantLimit(t, "a", 2)
		p.wantLimit(t, "b", 5)
		p.wantLimit(t, "c", 7)
	})
}
