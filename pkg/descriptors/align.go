package descriptors

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/internal/zones"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// calendars is the calendars and the time zones of one load. Equal descriptions have one calendar,
// so that limits with them are equal. The zero value is empty.
type calendars struct {
	database *zones.Database // nil before the first name
	zones    map[string]*time.Location
	known    map[algorithms.CalendarSpec]*algorithms.Calendar
}

// calendar returns the one calendar of a description.
func (c *calendars) calendar(s algorithms.CalendarSpec) (*algorithms.Calendar, error) {
	if known := c.known[s]; known != nil {
		return known, nil
	}
	made, err := algorithms.NewCalendar(s)
	if err != nil {
		return nil, err
	}
	if c.known == nil {
		c.known = make(map[algorithms.CalendarSpec]*algorithms.Calendar)
	}
	c.known[s] = made
	return made, nil
}

// zone returns a time zone of the embedded database. The text of a mistake completes the name.
func (c *calendars) zone(name string) (zone *time.Location, mistake string) {
	if known := c.zones[name]; known != nil {
		return known, ""
	}
	if c.database == nil {
		opened, err := zones.Open()
		if err != nil {
			return nil, err.Error()
		}
		c.database, c.zones = opened, make(map[string]*time.Location)
	}
	zone, err := c.database.Zone(name)
	switch {
	case errors.Is(err, zones.ErrUnknown):
		mistake = "is not a time zone, must be an IANA name such as Europe/Berlin or UTC"
		if near := c.database.Nearest(name); near != "" {
			mistake += ", did you mean " + near + "?"
		}
		return nil, mistake
	case err != nil:
		return nil, err.Error()
	}
	c.zones[name] = zone
	return zone, ""
}

// zoned reports whether a calendar has a time zone other than UTC.
func (c *calendars) zoned() bool {
	for s := range c.known {
		if s.Zone != nil && s.Zone != time.UTC {
			return true
		}
	}
	return false
}

// calendarUnit returns the unit of a calendar, 0 for units that have none.
func (u Unit) calendarUnit() algorithms.CalendarUnit {
	switch u {
	case Day:
		return algorithms.CalendarDay
	case Week:
		return algorithms.CalendarWeek
	case Month:
		return algorithms.CalendarMonth
	case Year:
		return algorithms.CalendarYear
	default:
		return 0
	}
}

// readAlign decodes align, and makes the algorithm the one with windows of a calendar. The
// algorithm and the period of the limit are decoded.
func (t *tree) readAlign(fs fields, l *Limit) {
	at, given := fs.get("align")
	if !given {
		t.alignMonth(fs, l)
		return
	}
	in, ok := t.fields(at, alignForm)
	if !ok {
		return
	}
	before := len(t.errs)
	period, hasPeriod := fs.get("period")
	unit := l.Unit
	if hasPeriod {
		unit = UnitUnknown
	}
	spec := t.readSpec(in, at, unit)
	if hasPeriod {
		t.fail(at, "stands beside period%s: must stand beside unit: day, week, month or year", line(" in line %d", period.line))
	} else if unit != UnitUnknown && unit.calendarUnit() == 0 {
		t.fail(at, "stands beside unit: %s, must stand beside day, week, month or year", unit)
	}
	aligned, can := l.Algorithm.Aligned()
	if l.Algorithm != 0 && !can {
		t.fail(at, "is for fixed_window and sliding_window_counter only, must be left out for %s", l.Algorithm)
	}
	if len(t.errs) > before || !can || l.Period == 0 {
		return
	}
	if spec.FirstHit { // windows are as long as the period, with any unit
		spec.Unit, spec.Count = algorithms.CalendarDay, 1
	} else {
		spec.Unit, spec.Count = l.Unit.calendarUnit(), l.Multiplier
	}
	calendar, err := t.calendars.calendar(spec)
	if err != nil {
		t.fail(at, "%v", err)
		return
	}
	l.Algorithm, l.Calendar = aligned, calendar
}

// alignMonth aligns a month without an alignment, see Options.CalendarMonths.
func (t *tree) alignMonth(fs fields, l *Limit) {
	if !t.options.CalendarMonths || !fs.has("unit") || l.Unit != Month || l.Multiplier != 1 || l.Algorithm != algorithms.FixedWindow {
		return
	}
	month := algorithms.CalendarSpec{Unit: algorithms.CalendarMonth, Count: 1, Zone: time.UTC, Day: 1}
	if calendar, err := t.calendars.calendar(month); err == nil { // which is valid
		l.Algorithm, l.Calendar = algorithms.CalendarWindow, calendar
	}
}

// readSpec decodes an alignment, all but its unit and its count.
func (t *tree) readSpec(in fields, v value, unit Unit) (s algorithms.CalendarSpec) {
	to, at, ok := t.textOf(in, v, "to")
	switch {
	case !ok:
	case to == firstHit:
		s.FirstHit = true
		for _, key := range []string{"zone", "day", "at", "starts"} {
			if other, given := in.get(key); given {
				t.fail(other, "has no meaning with to: first_hit, must be left out: the first hit of a key begins its window")
			}
		}
		return s
	case to == "":
		t.fail(at, "is missing or empty, must be calendar or first_hit")
	case to != "calendar":
		t.fail(at, "is %s, must be calendar or first_hit", quote(to))
	}
	s.Zone = time.UTC
	if zone, given := in.get("zone"); given {
		s.Zone = t.zone(zone)
	}
	if start, given := in.get("at"); given {
		s.At = t.wallClock(start)
	}
	if unit == Month || unit == Year {
		s.Day = 1
	}
	if unit == Week {
		s.Starts = time.Monday // ISO 8601
	}
	if day, given := in.get("day"); given {
		s.Day = t.dayOf(day, unit)
	}
	if starts, given := in.get("starts"); given {
		s.Starts = t.weekDay(starts, unit)
	}
	return s
}

func (t *tree) zone(v value) *time.Location {
	name, ok := t.text(v)
	if !ok {
		return nil
	}
	zone, mistake := t.calendars.zone(name)
	if mistake != "" {
		t.fail(v, "%s %s", quote(name), mistake)
	}
	return zone
}

// wallClock decodes a time of the day: hours and minutes, and perhaps seconds.
func (t *tree) wallClock(v value) time.Duration {
	text, ok := t.text(v)
	if !ok {
		return 0
	}
	if at, ok := clock(text); ok {
		return at
	}
	t.fail(v, `is %s, must be a time of the day from "00:00" to "23:59", or to "23:59:59"`, quote(text))
	return 0
}

// mustBeDay completes a mistake about a day.
const mustBeDay = "must be a day of the month from 1 to 31; 31 is the last day of shorter months"

func (t *tree) dayOf(v value, unit Unit) uint8 {
	if t.beyond(v) {
		return 0
	}
	if unit != UnitUnknown && unit != Month && unit != Year {
		t.fail(v, "has no meaning with unit: %s, must be left out: only a month and a year begin on a day", unit)
		return 0
	}
	n, err := strconv.ParseUint(v.node.Value, 10, 8)
	if is := kind(v); is != "the number "+v.node.Value || err != nil || n < 1 || n > 31 {
		t.fail(v, "is %s, %s", is, mustBeDay)
		return 0
	}
	return uint8(n)
}

func (t *tree) weekDay(v value, unit Unit) time.Weekday {
	name, ok := t.text(v)
	if !ok {
		return 0
	}
	if unit != UnitUnknown && unit != Week {
		t.fail(v, "has no meaning with unit: %s, must be left out: only a week begins on a day of the week", unit)
		return 0
	}
	var names []string
	for day := range time.Weekday(7) {
		names = append(names, strings.ToLower(day.String()))
	}
	day := slices.Index(names, strings.ToLower(name))
	if day < 0 {
		t.fail(v, "is %s, must be %s or %s", quote(name), strings.Join(names[:6], ", "), names[6])
	}
	return time.Weekday(max(day, 0))
}

// Alignment returns the alignment of the limit's windows in words, such as "calendar of
// Europe/Berlin, day 15, at 06:00", or "first_hit"; "" without one. The unit is not part of it.
func (l *Limit) Alignment() string {
	switch {
	case l.Calendar == nil:
		return ""
	case l.Calendar.FirstHit():
		return firstHit
	}
	return string(appendStart([]byte("calendar of "), l.Calendar.Spec(), ", ", " "))
}

const firstHit = "first_hit"

// appendAligned appends the part of a key that is about a calendar. Calendars with other windows
// have another part.
func appendAligned(b []byte, c *algorithms.Calendar) []byte {
	s := c.Spec()
	if s.FirstHit {
		return append(b, firstHit...)
	}
	if s.Count > 1 {
		b = strconv.AppendUint(b, uint64(s.Count), 10)
	}
	units := [...]Unit{algorithms.CalendarDay: Day, algorithms.CalendarWeek: Week, algorithms.CalendarMonth: Month, algorithms.CalendarYear: Year}
	b = append(append(b, units[s.Unit].String()...), ',')
	return appendStart(b, s, ",", "=")
}

// appendStart appends the zone of a calendar, and the start of its windows as far as it is not the
// usual one. A separator stands before each part but the zone, and a mark before each value.
func appendStart(b []byte, s algorithms.CalendarSpec, separator, mark string) []byte {
	b = append(b, s.Zone.String()...)
	if s.Day > 1 {
		b = fmt.Appendf(b, "%sday%s%d", separator, mark, s.Day)
	}
	if s.Unit == algorithms.CalendarWeek && s.Starts != time.Monday {
		b = fmt.Appendf(b, "%sstarts%s%s", separator, mark, strings.ToLower(s.Starts.String()))
	}
	if s.At > 0 {
		layout := "15:04"
		if s.At%time.Minute != 0 {
			layout = time.TimeOnly
		}
		b = fmt.Appendf(b, "%sat%s%s", separator, mark, time.Time{}.Add(s.At).Format(layout))
	}
	return b
}
