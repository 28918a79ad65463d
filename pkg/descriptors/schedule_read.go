package descriptors

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// readSchedule decodes schedule, after all other parts of the limit.
func (t *tree) readSchedule(fs fields, l *limit) {
	v, given := fs.get("schedule")
	if !given {
		return
	}
	items := t.items(v, "a list of entries, such as [{days: mon-fri, factor: 2}]")
	switch n := len(items); {
	case t.stopped || v.node.Kind != yaml.SequenceNode && !isNull(v):
		return
	case n == 0:
		t.fail(v, "is empty, must have at least one entry")
		return
	case n > MaxSchedule:
		t.fail(v, "has %d entries, must have at most %d", n, MaxSchedule)
		return
	}
	before := len(t.errs)
	s := &Schedule{most: l.Capacity()}
	for i, item := range items {
		e, ok := t.scheduled(item, l)
		if !ok {
			continue
		}
		if len(t.errs) == before && e.opens == nil && e.from == math.MinInt64 && e.until == math.MaxInt64 && i+1 < len(items) {
			t.warn(items[i+1], items[i+1].line, "never holds, as the entry before holds always")
		}
		s.entries = append(s.entries, e)
		at := l.Limit
		e.apply(&at.Limit)
		s.most = max(s.most, at.Capacity())
	}
	if len(t.errs) == before {
		l.schedule = s
	}
}

// scheduled decodes an entry of a schedule.
func (t *tree) scheduled(v value, l *limit) (e Scheduled, ok bool) {
	in, ok := t.fields(v, scheduleForm)
	if !ok {
		return e, false
	}
	before := len(t.errs)
	t.readTimes(in, &e)
	t.readNumbers(v, in, l, &e)
	return e, len(t.errs) == before
}

// readTimes decodes the times of an entry.
func (t *tree) readTimes(in fields, e *Scheduled) {
	e.from, e.until, e.days, e.zone = math.MinInt64, math.MaxInt64, allDays, time.UTC
	if at, given := in.get("zone"); given {
		if zone := t.zone(at); zone != nil {
			e.zone = zone
		}
	}
	e.Zone = e.zone.String()
	from, hasFrom := in.get("from")
	if hasFrom {
		e.From, e.from = t.instant(from, e.zone)
	}
	if at, given := in.get("until"); given {
		e.Until, e.until = t.instant(at, e.zone)
		if hasFrom && e.From != "" && e.Until != "" && e.until <= e.from {
			t.fail(at, "is %s, must be later than from, which is %s", quote(e.Until), quote(e.From))
		}
	}
	if days, given := in.get("days"); given {
		e.Days, e.days = t.days(days)
	}
	opens, closes := time.Duration(0), wholeDay
	if hours, given := in.get("hours"); given {
		e.Hours, opens, closes = t.hours(hours)
	}
	if e.days == allDays && closes-opens == wholeDay {
		return // at all hours of all days
	}
	e.opens = t.dayFrom(e.zone, opens)
	if closes-opens != wholeDay {
		e.closes = t.dayFrom(e.zone, closes%wholeDay)
	}
}

const (
	allDays  = 1<<7 - 1
	wholeDay = 24 * time.Hour
)

// dayFrom returns the days that begin at a time of the clock.
func (t *tree) dayFrom(zone *time.Location, at time.Duration) *algorithms.Calendar {
	day, _ := t.calendars.calendar(algorithms.CalendarSpec{Unit: algorithms.CalendarDay, Count: 1, Zone: zone, At: at}) // is valid
	return day
}

// instant decodes a date, or a date and a time. at is the first instant at which the clock of the
// zone shows the time, or a later one.
func (t *tree) instant(v value, zone *time.Location) (text string, at algorithms.Instant) {
	text, ok := t.text(v)
	if !ok {
		return "", 0
	}
	for _, layout := range []string{time.DateOnly, "2006-01-02 15:04", "2006-01-02T15:04", time.DateTime, "2006-01-02T15:04:05"} {
		wall, err := time.Parse(layout, text)
		if err != nil || len(text) != len(layout) {
			continue
		}
		if y := wall.Year(); y < 1970 || y > 2200 {
			break
		}
		day := t.dayFrom(zone, wall.Sub(wall.Truncate(wholeDay)))
		_, at = day.Window(algorithms.Instant(wall.Add(-26 * time.Hour).UnixNano())) // no clock is further from UTC
		for shows(at, zone).Before(wall) {
			_, at = day.Window(at)
		}
		return text, at
	}
	hint := ""
	if _, err := time.Parse(time.RFC3339, text); err == nil {
		hint = ". The time zone stands beside it, such as zone: Europe/Berlin"
	}
	t.fail(v, "is %s, must be a date of the years 1970 to 2200, such as 2026-12-01, or a date and a time, such as 2026-12-01 08:00%s", kind(v), hint)
	return "", 0
}

// shows returns the time that the clock of a zone shows at an instant, as if the zone were UTC.
func shows(at algorithms.Instant, zone *time.Location) time.Time {
	here := time.Unix(0, int64(at)).In(zone)
	_, offset := here.Zone()
	return here.UTC().Add(time.Duration(offset) * time.Second)
}

func dayNames() []string { return []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"} }

// days decodes days of the week: names and ranges of names, in a text or a list.
func (t *tree) days(v value) (text string, days uint8) {
	items := []value{v}
	if v.node.Kind == yaml.SequenceNode {
		items = t.items(v, "")
	}
	var all []string
	for _, item := range items {
		part, ok := t.text(item)
		if !ok {
			return "", allDays
		}
		for name := range strings.SplitSeq(part, ",") {
			first, last, ranged := strings.Cut(strings.ToLower(name), "-")
			if !ranged {
				last = first
			}
			from, until := dayOfWeek(strings.TrimSpace(first)), dayOfWeek(strings.TrimSpace(last))
			if from < 0 || until < 0 {
				t.fail(item, "is %s, must be days of the week, such as mon-fri, or sat,sun", kind(item))
				return "", allDays
			}
			for day := from; ; day = (day + 1) % 7 {
				if days |= 1 << day; day == until {
					break
				}
			}
			all = append(all, strings.TrimSpace(name))
		}
	}
	if len(all) == 0 {
		t.fail(v, "is empty, must be days of the week, such as mon-fri, or sat,sun")
	}
	return strings.ToLower(strings.Join(all, ",")), days
}

// dayOfWeek returns the day of a name, short or whole; -1 for another text.
func dayOfWeek(name string) int {
	if i := slices.Index(dayNames(), name); i >= 0 {
		return i
	}
	return slices.IndexFunc(dayNames(), func(short string) bool {
		return name == strings.ToLower(time.Weekday(slices.Index(dayNames(), short)).String())
	})
}

// hours decodes hours of the day, such as 09:00-18:00. Hours that end before they begin end on the
// next day. until is above from, and at most 24 hours later.
func (t *tree) hours(v value) (text string, from, until time.Duration) {
	const form = "two times of the day, such as 09:00-18:00, or 22:00-06:00 for hours past midnight"
	if v.node.Kind != yaml.ScalarNode && !t.beyond(v) {
		t.fail(v, "is %s, must be %s", kind(v), form)
		return "", 0, wholeDay
	}
	text, ok := t.text(v)
	if !ok {
		return "", 0, wholeDay
	}
	first, last, ranged := strings.Cut(text, "-")
	from, isFirst := clock(strings.TrimSpace(first))
	until, isLast := clock(strings.TrimSpace(last))
	if strings.TrimSpace(last) == "24:00" {
		until, isLast = wholeDay, true
	}
	switch {
	case !ranged || !isFirst || !isLast:
		t.fail(v, "is %s, must be %s", kind(v), form)
		return "", 0, wholeDay
	case from == until:
		t.fail(v, "is %s, must have two times that differ; the whole day is 00:00-24:00", quote(text))
		return "", 0, wholeDay
	case until < from:
		until += wholeDay
	}
	return text, from, until
}

// clock decodes a time of the day: hours and minutes, and perhaps seconds.
func clock(text string) (at time.Duration, ok bool) {
	for _, layout := range []string{"15:04", time.TimeOnly} {
		if at, err := time.Parse(layout, text); err == nil && len(text) == len(layout) {
			return time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute + time.Duration(at.Second())*time.Second, true
		}
	}
	return 0, false
}

// readNumbers decodes the numbers of an entry: a factor, or the number that the limit has.
func (t *tree) readNumbers(v value, in fields, l *limit, e *Scheduled) {
	own := "requests_per_unit"
	switch {
	case l.Algorithm == algorithms.Concurrency:
		own = "max_in_flight"
	case l.Money:
		own = "budget"
	}
	e.Limit = l.Limit.Limit
	for _, key := range []string{"requests_per_unit", "max_in_flight", "budget"} {
		if at, given := in.get(key); given && key != own {
			t.fail(at, "is not the number of this limit, must be %s or factor", own)
			return
		}
	}
	number, hasNumber := in.get(own)
	factor, hasFactor := in.get("factor")
	burst, hasBurst := in.get("burst")
	switch {
	case hasNumber == hasFactor && hasNumber:
		t.fail(factor, "stands beside %s: must be one of the two", own)
		return
	case hasNumber == hasFactor:
		t.fail(v, "has neither %s nor factor, must have one of the two", own)
		return
	case hasNumber && l.tabled != nil:
		t.fail(number, "stands in the schedule of a limit with a table, which has a number for each value: must be a factor")
		return
	case hasFactor && hasBurst:
		t.fail(burst, "stands beside factor, which multiplies the burst too: must be left out")
		return
	}
	at := number
	if hasFactor {
		at = factor
		t.readFactor(factor, e)
	} else {
		t.readNumber(number, own, e)
		if hasBurst {
			scheduled := Limit{Limit: e.Limit, Money: l.Money}
			scheduled.Burst = 0
			t.readBurst(burst, &scheduled)
			e.Limit.Burst = scheduled.Burst
		} else if l.Burst > 0 { // in proportion, as a grant gives it
			e.Limit.Burst = uint32(min(proportion(uint64(l.Burst), e.Limit.PerPeriod(), l.PerPeriod()), algorithms.MaxHits))
		}
	}
	gives := l.Limit
	if e.micros > 0 {
		e.apply(&gives.Limit)
	} else {
		gives.Limit = e.Limit
	}
	if most := gives.Most(); gives.PerPeriod() > most {
		amount := strconv.FormatUint
		if l.Money {
			amount = func(n uint64, _ int) string { return Money(n) }
		}
		t.fail(at, "gives %s, must give at most %s for %s", amount(gives.PerPeriod(), 10), amount(most, 10), l.Algorithm)
	}
}

// proportion returns n*x/y, rounded to the nearest number, at least 1 for x above 0; x for y = 0.
func proportion(n, x, y uint64) uint64 {
	switch {
	case x == 0:
		return 0
	case y == 0:
		return x
	}
	return max((n*min(x, algorithms.MaxHits)+y/2)/y, 1) // n is at most MaxHits
}

func (t *tree) readNumber(at value, key string, e *Scheduled) {
	if key != "budget" {
		n, _ := t.count(at, 0)
		e.Limit.SetPerPeriod(uint64(n))
		return
	}
	most := uint64(algorithms.MaxCount)
	if !e.Limit.Algorithm.HasWindows() {
		most = e.Limit.Algorithm.MostPerPeriod()
	}
	n, _ := t.amount(at, most, "")
	e.Limit.SetPerPeriod(n)
}

func (t *tree) readFactor(at value, e *Scheduled) {
	text, ok := t.decimal(at)
	if !ok {
		return
	}
	n, ok := micros(text)
	switch {
	case ok && n == 0:
		t.fail(at, "is 0, must be more: a limit of 0 is requests_per_unit: 0")
	case !ok || n > MaxFactor*Micros:
		t.fail(at, "is %s, must be a number above 0, with at most six decimals, such as 2 or 0.5, and at most %d", quote(text), MaxFactor)
	default:
		e.Factor, e.micros = text, n
	}
}
