package redisstore

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// counted counts every fixed window of whole seconds under its key, behind a prefix, as
// envoyproxy/ratelimit does. Redis ends a key by its own clock, and the tests' clock stands still.
// So the jitter keeps each key for longer than a test can take.
func counted(prefix string) Counters {
	return Counters{Jitter: MaxJitter, Name: func(dst, key []byte) ([]byte, bool) {
		return append(append(append(dst, prefix...), key...), '_'), true
	}}
}

// fresh returns a new prefix.
func fresh(tb testing.TB) string {
	tb.Helper()
	return fmt.Sprintf("%s %d_", tb.Name(), time.Now().UnixNano())
}

// All but the case that limits of two periods count apart, which the names do not tell.
func TestCountersKeepTheContract(t *testing.T) {
	const but = "algorithm_and_period_make_states_of_their_own"
	o := Options{Counters: counted("")}
	t.Run("single", func(t *testing.T) {
		contract(t, urlOf("redis", shared(t).Address()), o, 0, append(carryCases(), but)...)
	})
	t.Run("cluster", func(t *testing.T) {
		contractOf(t, storetest.Cases(), urlOf("redis-cluster", sharedCluster(t).Addresses()...), o, 0, but)
	})
}

// countedWorlds is counted for random worlds. Keys with several calendars have no counters: their
// names do not tell the calendars apart.
func countedWorlds(prefix string) Counters {
	all := counted(prefix)
	return Counters{Jitter: all.Jitter, Name: func(dst, key []byte) ([]byte, bool) {
		if bytes.HasSuffix(key, []byte(changing)) {
			return dst, false
		}
		return all.Name(dst, key)
	}}
}

func TestRandomTransactionsOfCountersAreDecidedAsByTheModel(t *testing.T) {
	alike := func(*testing.T, *Store, []recorded) error { return nil }
	o := Options{Counters: countedWorlds(fresh(t))}
	differ(t, urlOf("redis", shared(t).Address()), o, 0, race.Scale(100), 250, alike)
	o.Counters = countedWorlds(fresh(t))
	differ(t, urlOf("redis", shared(t).Address()), o, time.Hour, race.Scale(50), 250, alike)
	o.Counters = countedWorlds(fresh(t))
	differ(t, urlOf("redis-cluster", sharedCluster(t).Addresses()...), o, 0, race.Scale(20), 250, alike)
}

// original charges a key as envoyproxy/ratelimit does with a jitter of 300 s, and returns the count
// after the hits.
func original(t *testing.T, s *Store, name string, hits int64, seconds int) int64 {
	t.Helper()
	n, err := command(t, s, "INCRBY", name, strconv.FormatInt(hits, 10)).AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	if err := command(t, s, "EXPIRE", name, strconv.Itoa(seconds+300)).Error(); err != nil {
		t.Fatal(err)
	}
	return n
}

// Each of the two goes on from the count of the other.
func TestCountersAreContinuedByTheOriginalAndTheOtherWayRound(t *testing.T) {
	for name, urls := range map[string][]string{
		"single":  urlOf("redis", shared(t).Address()),
		"cluster": urlOf("redis-cluster", sharedCluster(t).Addresses()...),
	} {
		t.Run(name, func(t *testing.T) {
			for seconds, start := range map[int]int64{ // of the window of 2026-11-21 10:00:01
				1: 1_795_255_201, 60: 1_795_255_200, 3600: 1_795_255_200, 86_400: 1_795_219_200, 7 * 86_400: 1795046400,
				30 * 86_400: 1793664000, 365 * 86_400: 1766016000, calendarMonth: 1793491200,
			} {
				prefix := fresh(t)
				clock := newClock()
				clock.sleep(time.Second)
				s := open(t, urls, Options{Counters: counted(prefix)})
				s.given = clock.now
				c := hit("edge_path_/search", algorithms.Limit{
					Algorithm: algorithms.FixedWindow, Requests: 10, Period: time.Duration(seconds) * time.Second,
				})
				if seconds == calendarMonth {
					seconds, c.Limit = 30*86_400, ofMonth(10)
				}
				c.CountRejected = true
				key := prefix + "edge_path_/search_" + strconv.FormatInt(start, 10)

				wants(t, true, s, c)
				if got := original(t, s, key, 3, seconds); got != 4 {
					t.Fatalf("%d s: the original's first 3 hits make %d; want 4", seconds, got)
				}
				c.Hits = 5
				if d := wants(t, true, s, c)[0]; d.Remaining != 1 {
					t.Errorf("%d s: %d remain after 1, 3 and 5 of 10; want 1", seconds, d.Remaining)
				}
				if got := original(t, s, key, 1, seconds); got != 10 {
					t.Errorf("%d s: the original counts %d; want 10", seconds, got)
				}
				c.Hits = 2
				if d := wants(t, false, s, c)[0]; d.Remaining != 0 || d.RetryAfter != d.ResetAfter ||
					d.ResetAfter != time.Duration(start+int64(seconds))*time.Second-time.Duration(clock.now()) {
					t.Errorf("%d s: denied with %+v", seconds, d)
				}
				if raw, _ := command(t, s, "GET", key).ToString(); raw != "12" { // the original counts denied hits, too
					t.Errorf("%d s: the key holds %q; want 12", seconds, raw)
				}
				c.Hits = -4
				wants(t, true, s, c)
				if got := original(t, s, key, 1, seconds); got != 9 {
					t.Errorf("%d s: the original counts %d after 4 were given back; want 9", seconds, got)
				}
				clock.sleep(time.Duration(seconds) * time.Second)
				c.Hits = 1
				if d := wants(t, true, s, c)[0]; d.Remaining != 9 {
					t.Errorf("%d s: %d remain in the next window; want 9", seconds, d.Remaining)
				}
			}
		})
	}
}

// calendarMonth stands for the seconds of November.
const calendarMonth = -11

// ofMonth returns a limit of a month of the calendar in UTC, as USE_CALENDAR_MONTH_RATE_LIMIT has
// it in envoyproxy/ratelimit.
func ofMonth(requests uint32) algorithms.Limit {
	month := calendarOf(algorithms.CalendarSpec{Unit: algorithms.CalendarMonth, Count: 1})
	return algorithms.Limit{
		Algorithm: algorithms.CalendarWindow, Requests: requests, Period: 30 * 24 * time.Hour, Extra: algorithms.Extra{Calendar: month},
	}
}

// The key of a month of the calendar names the second of the first of the month in UTC. The key
// lives until the end of the month, which is the reset, too. The seconds are as the original's
// functions of time have them for these instants.
func TestCountersOfMonthsAreAsThoseOfTheOriginal(t *testing.T) {
	for at, test := range map[string]struct{ start, rest int64 }{
		"2024-01-15T12:30:00Z":      {1704067200, 1423800},
		"2024-02-28T00:00:00Z":      {1706745600, 2 * 86_400}, // of a leap year
		"2026-02-28T23:59:59Z":      {1769904000, 1},
		"2026-02-28T23:59:59.999Z":  {1769904000, 1},
		"2026-12-31T00:00:00Z":      {1796083200, 86_400},
		"2026-12-01T00:00:00Z":      {1796083200, 31 * 86_400},
		"2024-02-01T05:00:00+09:00": {1704067200, 4 * 3600},
	} {
		prefix := fresh(t)
		clock := newClock()
		clock.at.Store(must.Get(time.Parse(time.RFC3339, at))(t).UnixNano())
		o := Options{Counters: counted(prefix)}
		o.Counters.Jitter = 0
		s := open(t, urlOf("redis", shared(t).Address()), o)
		clock.drives(s)
		c := hit("k", ofMonth(10))
		d := wants(t, true, s, c)[0]
		if got := (d.ResetAfter + time.Second - 1) / time.Second; int64(got) != test.rest {
			t.Errorf("%s: the reset is after %d s, want %d", at, got, test.rest)
		}
		key := prefix + "k_" + strconv.FormatInt(test.start, 10)
		left, err := command(t, s, "PTTL", key).AsInt64()
		if err != nil || left > test.rest*1000 || left <= test.rest*1000-60_000 && test.rest > 60 {
			t.Errorf("%s: the key %q lives for %d ms, %v; want %d s", at, key, left, err, test.rest)
		}
	}
}

// A holder gives back in the month of its begin, and not in the next one. The windows of 30 days
// since 1970 begin elsewhere.
func TestHoldersGiveBackInTheMonthOfTheirBegin(t *testing.T) {
	for name, test := range map[string]struct {
		begin, end string
		remaining  uint64
	}{
		"the same month": {"2026-11-01T00:00:00Z", "2026-11-30T23:59:59Z", 7},
		"the next month": {"2026-11-30T23:59:59Z", "2026-12-01T00:00:00Z", 10},
	} {
		for _, several := range []bool{false, true} {
			s, clock := given(t, Options{Counters: counted(fresh(t))})
			clock.at.Store(must.Get(time.Parse(time.RFC3339, test.begin))(t).UnixNano())
			first, last := []store.Charge{begin("k", ofMonth(10), "r", 8)}, []store.Charge{end("k", ofMonth(10), "r", 3)}
			if several { // holds.lua in place of lone.lua
				first, last = append(first, hit("other", ofMonth(10))), append(last, hit("other", ofMonth(10)))
			}
			first[0].Hold.AtMost, last[0].Hold.AtMost = 90*24*time.Hour, 90*24*time.Hour
			wants(t, true, s, first...)
			clock.at.Store(must.Get(time.Parse(time.RFC3339, test.end))(t).UnixNano())
			d := wants(t, true, s, last...)[0]
			if kept := remains(t, s, last[0]); d.Remaining != test.remaining || uint64(kept) != test.remaining {
				t.Errorf("%s, several %v: %d remain, and %d in Redis; want %d", name, several, d.Remaining, kept, test.remaining)
			}
		}
	}
}

// A key lives for a period and the jitter, from its last hit on, and never without an end.
func TestCountersLiveAsLongAsThoseOfTheOriginal(t *testing.T) {
	prefix := fresh(t)
	o := Options{Counters: counted(prefix)}
	o.Counters.Jitter = 300 * time.Second
	s, _ := given(t, o)
	c := hit("k", perAge(algorithms.FixedWindow, 1000))
	c.Limit.Period = time.Minute
	lives := make(map[int64]bool)
	least := func(hit time.Time) int64 { return 59 - int64(time.Since(hit)/time.Second) } // of the seconds that are left
	for range 50 {
		begun := time.Now()
		wants(t, true, s, c)
		left, err := command(t, s, "TTL", s.name(&c)).AsInt64()
		if err != nil || left < least(begun) || left > 60+300 {
			t.Fatalf("the key lives for %d s, %v; want 60 to 360", left, err)
		}
		lives[left] = true
	}
	if len(lives) < 10 {
		t.Errorf("50 lives of %d lengths; want them spread", len(lives))
	}
	if err := command(t, s, "PERSIST", s.name(&c)).Error(); err != nil { // the original has ended between its two commands
		t.Fatal(err)
	}
	begun := time.Now()
	wants(t, true, s, c)
	if left, _ := command(t, s, "TTL", s.name(&c)).AsInt64(); left < least(begun) {
		t.Errorf("TTL is %d after a hit on a key without an end", left)
	}
}

func TestTheJitterOfCountersHasABound(t *testing.T) {
	o := Options{Counters: counted(fresh(t))}
	o.Counters.Jitter = MaxJitter
	s, _ := given(t, o)
	c := hit("k", perAge(algorithms.FixedWindow, 10))
	c.Limit.Period = 365 * 24 * time.Hour
	wants(t, true, s, c)
	if left, err := command(t, s, "TTL", s.name(&c)).AsInt64(); err != nil || left < 365*86400-60 || left > 365*86400+math.MaxInt32 {
		t.Errorf("the key lives for %d s, %v", left, err)
	}
	for _, jitter := range []time.Duration{-1, MaxJitter + 1} {
		o.Counters.Jitter = jitter
		if s, err := New(o); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("jitter of counters: %v: must be 0s to", jitter)) {
			t.Errorf("%v: %v, %v", jitter, s, err)
		}
	}
}

// Limits with one name share a count: limits of two units at the start of both windows, and other
// descriptors.
func TestCountersOfOneNameAreOne(t *testing.T) {
	s, clock := given(t, Options{Counters: counted(fresh(t))})
	second, minute := hit("k", perAge(algorithms.FixedWindow, 5)), hit("k", perAge(algorithms.FixedWindow, 8))
	second.Limit.Period, minute.Limit.Period = time.Second, time.Minute
	minute.Rule = 1
	got := wants(t, true, s, second, minute, second)
	want := []algorithms.Decision{
		{Allowed: true, Remaining: 4, ResetAfter: time.Second},
		{Allowed: true, Remaining: 6, ResetAfter: time.Minute},
		{Allowed: true, Remaining: 2, ResetAfter: time.Second},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	minute.Hits, minute.CountRejected = 6, true
	got = wants(t, false, s, second, minute) // 3 before, 4 with the first, which does not count as the second is denied
	want = []algorithms.Decision{
		{Allowed: true, Remaining: 2, ResetAfter: time.Second},
		{RetryAfter: time.Minute, ResetAfter: time.Minute},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	clock.sleep(time.Second)
	if got := remains(t, s, second); got != 5 {
		t.Errorf("%d of 5 remain in the second after; want 5", got)
	}
	if got := remains(t, s, minute); got != 0 {
		t.Errorf("%d remain in the same minute; want 0", got)
	}
}

// The name holds the window of the program's clock. Redis's clock only says how far in that window
// a request is.
func TestCountersStayInTheirWindowWhenClocksDiffer(t *testing.T) {
	s, clock := given(t, Options{Counters: counted(fresh(t))})
	c := hit("k", perAge(algorithms.FixedWindow, 1))
	c.Limit.Period = time.Minute
	for _, test := range []struct {
		ahead time.Duration // of the program's clock, which shows the start of a minute
		reset time.Duration
	}{
		{5 * time.Second, time.Minute}, {-5 * time.Second, time.Minute - 5*time.Second}, {-2 * time.Minute, Granularity}, {0, time.Minute},
	} {
		clock.sleep(time.Hour)
		window := clock.now()
		for n, allowed := range []bool{true, false} {
			c := callOf(take, c)
			c.at = window
			clock.at.Store(int64(window) - int64(test.ahead))
			run(t, s, c)
			if d := c.decisions[0]; d.Allowed != allowed || d.ResetAfter != test.reset {
				t.Errorf("hit %d with a clock that is %v ahead: %+v; want allowed %v, reset %v", n, test.ahead, d, allowed, test.reset)
			}
		}
		clock.at.Store(int64(window))
	}
}

// Also when Redis's clock is in another window.
func TestReservationsOfCountersAreGivenBackInTheirWindow(t *testing.T) {
	s, clock := given(t, Options{Counters: counted(fresh(t))})
	c := hit("k", perAge(algorithms.FixedWindow, 10))
	c.Limit.Period, c.Hits = time.Minute, 5
	reserved := callOf(reserve, c)
	reserved.at = clock.now()
	clock.sleep(-2 * time.Minute)
	run(t, s, reserved)
	clock.sleep(2 * time.Minute)
	if got := remains(t, s, c); got != 5 {
		t.Errorf("%d of 10 remain after a reservation of 5", got)
	}
	s.giveBack([]*transaction{reserved})
	told(t, s)
	if got := remains(t, s, c); got != 10 {
		t.Errorf("%d of 10 remain after the reservation was given back", got)
	}
}

func TestCountersThatAreNoneAreErrorsAndStay(t *testing.T) {
	s, _ := given(t, Options{Counters: counted(fresh(t))})
	for n, value := range []string{"x", "", "-1", "1.5", "12 ", strings.Repeat("9", 16), "\x00\x01", strconv.FormatUint(math.MaxUint64, 10)} {
		c, other := hit(fmt.Sprint("k", n), perAge(algorithms.FixedWindow, 10)), hit(fmt.Sprint("other", n), perAge(algorithms.FixedWindow, 10))
		if err := command(t, s, "SET", s.name(&c), value).Error(); err != nil {
			t.Fatal(err)
		}
		calls := []*transaction{callOf(take, other), callOf(take, c), callOf(take, other)}
		b := newBatch(s.main)
		for _, c := range calls {
			c.at = s.here()
			b.add(&c.call)
		}
		s.main.execute(&flight{node: s.main.queue.node(0)}, []*batch{b}, false)
		if calls[0].err != nil || calls[1].err == nil || calls[2].err != nil {
			t.Errorf("%q: %v, %v, %v; want an error of the second", value, calls[0].err, calls[1].err, calls[2].err)
		}
		if got, _ := command(t, s, "GET", s.name(&c)).ToString(); got != value {
			t.Errorf("%q is %q now", value, got)
		}
		if n, err := s.Reset(t.Context(), []store.Charge{c}); n != 1 || err != nil {
			t.Errorf("Reset: %d, %v", n, err)
		}
		wants(t, true, s, c)
	}
	zero := hit("zero", perAge(algorithms.FixedWindow, 1)) // as the original leaves it when all is given back
	if err := command(t, s, "SET", s.name(&zero), "0").Error(); err != nil {
		t.Fatal(err)
	}
	wants(t, true, s, zero)
	wants(t, false, s, zero)
}

// Hits that are told later count in the window in which they came.
func TestCountersAreOwedToTheirWindow(t *testing.T) {
	for name, urls := range map[string][]string{
		"single":  urlOf("redis", shared(t).Address()),
		"cluster": urlOf("redis-cluster", sharedCluster(t).Addresses()...),
	} {
		t.Run(name, func(t *testing.T) {
			clock := newClock()
			s := open(t, urls, Options{Counters: counted(fresh(t))})
			clock.drives(s)
			c := hit("k", perAge(algorithms.FixedWindow, 1))
			c.Limit.Period, c.CountRejected = time.Minute, true
			key := s.name(&c)
			wants(t, true, s, c)
			wants(t, false, s, c)
			for range 5 {
				s.Later(&c, s.Now(algorithms.Limit{}), store.Part{})
			}
			clock.sleep(time.Minute)
			wants(t, true, s, c)
			eventually(t, "the window before has all 7", func() bool {
				raw, _ := command(t, s, "GET", key).ToString()
				return raw == "7"
			})
			if raw, _ := command(t, s, "GET", s.name(&c)).ToString(); raw != "1" {
				t.Errorf("the window after has %q; want 1", raw)
			}
		})
	}
}
