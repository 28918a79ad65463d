package descriptors

import (
	"fmt"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// alignment is the columns of a row about its windows, as in a row. The zero value has no say.
type alignment struct {
	unit, day uint8
	zone      uint16
}

// alignedRow is the windows of a row under a limit with align, and the end of its keys.
type alignedRow struct {
	calendar *algorithms.Calendar
	period   time.Duration
	suffix   string
}

func (x *row) alignment() alignment { return alignment{x.unit, x.day, x.zone} }

// alignRow makes the windows of a row under a limit. A mistake is about a column.
func (t *tree) alignRow(l *limit, x *row) (column, mistake string) {
	own := x.alignment()
	switch {
	case l.Calendar == nil && own.day == 0 && own.zone == 0, own == (alignment{}):
		return "", ""
	case l.Calendar == nil:
		return startOf(own, l.tabled.zones, "must be left out for a limit without align")
	case l.Calendar.FirstHit() && (own.day != 0 || own.zone != 0):
		return startOf(own, l.tabled.zones, "must be left out for a limit with to: first_hit")
	}
	if _, known := l.tabled.aligned[own]; known {
		return "", ""
	}
	made := alignedRow{calendar: l.Calendar, period: l.Period}
	unit := l.Unit
	if own.unit != 0 {
		if unit = Unit(own.unit); unit.calendarUnit() == 0 {
			return "unit", fmt.Sprintf("is %s, must be day, week, month or year for a limit with align", unit)
		}
		made.period = unit.Duration()
	}
	if !l.Calendar.FirstHit() {
		spec, column, mistake := t.specOf(l, own, unit)
		if mistake != "" {
			return column, mistake
		}
		var err error
		if made.calendar, err = t.calendars.calendar(spec); err != nil {
			return column, err.Error()
		}
	}
	if l.tabled.aligned == nil {
		l.tabled.aligned = make(map[alignment]alignedRow)
	}
	l.tabled.aligned[own] = made
	return "", ""
}

// startOf words a mistake about the day of a row, or about its zone.
func startOf(own alignment, zones []string, must string) (column, mistake string) {
	if own.day != 0 {
		return "day", fmt.Sprintf("is %d, %s", own.day, must)
	}
	return "zone", fmt.Sprintf("is %s, %s", quote(zoneOf(zones, own.zone)), must)
}

// specOf returns the calendar of the limit with the columns of a row. unit is the one that counts.
func (t *tree) specOf(l *limit, own alignment, unit Unit) (s algorithms.CalendarSpec, column, mistake string) {
	s = l.Calendar.Spec()
	if own.unit != 0 {
		s.Unit, s.Count = unit.calendarUnit(), 1
	}
	isDated := unit == Month || unit == Year
	switch {
	case own.day != 0 && !isDated:
		return s, "day", fmt.Sprintf("is %d, must be left out for the unit %s: only a month and a year begin on a day", own.day, unit)
	case own.day != 0:
		s.Day = own.day
	case !isDated:
		s.Day = 0
	}
	switch {
	case unit != Week:
		s.Starts = 0
	case l.Unit != Week:
		s.Starts = time.Monday
	}
	if own.zone != 0 {
		name := l.tabled.zones[own.zone-1]
		zone, wrong := t.calendars.zone(name)
		if wrong != "" {
			return s, "zone", quote(name) + " " + wrong
		}
		s.Zone = zone
	}
	return s, "", ""
}

// setAlignedSuffixes gives the rows of limit n of a rule the ends of their keys. A row with the
// windows of the limit has its key. taken has the ends of all limits of the rule.
func (l *Limit) setAlignedSuffixes(n int, taken []string) {
	for own, a := range l.tabled.aligned {
		if a.suffix = l.suffix; a.calendar != l.Calendar || a.period != l.Period {
			like := l.Limit
			like.Calendar, like.Period = a.calendar, a.period
			ordinal := 1
			if n > 0 { // above the ordinals of all limits
				ordinal = MaxLimits + n
			}
			for a.suffix = suffixOf(like, ordinal); slices.Contains(taken, a.suffix); ordinal++ {
				a.suffix = suffixOf(like, ordinal+1)
			}
		}
		l.tabled.aligned[own] = a
	}
}
