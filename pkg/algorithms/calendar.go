package algorithms

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// CalendarUnit is the unit of a calendar's windows. The zero value is not valid.
type CalendarUnit uint8

// The units.
const (
	CalendarDay CalendarUnit = iota + 1
	CalendarWeek
	CalendarMonth
	CalendarYear
)

// CalendarSpec describes a calendar. Two calendars of equal descriptions have the same windows.
type CalendarSpec struct {
	Unit     CalendarUnit
	Count    uint32         // units of a window, from 1; windows of several units count from year 0, see Calendar
	FirstHit bool           // a window begins with a key's first hit, and lasts Limit.Period; the fields below are then zero
	Zone     *time.Location // nil is UTC; compared as a pointer
	Day      uint8          // of a month, or of January for a year; 0 is 1, and 31 the last day of shorter months
	At       time.Duration  // wall-clock time of the start, whole seconds below 24 hours
	Starts   time.Weekday   // of a week
}

// Validate returns all mistakes of the description, joined, or nil.
func (s CalendarSpec) Validate() error {
	var errs []error
	if s.Unit < CalendarDay || s.Unit > CalendarYear {
		errs = append(errs, fmt.Errorf("unit %d: must be a day, week, month or year", s.Unit))
	}
	if s.Count == 0 || s.Count > math.MaxInt16 {
		errs = append(errs, fmt.Errorf("%d units: must be from 1 to %d", s.Count, math.MaxInt16))
	}
	if s.Day > 31 || s.Day != 0 && s.Unit != CalendarMonth && s.Unit != CalendarYear {
		errs = append(errs, fmt.Errorf("day %d: must be from 1 to 31, and for months and years only", s.Day))
	}
	if s.At < 0 || s.At >= day || s.At%time.Second != 0 {
		errs = append(errs, fmt.Errorf("at %v: must be whole seconds below 24 hours", s.At))
	}
	if s.Starts < time.Sunday || s.Starts > time.Saturday {
		errs = append(errs, fmt.Errorf("week day %d: must be from 0 to 6", s.Starts))
	}
	return errors.Join(errs...)
}

const day = 24 * time.Hour

// Calendar divides time into windows by the wall clock of a zone. The windows follow each other
// without a gap. Instants are Unix nanoseconds. A Calendar is safe for concurrent
// use.
//
// A window begins at the first instant at which the wall clock shows its start or a later time. So
// a start in a gap, such as daylight saving makes, is the first instant behind the gap. Of an hour
// that comes twice the first counts. A window without an instant does not exist.
//
// Windows of several units count from a fixed origin: years and months from January of year 0, so
// that three months are the usual quarters. Days count from 1 January 1970, and weeks from the
// first week that begins in 1970.
type Calendar struct {
	spec CalendarSpec
	last atomic.Pointer[span] // found last; nil before the first

	around atomic.Pointer[[4]Instant] // found last by Around
}

// span is a window and the one before.
type span struct{ before, start, end Instant }

// NewCalendar returns a calendar. The error is the one of [CalendarSpec.Validate].
func NewCalendar(s CalendarSpec) (*Calendar, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if s.Zone == nil {
		s.Zone = time.UTC
	}
	if s.Day == 0 && (s.Unit == CalendarMonth || s.Unit == CalendarYear) {
		s.Day = 1
	}
	return &Calendar{spec: s}, nil
}

// Spec returns the description, with the zone and the day that count.
func (c *Calendar) Spec() CalendarSpec { return c.spec }

// FirstHit reports whether a window begins with the first hit of its key.
func (c *Calendar) FirstHit() bool { return c.spec.FirstHit }

// Window returns the window of an instant: start <= now < end. The calendar must not begin windows
// with first hits. Starts and ends are held at the first and the last instant. Window seldom
// allocates: it remembers the window of the last call, and the one before.
func (c *Calendar) Window(now Instant) (start, end Instant) {
	w := c.last.Load()
	switch {
	case w == nil || now < w.before || now >= w.end:
		w = c.find(now)
		c.last.Store(w)
	case now < w.start:
		return w.before, w.start
	}
	return w.start, w.end
}

// Around returns the starts of four windows: of the one before the window of an instant, of that
// window, and of the next two. The calendar must not begin windows with first hits. Around seldom
// allocates, as Window.
func (c *Calendar) Around(now Instant) [4]Instant {
	all := c.around.Load()
	if all == nil || now < all[1] || now >= all[2] {
		w := c.find(now)
		all = &[4]Instant{w.before, w.start, w.end, c.find(w.end).end}
		c.around.Store(all)
	}
	return *all
}

func (c *Calendar) find(now Instant) *span {
	second := seconds(now)
	n := c.index(second)
	start := c.start(n)
	for start > second {
		n--
		start = c.start(n)
	}
	end := c.start(n + 1)
	for end <= second {
		n++
		start, end = end, c.start(n+1)
	}
	before := start
	for n--; before == start; n-- { // but for windows without an instant once
		before = c.start(n)
	}
	return &span{instant(before), instant(start), instant(end)}
}

// index returns the number of the window of an instant; it may be a few too large or too small.
func (c *Calendar) index(second int64) int64 {
	_, offset := time.Unix(second, 0).In(c.spec.Zone).Zone()
	local := time.Unix(second+int64(offset), 0).UTC()
	count := int64(c.spec.Count)
	switch c.spec.Unit {
	case CalendarDay, CalendarWeek:
		return floored(floored(local.Unix(), int64(day/time.Second))-c.origin(), count*c.days())
	case CalendarMonth:
		return floored(12*int64(local.Year())+int64(local.Month())-1, count)
	default:
		return floored(int64(local.Year()), count)
	}
}

// origin returns the day of window 0, in days since 1 January 1970, a Thursday.
func (c *Calendar) origin() int64 {
	if c.spec.Unit != CalendarWeek {
		return 0
	}
	return int64(c.spec.Starts-time.Thursday+7) % 7
}

func (c *Calendar) days() int64 {
	if c.spec.Unit == CalendarWeek {
		return 7
	}
	return 1
}

// start returns the first second of window n, as Unix time.
func (c *Calendar) start(n int64) int64 {
	n *= int64(c.spec.Count)
	wall := int64(c.spec.At / time.Second) // Unix time if the zone were UTC
	switch c.spec.Unit {
	case CalendarDay, CalendarWeek:
		wall += (c.origin() + n*c.days()) * int64(day/time.Second)
	case CalendarMonth:
		wall += dayOf(int(floored(n, 12)), time.Month(n-12*floored(n, 12)+1), c.spec.Day)
	default:
		wall += dayOf(int(n), time.January, c.spec.Day)
	}
	return firstAt(c.spec.Zone, wall)
}

// dayOf returns the midnight of a day, or of the last day of a shorter month, as Unix time in UTC.
func dayOf(year int, month time.Month, of uint8) int64 {
	last := time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC)
	return last.Unix() - int64(max(0, last.Day()-int(of)))*int64(day/time.Second)
}

// firstAt returns the first second at which the wall clock of a zone shows a time or a later one.
// wall is that time as Unix time if the zone were UTC. No wall clock is more than 26 hours from
// UTC.
func firstAt(zone *time.Location, wall int64) int64 {
	from := time.Unix(wall-26*60*60, 0).In(zone)
	for {
		_, offset := from.Zone()
		start, end := from.ZoneBounds()
		at := wall - int64(offset)
		if !start.IsZero() {
			at = max(at, start.Unix())
		}
		if !end.IsZero() && !end.After(from) { // on the last day of a leap year, which Go ends after 365 days
			end = time.Date(from.UTC().Year()+1, time.January, 1, 0, 0, 0, 0, time.UTC).In(zone)
		}
		if end.IsZero() || at < end.Unix() {
			return at
		}
		from = end
	}
}

// seconds returns the second of an instant, rounded down.
func seconds(i Instant) int64 { return floored(int64(i), int64(time.Second)) }

// instant returns a second as an instant, held at the first and the last one.
func instant(second int64) Instant {
	const most = math.MaxInt64 / int64(time.Second)
	switch {
	case second > most:
		return math.MaxInt64
	case second < -most:
		return math.MinInt64
	}
	return Instant(second) * Instant(time.Second)
}

// floored returns a/b, rounded down; b is above 0.
func floored(a, b int64) int64 {
	if a%b < 0 {
		return a/b - 1
	}
	return a / b
}
