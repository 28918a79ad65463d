package loglimit

import (
	"bytes"
	"log/slog"
	"strings"
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

func TestSomeLinesAtOnceAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limiter
		for i, step := range []struct {
			pause   time.Duration
			calls   int
			missed  uint64 // of the first line
			allowed int
		}{{0, 10, 0, 3}, {time.Second, 5, 7, 1}, {2 * time.Second, 5, 4, 2}, {time.Hour, 5, 3, 3}} {
			time.Sleep(step.pause)
			allowed := 0
			for range step.calls {
				missed, ok := l.DueOf(3, time.Second)
				if ok && allowed == 0 && missed != step.missed {
					t.Errorf("step %d: %d lines were left out, want %d", i, missed, step.missed)
				}
				if ok {
					allowed++
				}
			}
			if allowed != step.allowed {
				t.Errorf("step %d: %d lines, want %d", i, allowed, step.allowed)
			}
		}
	})
}

func TestAHandlerPassesALineASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		log := slog.New(Handler(slog.NewTextHandler(&text, nil))).With(slog.String("server", "http"))
		for range 10 {
			log.Warn("a mistake of a client")
			log.WithGroup("more").Warn("another one")
		}
		time.Sleep(time.Second)
		log.Warn("a mistake of a client")
		if got := text.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "server=http not_logged=19") {
			t.Errorf("got %s, want two lines, and 19 left out", got)
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
