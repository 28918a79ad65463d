package limiter_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/zones"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// slowStarts returns the starts of all windows from 1999 to 2041 as Unix time. begins reports
// whether a window begins on a day. An empty window has no start.
func slowStarts(zone *time.Location, at time.Duration, begins func(time.Time) bool) (all []int64) {
	for d := time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC); d.Year() < 2042; d = d.AddDate(0, 0, 1) {
		if begins(d) {
			all = append(all, slowFirst(zone, d.Add(at).Unix()))
		}
	}
	return slices.Compact(all)
}

// slowFirst looks minute by minute for the first second at which the clock shows a time or a later
// one. Where the clock does not change in the hours around, a subtraction is enough.
func slowFirst(zone *time.Location, wall int64) int64 {
	shown := func(second int64) int64 {
		_, offset := time.Unix(second, 0).In(zone).Zone()
		return second + int64(offset)
	}
	from, quiet := wall-15*3600, true
	offset := shown(from) - from
	for hour := from; hour <= wall+15*3600; hour += 3600 {
		quiet = quiet && shown(hour)-hour == offset
	}
	if quiet {
		return wall - offset
	}
	for second := from; ; second += 60 {
		if shown(second) >= wall {
			return second
		}
	}
}

// lastOf returns the day of a month, or the last one of a shorter month.
func lastOf(d time.Time, day int) bool {
	last := time.Date(d.Year(), d.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day()
	return d.Day() == min(day, last)
}

type calendarCase struct {
	limit  string // a rule's, with %s for the zone
	at     time.Duration
	begins func(time.Time) bool
}

func calendarCases() []calendarCase {
	first := func(d time.Time) bool { return d.Day() == 1 }
	return []calendarCase{
		{"unit: day, align: {to: calendar, zone: %s}", 0, func(time.Time) bool { return true }},
		{"unit: day, align: {to: calendar, zone: %s, at: 02:30}", 150 * time.Minute, func(time.Time) bool { return true }},
		{"unit: week, align: {to: calendar, zone: %s}", 0, func(d time.Time) bool { return d.Weekday() == time.Monday }},
		{"unit: week, align: {to: calendar, zone: %s, starts: sunday, at: 01:00}", time.Hour, func(d time.Time) bool { return d.Weekday() == time.Sunday }},
		{"unit: month, align: {to: calendar, zone: %s}", 0, first},
		{"unit: month, align: {to: calendar, zone: %s, day: 15, at: 06:00}", 6 * time.Hour, func(d time.Time) bool { return d.Day() == 15 }},
		{"unit: month, align: {to: calendar, zone: %s, day: 29}", 0, func(d time.Time) bool { return lastOf(d, 29) }},
		{"unit: month, align: {to: calendar, zone: %s, day: 30, at: 00:30}", 30 * time.Minute, func(d time.Time) bool { return lastOf(d, 30) }},
		{"unit: month, align: {to: calendar, zone: %s, day: 31}", 0, func(d time.Time) bool { return lastOf(d, 31) }},
		{"unit: month, unit_multiplier: 3, align: {to: calendar, zone: %s}", 0, func(d time.Time) bool { return d.Day() == 1 && d.Month()%3 == 1 }},
		{"unit: year, align: {to: calendar, zone: %s}", 0, func(d time.Time) bool { return d.YearDay() == 1 }},
	}
}

// Each window of 20 zones from 2000 to 2040 admits a hit at its start, and denies another one at
// its last nanosecond. The answers say the end of the window to the nanosecond.
func TestResetsOfACalendarAreExact(t *testing.T) {
	race.Without(t)
	for _, name := range []string{
		"Pacific/Apia", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Sao_Paulo", "Africa/Casablanca", "Africa/Cairo",
		"Asia/Beirut", "America/Santiago", "Europe/Berlin", "America/New_York", "America/St_Johns", "Asia/Gaza", "Asia/Tehran",
		"Pacific/Chatham", "Pacific/Kiritimati", "America/Caracas", "Asia/Pyongyang", "Antarctica/Troll", "America/Havana", "UTC",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			zone := must.Get(zones.Load(name))(t)
			for i, c := range calendarCases() {
				if testing.Short() && i%4 != 0 {
					continue
				}
				starts := slowStarts(zone, c.at, c.begins)
				for _, algorithm := range []string{"fixed_window", "sliding_window_counter"} {
					checkResets(t, "{requests_per_unit: 1, algorithm: "+algorithm+", "+fmt.Sprintf(c.limit, name)+"}", starts)
				}
			}
		})
	}
}

// checkResets hits a limit of one request at the starts and the ends of windows.
func checkResets(t *testing.T, limit string, starts []int64) {
	t.Helper()
	var now atomic.Int64 // the sweep reads it too
	counts := must.Get(memstore.New(memstore.Options{MaxKeys: 4, Virtual: func() algorithms.Instant { return algorithms.Instant(now.Load()) }}))(t)
	defer counts.Close()
	l := must.Get(limiter.New(counts, limiter.Options{}))(t)
	source := descriptors.Source{Name: "rules.yaml", Data: []byte("domain: edge\ndescriptors: [{key: a, rate_limit: " + limit + "}]")}
	rules := must.First(descriptors.Load([]descriptors.Source{source}, descriptors.Options{}))(t)
	l.SetRules(rules)
	counter := rules.All()[0].Limits[0].Algorithm == algorithms.CalendarCounter
	var v limiter.Verdict
	ask := func(at algorithms.Instant) algorithms.Decision {
		now.Store(int64(at))
		must.Do(t, l.Check(t.Context(), request("edge", "a=x"), &v))
		return v.Statuses[0].Decision
	}
	for i, second := range starts[:len(starts)-2] {
		if year := time.Unix(second, 0).UTC().Year(); year < 2000 || year > 2040 || counter && i%3 > 0 { // a counter is full again two windows later
			continue
		}
		start, end, next := algorithms.Instant(second*1e9), algorithms.Instant(starts[i+1]*1e9), algorithms.Instant(starts[i+2]*1e9)
		admitted, last := ask(start), ask(end-1)
		reset := end.Sub(start)
		if counter {
			reset += min(end.Sub(start), next.Sub(end))
		}
		if !admitted.Allowed || admitted.ResetAfter != reset || last.Allowed || !counter && last.RetryAfter != 1 {
			t.Fatalf("%s: the window from %v to %v: first %+v, want a reset after %v; last %+v", limit,
				time.Unix(second, 0).UTC(), time.Unix(0, int64(end)).UTC(), admitted, reset, last)
		}
	}
}

// An override of the unit of an aligned rule is aligned as the rule is, and has its count.
func TestAnOverrideOfTheSameUnitIsAligned(t *testing.T) {
	const text = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: month, requests_per_unit: 5, align: {to: calendar, zone: Europe/Berlin}}}]"
	f := newFixtureWith(t, text, limiter.Options{})
	for unit, want := range map[descriptors.Unit]string{
		descriptors.Month: "fixed_window/30d@month,Europe/Berlin", descriptors.Day: "fixed_window/1d", descriptors.Year: "fixed_window/365d",
	} {
		r := request("edge", "a=x")
		r.Descriptors[0].Override = &limiter.Override{Requests: 7, Unit: unit}
		all := must.Get(f.Explain(t.Context(), r))(t)
		if got := all[0].Limits[0].Limit.Label(); got != want {
			t.Errorf("%v: got the limit %s, want %s", unit, got, want)
		}
	}
}

// With CalendarMonths a month of a request is of the calendar, as in envoyproxy/ratelimit with
// USE_CALENDAR_MONTH_RATE_LIMIT. The alignment of its rule counts first.
func TestCalendarMonthsAlignOverridesOfAMonth(t *testing.T) {
	const text = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: month, requests_per_unit: 5, align: {to: calendar, zone: Europe/Berlin}}}, " +
		"{key: b, rate_limit: {unit: hour, requests_per_unit: 5}}, {key: c, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: token_bucket}}]"
	f := newFixtureWith(t, text, limiter.Options{CalendarMonths: true})
	for _, test := range []struct {
		entry, want string
		o           limiter.Override
	}{
		{"a=x", "fixed_window/30d@month,Europe/Berlin", limiter.Override{Unit: descriptors.Month}},
		{"b=x", "fixed_window/30d@month,UTC", limiter.Override{Unit: descriptors.Month}},
		{"none=x", "fixed_window/30d@month,UTC", limiter.Override{Unit: descriptors.Month}},
		{"none=x", "fixed_window/60d", limiter.Override{Unit: descriptors.Month, Multiplier: 2}},
		{"none=x", "fixed_window/1d", limiter.Override{Unit: descriptors.Day}},
		{"c=x", "token_bucket/30d", limiter.Override{Unit: descriptors.Month}},
	} {
		r := request("edge", test.entry)
		test.o.Requests = 7
		r.Descriptors[0].Override = &test.o
		all := must.Get(f.Explain(t.Context(), r))(t)
		if got := all[0].Limits[0].Limit.Label(); got != test.want {
			t.Errorf("%s, %+v: got the limit %s, want %s", test.entry, test.o, got, test.want)
		}
	}
}
