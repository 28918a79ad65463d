package redisstore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// misled has a store take the clock of Redis for one that is ahead by so much more.
func misled(s *Store, by time.Duration) {
	now := time.Now()
	s.main.clock.leads[0].ahead.Store(now.UnixMicro() - now.Sub(s.main.clock.started).Microseconds() + by.Microseconds() + 1)
}

// Around a boundary three processes charge one key, and their ideas of the time differ. The clock
// of Redis chooses the window, so each of the two windows admits exactly its limit.
func TestProcessesWithOtherClocksChargeTheSameWindow(t *testing.T) {
	const limit = 40
	o := Options{Prefix: fmt.Sprint(t.Name(), time.Now().UnixNano())}
	var all []*Store
	for range 3 {
		s := open(t, urlOf("redis", shared(t).Address()), o)
		ask(t, s, hit("other", perAge(algorithms.FixedWindow, 1000)))
		all = append(all, s)
	}
	boundary := time.Now().Add(3 * time.Second).Truncate(time.Second).UTC()
	spec := algorithms.CalendarSpec{
		Unit: algorithms.CalendarDay, Count: 1, At: boundary.Sub(boundary.Truncate(24 * time.Hour)),
	}
	c := store.Charge{
		Key: []byte("k"), Hits: 1,
		Limit: algorithms.Limit{Algorithm: algorithms.CalendarWindow, Requests: limit, Period: 24 * time.Hour, Extra: algorithms.Extra{Calendar: calendarOf(spec)}},
	}
	var before, after atomic.Int64
	var running sync.WaitGroup
	for i, by := range []time.Duration{-300 * time.Millisecond, 0, 300 * time.Millisecond} {
		s := all[i]
		running.Go(func() {
			for denied := false; !denied || time.Now().Before(boundary.Add(100*time.Millisecond)); {
				misled(s, by)
				admitted, d := ask(t, s, c)
				ends := boundary
				if d[0].ResetAfter > time.Hour {
					ends = boundary.Add(24 * time.Hour)
				}
				if admitted && ends == boundary {
					before.Add(1)
				} else if admitted {
					after.Add(1)
				}
				denied = !admitted && ends != boundary
			}
		})
	}
	running.Wait()
	if before.Load() != limit || after.Load() != limit {
		t.Errorf("%d hits passed before the boundary and %d after it, want %d each", before.Load(), after.Load(), limit)
	}
}

// Windows of another time are no windows for Redis: it tells its time, and gets the right ones.
func TestWindowsOfAnotherTimeAreSentAgain(t *testing.T) {
	for _, a := range algorithms.CalendarAlgorithms() {
		for _, by := range []time.Duration{-400 * 24 * time.Hour, 400 * 24 * time.Hour} {
			s := open(t, urlOf("redis", shared(t).Address()), Options{})
			ask(t, s, hit("other", perAge(algorithms.FixedWindow, 1)))
			misled(s, by)
			month := calendarOf(algorithms.CalendarSpec{Unit: algorithms.CalendarMonth, Count: 1})
			l := algorithms.Limit{Algorithm: a, Requests: 5, Period: 31 * 24 * time.Hour, Extra: algorithms.Extra{Calendar: month}}
			for want := range uint32(5) {
				d := wants(t, true, s, hit("k", l))[0]
				start, end := l.WindowOf(algorithms.Instant(time.Now().UnixNano()))
				if a == algorithms.CalendarCounter {
					_, end = l.WindowOf(end)
				}
				if longest := end.Sub(start); d.Remaining != 4-want || d.ResetAfter > longest {
					t.Errorf("%d, off by %v: got %+v, want %d left and a reset within %v", a, by, d, 4-want, longest)
				}
			}
			wants(t, false, s, hit("k", l))
		}
	}
}

// A request without calendars has the same arguments as ever.
func TestOnlyARequestWithCalendarsSendsWindows(t *testing.T) {
	s, _ := given(t, Options{})
	month := calendarOf(algorithms.CalendarSpec{Unit: algorithms.CalendarMonth, Count: 1})
	first := calendarOf(algorithms.CalendarSpec{Unit: algorithms.CalendarDay, Count: 1, FirstHit: true})
	of := func(a algorithms.Algorithm, c *algorithms.Calendar) store.Charge {
		return hit("k", algorithms.Limit{Algorithm: a, Requests: 5, Period: 24 * time.Hour, Extra: algorithms.Extra{Calendar: c}})
	}
	for name, test := range map[string]struct {
		charges []store.Charge
		windows int
	}{
		"a fixed window":         {[]store.Charge{of(algorithms.FixedWindow, nil)}, 0},
		"a window of first hits": {[]store.Charge{of(algorithms.CalendarWindow, first)}, 0},
		"two charges of a month": {[]store.Charge{of(algorithms.CalendarWindow, month), of(algorithms.CalendarCounter, month)}, 1},
	} {
		b := newBatch(s.main)
		b.add(&s.transaction(take, location{}, s.here(), test.charges).call)
		all := s.main.arguments(b, time.Now())
		sent := 0
		if len(all) > 1 {
			sent = len(all[1])
		}
		if want := 28 * test.windows; sent != want {
			t.Errorf("%s: %d bytes of windows, want %d", name, sent, want)
		}
	}
}
