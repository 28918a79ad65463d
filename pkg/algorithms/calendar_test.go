package algorithms_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/weirproxy/weir/pkg/algorithms"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/zones"
)

// zoneNames is zones with rare rules. Some have half hours, or midnights or a day that do not
// exist. In others daylight saving ends for a month, or a minute past midnight.
func zoneNames() []string {
	return []string{
		"Pacific/Apia", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Sao_Paulo", "Africa/Casablanca", "Africa/Cairo",
		"Asia/Beirut", "America/Santiago", "Europe/Berlin", "America/New_York", "America/St_Johns", "Asia/Gaza", "Asia/Tehran",
		"Pacific/Chatham", "Pacific/Kiritimati", "America/Caracas", "Asia/Pyongyang", "Antarctica/Troll", "America/Havana", "UTC",
	}
}

func calendarOf(tb testing.TB, s CalendarSpec) *Calendar {
	tb.Helper()
	return must.Get(NewCalendar(s))(tb)
}

// slowWindow is a window's number by the wall clock: another implementation, without offsets.
// wall is minutes since 1970 on that clock.
func slowWindow(s CalendarSpec, wall int64) int64 {
	wall -= int64(s.At / time.Minute)
	days := wall / 1440
	switch at := time.Unix(wall*60, 0).UTC(); s.Unit {
	case CalendarDay:
		return days / int64(s.Count)
	case CalendarWeek:
		for d := int64(0); ; d++ { // the first such week day of 1970
			if time.Unix(d*86400, 0).UTC().Weekday() == s.Starts {
				return (days - d) / 7 / int64(s.Count)
			}
		}
	case CalendarMonth:
		months := int64(at.Year()*12 + int(at.Month()) - 1)
		if at.Day() < slowDay(at, s.Day) {
			months--
		}
		return months / int64(s.Count)
	default:
		year := int64(at.Year())
		if at.Month() == time.January && at.Day() < slowDay(at, s.Day) {
			year--
		}
		return year / int64(s.Count)
	}
}

// slowDay returns the day at which a window of months begins in the month of an instant.
func slowDay(at time.Time, of uint8) int {
	for d := int(max(of, 1)); ; d-- {
		if time.Date(at.Year(), at.Month(), d, 0, 0, 0, 0, time.UTC).Month() == at.Month() {
			return d
		}
	}
}

func specs(zone *time.Location) []CalendarSpec {
	all := []CalendarSpec{
		{Unit: CalendarDay, Count: 1},
		{Unit: CalendarDay, Count: 1, At: 90 * time.Minute},
		{Unit: CalendarDay, Count: 10, At: 23*time.Hour + 59*time.Minute},
		{Unit: CalendarWeek, Count: 1, Starts: time.Monday},
		{Unit: CalendarWeek, Count: 2, Starts: time.Sunday, At: 2*time.Hour + 30*time.Minute},
		{Unit: CalendarWeek, Count: 1, Starts: time.Thursday},
		{Unit: CalendarWeek, Count: 1, Starts: time.Friday, At: time.Hour},
		{Unit: CalendarMonth, Count: 1},
		{Unit: CalendarMonth, Count: 3},
		{Unit: CalendarMonth, Count: 1, Day: 15, At: 6 * time.Hour},
		{Unit: CalendarMonth, Count: 1, Day: 29},
		{Unit: CalendarMonth, Count: 1, Day: 30, At: 30 * time.Minute},
		{Unit: CalendarMonth, Count: 1, Day: 31},
		{Unit: CalendarMonth, Count: 2, Day: 31, At: 2 * time.Hour},
		{Unit: CalendarYear, Count: 1},
		{Unit: CalendarYear, Count: 4, Day: 31, At: time.Hour},
	}
	for i := range all {
		all[i].Zone = zone
	}
	return all
}

// TestWindowsFollowTheWallClock compares every window from 2000 to 2040 in 20 zones with a walk
// over all minutes. A window begins at the minute at which the wall clock first shows it.
func TestWindowsFollowTheWallClock(t *testing.T) {
	first, last := 2000, 2041
	if testing.Short() {
		first, last = 2008, 2013
	}
	for _, name := range zoneNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			zone := must.Get(zones.Load(name))(t)
			w := newWalk(t, specs(zone))
			offset := func(second int64) int64 {
				_, offset := time.Unix(second, 0).In(zone).Zone()
				return int64(offset)
			}
			to := time.Date(last, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
			for hour := time.Date(first, 1, 1, 0, 0, 0, 0, time.UTC).Unix(); hour < to; hour += 3600 {
				east := offset(hour)
				quiet := east == offset(hour+3600)
				for second := hour; second < hour+3600; second += 60 {
					if !quiet {
						east = offset(second)
					}
					w.step(second, (second+east)/60)
				}
			}
		})
	}
}

// walk goes over the minutes of a wall clock.
type walk struct {
	t         *testing.T
	specs     []CalendarSpec
	calendars []*Calendar
	at        [1440][]int // the indexes of the calendars that may begin a window at a minute of the day
	latest    int64       // minute that the wall clock has shown
	numbers   []int64     // of the current windows; 0 before the first start
	ends      []Instant
}

func newWalk(t *testing.T, all []CalendarSpec) *walk {
	t.Helper()
	w := &walk{t: t, specs: all, latest: math.MaxInt64, numbers: make([]int64, len(all)), ends: make([]Instant, len(all))}
	for i, s := range all {
		w.calendars = append(w.calendars, calendarOf(t, s))
		w.at[s.At/time.Minute] = append(w.at[s.At/time.Minute], i)
	}
	return w
}

// step goes on to a second at which the wall clock shows a minute.
func (w *walk) step(second, wall int64) {
	if w.latest == math.MaxInt64 {
		w.latest = wall
	}
	if wall == w.latest+1 {
		w.latest = wall
		for _, i := range w.at[wall%1440] {
			w.compare(i, second)
		}
		return
	}
	if wall > w.latest {
		w.latest = wall
		for i := range w.specs {
			w.compare(i, second)
		}
	}
}

func (w *walk) compare(i int, second int64) {
	number := slowWindow(w.specs[i], w.latest)
	if number == w.numbers[i] {
		return
	}
	now := Instant(second) * Instant(time.Second)
	start, end := w.calendars[i].Window(now)
	text := func(at Instant) string { return time.Unix(0, int64(at)).In(w.specs[i].Zone).String() }
	switch {
	case w.numbers[i] == 0 && end <= now: // the walk may have begun within a window
		w.t.Fatalf("%+v: a window at %v ends at %v", w.specs[i], text(now), text(end))
	case w.numbers[i] != 0 && start != now:
		w.t.Fatalf("%+v: a window at %v begins at %v", w.specs[i], text(now), text(start))
	case w.numbers[i] != 0 && start != w.ends[i]:
		w.t.Fatalf("%+v: the window before ended at %v, not at %v", w.specs[i], text(w.ends[i]), text(now))
	}
	w.numbers[i], w.ends[i] = number, end
}

// TestWindowsTileTheLine asks at random instants, in random order.
func TestWindowsTileTheLine(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, name := range zoneNames() {
		zone := must.Get(zones.Load(name))(t)
		for range 100 {
			s := randomSpec(random, zone)
			c := calendarOf(t, s)
			for range 50 {
				now := Instant(random.Int64())
				if random.IntN(2) == 0 {
					now = -now
				}
				start, end := c.Window(now)
				if start > now || end <= now {
					t.Fatalf("%+v: %d is not in [%d, %d)", s, now, start, end)
				}
				fresh := calendarOf(t, s) // which remembers nothing
				for _, at := range []Instant{start, end - 1, now, start + (end-start)/2} {
					if a, b := fresh.Window(at); a != start || b != end {
						t.Fatalf("%+v: %d has [%d, %d), and %d in it [%d, %d)", s, now, start, end, at, a, b)
					}
				}
				if start == math.MinInt64 || end == math.MaxInt64 {
					continue
				}
				if _, before := c.Window(start - 1); before != start {
					t.Fatalf("%+v: the window before %d ends at %d", s, start, before)
				}
				if after, _ := c.Window(end); after != end {
					t.Fatalf("%+v: the window behind %d begins at %d", s, end, after)
				}
			}
		}
	}
}

func randomSpec(random *rand.Rand, zone *time.Location) CalendarSpec {
	s := CalendarSpec{
		Unit: CalendarDay + CalendarUnit(random.IntN(4)), Count: uint32(1 + random.IntN(1+random.IntN(60))), Zone: zone,
		At: time.Duration(random.IntN(86400)) * time.Second,
	}
	switch s.Unit {
	case CalendarWeek:
		s.Starts = time.Weekday(random.IntN(7))
	case CalendarMonth, CalendarYear:
		s.Day = uint8(random.IntN(32))
	case CalendarDay:
	}
	return s
}

// TestAStartThatTheWallClockShowsOnceIsThatOfTime compares with the package time, to the second.
func TestAStartThatTheWallClockShowsOnceIsThatOfTime(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, name := range zoneNames() {
		zone := must.Get(zones.Load(name))(t)
		for range 2000 {
			day, second := 1+random.IntN(28), random.IntN(86400)
			at := time.Date(2000+random.IntN(41), time.Month(1+random.IntN(12)), day, 0, 0, second, 0, zone)
			_, before := at.Add(-3 * time.Hour).Zone()
			if _, after := at.Add(3 * time.Hour).Zone(); before != after {
				continue
			}
			c := calendarOf(t, CalendarSpec{Unit: CalendarMonth, Count: 1, Zone: zone, Day: uint8(day), At: time.Duration(second) * time.Second})
			if start, _ := c.Window(Instant(at.UnixNano())); start != Instant(at.UnixNano()) {
				t.Fatalf("%v: the window begins at %v", at, time.Unix(0, int64(start)).In(zone))
			}
		}
	}
}

func TestWindowsAtRareHours(t *testing.T) {
	month := CalendarSpec{Unit: CalendarMonth, Count: 1}
	for name, x := range map[string]struct {
		zone            string
		spec            CalendarSpec
		at, start, stop string
	}{
		"the month of the contract": {"UTC", month, "2026-12-03T00:00:00Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		"a leap day":                {"UTC", CalendarSpec{Unit: CalendarMonth, Count: 1, Day: 31}, "2028-02-29T00:00:00Z", "2028-02-29T00:00:00Z", "2028-03-31T00:00:00Z"},
		"a year without one":        {"UTC", CalendarSpec{Unit: CalendarMonth, Count: 1, Day: 29}, "2027-02-28T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-29T00:00:00Z"},
		"a quarter":                 {"Europe/Berlin", CalendarSpec{Unit: CalendarMonth, Count: 3}, "2026-11-24T00:00:00Z", "2026-10-01T00:00:00+02:00", "2027-01-01T00:00:00+01:00"},
		"a gap at two":              {"Europe/Berlin", CalendarSpec{Unit: CalendarDay, Count: 1, At: 150 * time.Minute}, "2026-03-29T12:00:00Z", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"},
		"an hour that comes twice":  {"Europe/Berlin", CalendarSpec{Unit: CalendarDay, Count: 1, At: 150 * time.Minute}, "2026-10-25T12:00:00Z", "2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"},
		"no midnight":               {"America/Sao_Paulo", CalendarSpec{Unit: CalendarDay, Count: 1}, "2018-11-04T12:00:00Z", "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"},
		"the day before a day that Samoa never had":  {"Pacific/Apia", CalendarSpec{Unit: CalendarDay, Count: 1}, "2011-12-30T09:59:59Z", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		"the day behind a day that Samoa never had":  {"Pacific/Apia", CalendarSpec{Unit: CalendarDay, Count: 1}, "2011-12-30T10:00:00Z", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"},
		"a billing day that Samoa never had":         {"Pacific/Apia", CalendarSpec{Unit: CalendarMonth, Count: 1, Day: 30}, "2012-01-01T00:00:00Z", "2011-12-31T00:00:00+14:00", "2012-01-30T00:00:00+14:00"},
		"a week that begins on a sunday, by default": {"UTC", CalendarSpec{Unit: CalendarWeek, Count: 1}, "2026-11-24T00:00:00Z", "2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			x.spec.Zone = must.Get(zones.Load(x.zone))(t)
			instant := func(text string) Instant { return Instant(must.Get(time.Parse(time.RFC3339Nano, text))(t).UnixNano()) }
			start, end := calendarOf(t, x.spec).Window(instant(x.at))
			if start != instant(x.start) || end != instant(x.stop) {
				t.Errorf("got %v to %v", time.Unix(0, int64(start)).In(x.spec.Zone), time.Unix(0, int64(end)).In(x.spec.Zone))
			}
		})
	}
}

func TestACalendarIsHeldAtTheEndsOfTime(t *testing.T) {
	for _, s := range specs(time.UTC) {
		for _, now := range []Instant{math.MinInt64, math.MinInt64 + 1, -1, 0, 1, math.MaxInt64 - 1} {
			if start, end := calendarOf(t, s).Window(now); start > now || end <= now {
				t.Errorf("%+v: %d is not in [%d, %d)", s, now, start, end)
			}
		}
	}
}

func TestAWrongCalendarIsRefused(t *testing.T) {
	for _, s := range []CalendarSpec{
		{},
		{Unit: 5, Count: 1},
		{Unit: CalendarDay},
		{Unit: CalendarMonth, Count: 1, Day: 32},
		{Unit: CalendarDay, Count: 1, Day: 1},
		{Unit: CalendarDay, Count: 1, At: 24 * time.Hour},
		{Unit: CalendarDay, Count: 1, At: -1},
		{Unit: CalendarWeek, Count: 1, Starts: 7},
	} {
		if _, err := NewCalendar(s); err == nil {
			t.Errorf("%+v is accepted", s)
		}
	}
}

func TestAWindowThatIsKnownAllocatesNothing(t *testing.T) {
	c := calendarOf(t, CalendarSpec{Unit: CalendarMonth, Count: 1, Zone: must.Get(zones.Load("Europe/Berlin"))(t)})
	now := Instant(time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC).UnixNano())
	start, _ := c.Window(now)
	if n := testing.AllocsPerRun(100, func() { c.Window(now); c.Window(start - 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCalendarWindow(b *testing.B) {
	berlin := must.Get(zones.Load("Europe/Berlin"))(b)
	now := Instant(time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC).UnixNano())
	for _, kind := range []string{"known", "new"} {
		b.Run(kind, func(b *testing.B) {
			b.ReportAllocs()
			c := calendarOf(b, CalendarSpec{Unit: CalendarMonth, Count: 1, Zone: berlin})
			for b.Loop() {
				if kind == "new" {
					now += Instant(62 * 24 * time.Hour)
				}
				c.Window(now)
			}
		})
	}
}
