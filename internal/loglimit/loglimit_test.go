package loglimit

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/deptest"
)

func TestDeps(t *testing.T) { deptest.Check(t, deptest.Rules{Own: []string{}, Third: []string{}}) }

func TestOneLinePerIntervalIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limiter
		for i, step := range []struct {
			pause  time.Duration
			missed uint64
			ok     bool
		}{{0, 0, true}, {0, 0, false}, {time.Minute - 1, 0, false}, {1, 2, true}, {time.Hour, 0, true}} {
			time.Sleep(step.pause)
			if missed, ok := l.Due(time.Minute); missed != step.missed || ok != step.ok {
				t.Errorf("step %d: got %d, %t; want %d, %t", i, missed, ok, step.missed, step.ok)
			}
		}
	})
}

func TestOfManyAtOnceOneIsDue(t *testing.T) {
	var l Limiter
	var due atomic.Int64
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			for range 1000 {
				if _, ok := l.Due(time.Hour); ok {
					due.Add(1)
				}
			}
		})
	}
	asking.Wait()
	if got := due.Load(); got != 1 {
		t.Errorf("%d lines are due, want 1", got)
	}
	if missed := l.missed.Load(); missed != 7999 {
		t.Errorf("%d lines are counted as left out, want 7999", missed)
	}
}
