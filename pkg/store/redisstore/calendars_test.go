package redisstore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	near "github.com/weirproxy/weir/pkg/store/shared"
)

// misled has a store take the clock of the Redis of a key for one that is ahead by so much more.
func misled(s *Store, c *store.Charge, by time.Duration) {
	now := time.Now()
	lead := now.UnixMicro() - now.Sub(s.main.clock.started).Microseconds() + by.Microseconds() + 1
	s.main.clock.leads[s.locate(c, 0).slot].ahead.Store(lead)
	s.main.clock.latest.Store(lead)
}

// Around a boundary three processes charge one key, and their ideas of the time differ. The clock
// of Redis chooses the window, so each of the two windows admits exactly its limit, and at most
// that with leases. A sliding count has hits in the window before, and the rest after it.
func TestProcessesWithOtherClocksChargeTheSameWindow(t *testing.T) {
	for name, urls := range map[string]func() []string{
		"single":  func() []string { return urlOf("redis", shared(t).Address()) },
		"cluster": func() []string { return urlOf("redis-cluster", sharedCluster(t).Addresses()...) },
	} {
		t.Run(name, func(t *testing.T) {
			const limit, slid = 120, 75
			o := Options{Prefix: fmt.Sprint(t.Name(), time.Now().UnixNano())}
			var remote []*Store
			var leased []*near.Store
			for range 3 {
				s := open(t, urls(), o)
				ask(t, s, hit("other", perAge(algorithms.FixedWindow, 1000)))
				remote, leased = append(remote, s), append(leased, sharing(t, s))
			}
			boundary := time.Now().Add(3 * time.Second).Truncate(time.Second).UTC()
			calendar := calendarOf(algorithms.CalendarSpec{
				Unit: algorithms.CalendarDay, Count: 1, At: boundary.Sub(boundary.Truncate(24 * time.Hour)),
			})
			first := calendarOf(algorithms.CalendarSpec{Unit: algorithms.CalendarDay, Count: 1, FirstHit: true})
			years := time.Duration(boundary.UnixNano() / 8) // ends at the boundary
			var running sync.WaitGroup
			for _, l := range []algorithms.Limit{
				{Algorithm: algorithms.FixedWindow, Period: years},
				{Algorithm: algorithms.SlidingWindowCounter, Period: years},
				{Algorithm: algorithms.CalendarWindow, Period: 24 * time.Hour, Extra: algorithms.Extra{Calendar: calendar}},
				{Algorithm: algorithms.CalendarCounter, Period: 24 * time.Hour, Extra: algorithms.Extra{Calendar: calendar}},
				{Algorithm: algorithms.CalendarWindow, Period: 4 * time.Second, Extra: algorithms.Extra{Calendar: first}},
			} {
				l.Requests = limit
				for _, exact := range []bool{true, false} {
					c := hit(fmt.Sprint(l.Algorithm, l.Period, exact), l)
					c.Exact = exact
					r := &around{charge: c, boundary: boundary, first: limit, second: limit}
					if l.Algorithm == algorithms.SlidingWindowCounter || l.Algorithm == algorithms.CalendarCounter {
						r.first, r.second, r.counts = slid, limit-slid, l.Period
					}
					if l.Calendar == first {
						_, d := ask(t, remote[0], c)
						r.boundary = time.Now().Add(d[0].ResetAfter).Round(time.Second)
						r.before.Add(1)
					}
					running.Go(func() {
						r.run(t, remote, leased)
						before, after := r.before.Load(), r.after.Load()
						if before > r.first || after > r.second || after == 0 || exact && (before < r.first || after < r.second) {
							t.Errorf("%v of %v, exact %v: %d hits passed before the boundary and %d after it, want %d and %d",
								l.Algorithm, l.Period, exact, before, after, r.first, r.second)
						}
					})
				}
			}
			running.Wait()
			if stats := leased[0].Stats(); stats.Leases.Decided == 0 {
				t.Errorf("no hit was decided by a lease: %+v", stats)
			}
		})
	}
}

// around is a key around a boundary, and the hits that passed.
type around struct {
	charge        store.Charge
	boundary      time.Time
	first, second int64         // hits that may pass before and after it
	counts        time.Duration // how long hits count after their window; 0: not at all
	before, after atomic.Int64
	asked         atomic.Int64 // before the boundary
}

// run asks through three processes until each of them is denied behind the boundary.
func (r *around) run(t *testing.T, remote []*Store, leased []*near.Store) {
	t.Helper()
	var running sync.WaitGroup
	for i, by := range []time.Duration{-300 * time.Millisecond, 0, 300 * time.Millisecond} {
		var s store.Store = remote[i]
		if !r.charge.Exact {
			s = leased[i]
		}
		running.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for denied := false; !denied || time.Now().Before(r.boundary.Add(100*time.Millisecond)); <-tick.C {
				if r.counts > 0 && time.Now().Before(r.boundary) && r.asked.Add(1) > r.first {
					continue
				}
				misled(remote[i], &r.charge, by)
				admitted, d := ask(t, s, r.charge)
				behind := time.Now().Add(d[0].ResetAfter).After(r.boundary.Add(r.counts + 500*time.Millisecond))
				switch {
				case admitted && behind:
					r.after.Add(1)
				case admitted:
					r.before.Add(1)
				}
				denied = !admitted && behind
			}
		})
	}
	running.Wait()
}

// Windows of another time are no windows for Redis: it tells its time, and gets the right ones.
func TestWindowsOfAnotherTimeAreSentAgain(t *testing.T) {
	for _, a := range algorithms.CalendarAlgorithms() {
		for _, by := range []time.Duration{-400 * 24 * time.Hour, 400 * 24 * time.Hour} {
			s := open(t, urlOf("redis", shared(t).Address()), Options{})
			ask(t, s, hit("other", perAge(algorithms.FixedWindow, 1)))
			month := calendarOf(algorithms.CalendarSpec{Unit: algorithms.CalendarMonth, Count: 1})
			l := algorithms.Limit{Algorithm: a, Requests: 5, Period: 31 * 24 * time.Hour, Extra: algorithms.Extra{Calendar: month}}
			k := hit("k", l)
			misled(s, &k, by)
			for want := range uint64(5) {
				d := wants(t, true, s, k)[0]
				start, end := l.WindowOf(algorithms.Instant(time.Now().UnixNano()))
				if a == algorithms.CalendarCounter {
					_, end = l.WindowOf(end)
				}
				if longest := end.Sub(start); d.Remaining != 4-want || d.ResetAfter > longest {
					t.Errorf("%d, off by %v: got %+v, want %d left and a reset within %v", a, by, d, 4-want, longest)
				}
			}
			wants(t, false, s, k)
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
