package memstore

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// A day passes between two transactions, though no time does, and the sweep at real time forgets by
// virtual time.
func TestVirtualTimePassesWithoutAClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now atomic.Int64
		now.Store(int64(time.Hour))
		s, err := New(Options{Virtual: func() algorithms.Instant { return algorithms.Instant(now.Load()) }, SweepInterval: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1, Period: time.Minute}
		if d := take(t, s, "key", limit, 1); !d.Allowed {
			t.Fatalf("the first hit: %+v", d)
		}
		time.Sleep(time.Hour) // of real time, which does not count
		if d := take(t, s, "key", limit, 1); d.Allowed || d.RetryAfter != time.Minute {
			t.Errorf("at the same instant: %+v, want denied for a minute", d)
		}
		now.Add(-int64(time.Second))
		if d := take(t, s, "key", limit, 1); d.Allowed || d.RetryAfter != time.Minute {
			t.Errorf("an earlier instant: %+v, want denied for a minute", d)
		}
		now.Add(int64(24 * time.Hour))
		if d := take(t, s, "key", limit, 1); !d.Allowed {
			t.Errorf("a day later: %+v", d)
		}
		now.Add(int64(time.Hour))
		time.Sleep(2 * time.Second)
		if st := s.Stats(); st.Keys != 0 || st.ClockSteps != 0 {
			t.Errorf("after the sweep: %d keys and %d steps of the clock, want 0", st.Keys, st.ClockSteps)
		}
	})
}

func TestSweepFreesWhatIsIdleByVirtualTime(t *testing.T) {
	now := algorithms.Instant(time.Hour)
	s, err := New(Options{Virtual: func() algorithms.Instant { return now }, SweepInterval: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1, Period: time.Minute}
	take(t, s, "idle", limit, 1)
	now += algorithms.Instant(30 * time.Second)
	s.Sweep()
	if keys := s.Stats().Keys; keys != 1 {
		t.Errorf("in the window: %d keys, want 1", keys)
	}
	now += algorithms.Instant(30 * time.Second)
	take(t, s, "fresh", limit, 1)
	s.Sweep()
	if st := s.Stats(); st.Keys != 1 || st.Swept != 1 || st.Evicted != 0 {
		t.Errorf("after the window: %+v, want 1 key, and 1 swept", st)
	}
}

func TestAStoreHasOneClock(t *testing.T) {
	zero := func() algorithms.Instant { return 0 }
	if _, err := New(Options{Now: zero, Virtual: zero}); err == nil || !strings.Contains(err.Error(), "virtual") {
		t.Errorf("got %v, want an error about both", err)
	}
}
