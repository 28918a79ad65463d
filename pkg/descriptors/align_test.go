package descriptors

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// aligned returns the limit of a rule file.
func aligned(t *testing.T, limit string) Limit {
	t.Helper()
	return load(t, "domain: edge\ndefault: "+limit).Domain("edge").Default.Limits[0]
}

func TestAnAlignmentIsReadAsWritten(t *testing.T) {
	for _, c := range []struct {
		limit, label, words string
	}{
		{"{unit: month, requests_per_unit: 5, align: {to: calendar}}", "fixed_window/30d@month,UTC", "calendar of UTC"},
		{
			"{unit: month, requests_per_unit: 5, align: {to: calendar, zone: Europe/Berlin, day: 1, at: \"00:00\"}}",
			"fixed_window/30d@month,Europe/Berlin", "calendar of Europe/Berlin",
		},
		{"{unit: month, unit_multiplier: 3, requests_per_unit: 5, align: {to: calendar}}", "fixed_window/90d@3month,UTC", "calendar of UTC"},
		{
			"{unit: month, requests_per_unit: 5, align: {to: calendar, day: 15, at: 06:00}}",
			"fixed_window/30d@month,UTC,day=15,at=06:00", "calendar of UTC, day 15, at 06:00",
		},
		{
			"{unit: year, requests_per_unit: 5, align: {to: calendar, day: 31, at: 23:59:59}}",
			"fixed_window/365d@year,UTC,day=31,at=23:59:59", "calendar of UTC, day 31, at 23:59:59",
		},
		{"{unit: week, requests_per_unit: 5, align: {to: calendar}}", "fixed_window/7d@week,UTC", "calendar of UTC"},
		{"{unit: week, requests_per_unit: 5, align: {to: calendar, starts: Monday}}", "fixed_window/7d@week,UTC", "calendar of UTC"},
		{"{unit: week, requests_per_unit: 5, align: {to: calendar, starts: sunday}}", "fixed_window/7d@week,UTC,starts=sunday", "calendar of UTC, starts sunday"},
		{
			"{unit: day, requests_per_unit: 5, algorithm: sliding_window_counter, align: {to: calendar, zone: Asia/Kathmandu}}",
			"sliding_window_counter/1d@day,Asia/Kathmandu", "calendar of Asia/Kathmandu",
		},
		{"{unit: month, requests_per_unit: 5, align: {to: first_hit}}", "fixed_window/30d@first_hit", "first_hit"},
	} {
		l := aligned(t, c.limit)
		if got := l.Label(); got != c.label {
			t.Errorf("%s: label %q, want %q", c.limit, got, c.label)
		}
		if got := l.Alignment(); got != c.words {
			t.Errorf("%s: words %q, want %q", c.limit, got, c.words)
		}
		if err := l.Validate(); err != nil || !l.Algorithm.HasCalendar() || l.CountRejected != (l.Algorithm == algorithms.CalendarWindow) {
			t.Errorf("%s: %+v, %v", c.limit, l, err)
		}
	}
}

func TestRulesNeedZonesForACalendarOutsideUTC(t *testing.T) {
	for limit, want := range map[string]bool{
		"{unit: month, requests_per_unit: 5}":                                             false,
		"{unit: month, requests_per_unit: 5, align: {to: calendar}}":                      false,
		"{unit: month, requests_per_unit: 5, align: {to: calendar, zone: UTC}}":           false,
		"{unit: month, requests_per_unit: 5, align: {to: first_hit}}":                     false,
		"{unit: month, requests_per_unit: 5, align: {to: calendar, zone: Europe/Berlin}}": true,
	} {
		if got := load(t, "domain: edge\ndefault: "+limit).NeedsZones(); got != want {
			t.Errorf("%s: needs zones %t, want %t", limit, got, want)
		}
	}
}

// Two windows that differ must not add their hits to one count.
func TestKeysOfTwoAlignmentsDiffer(t *testing.T) {
	limits := []string{"{unit: month, requests_per_unit: 5}", "{unit: day, unit_multiplier: 30, requests_per_unit: 5, align: {to: calendar}}"}
	for _, unit := range []string{"unit: day", "unit: week", "unit: month", "unit: year", "unit: month, unit_multiplier: 2"} {
		for _, zone := range []string{"UTC", "Europe/Berlin", "Asia/Kathmandu", "Etc/UTC"} {
			for _, at := range []string{"00:00", "06:00", "00:00:06"} {
				of := func(more string) {
					limits = append(limits, "{"+unit+", requests_per_unit: 5, align: {to: calendar, zone: "+zone+", at: "+at+more+"}}")
				}
				of("")
				switch {
				case strings.Contains(unit, "week"):
					of(", starts: sunday")
					of(", starts: tuesday")
				case !strings.Contains(unit, "day"):
					of(", day: 6")
					of(", day: 31")
				}
			}
		}
		limits = append(limits, "{"+unit+", requests_per_unit: 5, align: {to: first_hit}}")
	}
	keys, meanings := make(map[string]string), make(map[string]string)
	document := "domain: edge\ndescriptors:\n" // one for all, as each reads the time zones anew
	for i, text := range limits {
		document += fmt.Sprintf("- {key: k%d, rate_limit: %s}\n", i, text)
	}
	for i, rule := range load(t, document).All() {
		text, l := limits[i], rule.Limits[0]
		key, meaning := string(AppendKey(nil, "edge", nil, &l)), string(l.appendMeaning(nil))
		if keys[key] != "" || meanings[meaning] != "" {
			t.Errorf("%s: key %q and meaning of %q or %q", text, key, keys[key], meanings[meaning])
		}
		keys[key], meanings[meaning] = text, text
	}
}

func TestEqualAlignmentsHaveOneCalendar(t *testing.T) {
	rules := load(t, `
domain: edge
descriptors:
  - {key: a, rate_limit: {unit: month, requests_per_unit: 5, align: {to: calendar, zone: Europe/Berlin}}}
  - {key: b, rate_limit: {unit: month, requests_per_unit: 6, align: {to: calendar, zone: Europe/Berlin, day: 1}}}
  - {key: c, rate_limit: {unit: month, requests_per_unit: 6, align: {to: calendar, zone: Europe/Paris}}}
  - key: d
    rate_limits:
      - {unit: month, requests_per_unit: 5, align: {to: first_hit}}
      - {unit: day, unit_multiplier: 30, requests_per_unit: 6, align: {to: first_hit}}
`)
	of := func(n, limit int) *Limit { return &rules.All()[n].Limits[limit] }
	if of(0, 0).Calendar != of(1, 0).Calendar || of(0, 0).Calendar == of(2, 0).Calendar {
		t.Error("the calendars of a and b are not one, or those of a and c are")
	}
	if a, b := of(3, 0), of(3, 1); a.Calendar != b.Calendar || a.Label() == b.Label() {
		t.Errorf("first hits: %q and %q", a.Label(), b.Label())
	}
	if got := of(0, 0).Calendar.Spec().Zone.String(); got != "Europe/Berlin" {
		t.Errorf("the zone is %s", got)
	}
}

// The window of a rule begins and ends where time.Date of its zone says.
func TestTheWindowOfARuleIsTheMonthThere(t *testing.T) {
	l := aligned(t, "{unit: month, requests_per_unit: 5, align: {to: calendar, zone: Europe/Berlin}}")
	zone := l.Calendar.Spec().Zone
	start, end := l.Calendar.Window(algorithms.Instant(time.Date(2026, 3, 15, 12, 0, 0, 0, time.UTC).UnixNano()))
	if want := time.Date(2026, 3, 1, 0, 0, 0, 0, zone); !time.Unix(0, int64(start)).Equal(want) {
		t.Errorf("starts at %v, want %v", time.Unix(0, int64(start)).In(zone), want)
	}
	if want := time.Date(2026, 4, 1, 0, 0, 0, 0, zone); !time.Unix(0, int64(end)).Equal(want) {
		t.Errorf("ends at %v, want %v", time.Unix(0, int64(end)).In(zone), want)
	}
}

func TestALimitKeepsItsHitsWhenItIsAligned(t *testing.T) {
	const plain = "domain: edge\ndescriptors:\n- {key: a, rate_limit: {unit: month, requests_per_unit: 5"
	older, newer := load(t, plain+"}}\n"), load(t, plain+", align: {to: calendar}}}\n")
	followed := newer.Follow(older)
	if len(followed) != 1 || followed[0].From == nil || followed[0].Same {
		t.Errorf("got %+v", followed)
	}
	if again := newer.Follow(load(t, plain+", align: {to: calendar}}}\n")); !again[0].Same {
		t.Errorf("the same rules again: got %+v", again)
	}
	must.Match(t, "the change", []Change{{Domain: "edge", Changed: []string{"a"}}}, newer.Since(older))
}

// tabledRules loads rules with the table plans.csv.
func tabledRules(t *testing.T, document, table string) (*Rules, error) {
	t.Helper()
	plans := NewTable("plans.csv", []byte(table))
	source := Source{Name: "rules.yaml", Data: []byte(document), Table: func(string) (*Table, error) { return plans, nil }}
	rules, _, err := Load([]Source{source}, Options{})
	return rules, err
}

func TestABillingDayIsACustomersOwn(t *testing.T) {
	const table = `value,requests_per_unit,unit,burst,day,zone
plain,5
berlin,6,,,,Europe/Berlin
tenth,7,,,10,
both,8,month,,31,Asia/Kathmandu
same,9,month,,15,UTC
week,10,week
year,11,year,,,UTC
`
	rules, err := tabledRules(t, `
domain: edge
descriptors:
  - key: customer
    rate_limits:
      - {unit: month, requests_per_unit: 1, table: plans.csv, align: {to: calendar, day: 15, at: "06:00"}}
      - {unit: month, requests_per_unit: 2, align: {to: calendar, zone: Europe/Berlin, day: 15, at: "06:00"}}
      - {unit: month, requests_per_unit: 3, table: plans.csv, align: {to: calendar, zone: Africa/Cairo}}
`, table)
	must.Do(t, err)
	rule := rules.All()[0]
	seen := make(map[string]string)
	for value, want := range map[string]string{
		"other": "fixed_window/30d@month,UTC,day=15,at=06:00",
		"plain": "fixed_window/30d@month,UTC,day=15,at=06:00",
		"same":  "fixed_window/30d@month,UTC,day=15,at=06:00",
		// The second limit has the plain end.
		"berlin": "fixed_window/30d@month,Europe/Berlin,day=15,at=06:00.2",
		"tenth":  "fixed_window/30d@month,UTC,day=10,at=06:00",
		"both":   "fixed_window/30d@month,Asia/Kathmandu,day=31,at=06:00",
		"week":   "fixed_window/7d@week,UTC,at=06:00",
		"year":   "fixed_window/365d@year,UTC,day=15,at=06:00",
	} {
		entries := []Entry{{Key: "customer", Value: value}}
		keys := make(map[string]bool)
		for n := range rule.Limits {
			var l Limit
			rule.LimitFor(n, entries, &l)
			if n == 0 && l.Label() != want {
				t.Errorf("%s: got %s, want %s", value, l.Label(), want)
			}
			label := l.Label()
			windows := label[:max(strings.LastIndexByte(label, '.'), 0)]
			if windows == "" {
				windows = label
			}
			if keys[label] {
				t.Errorf("%s: two limits have the key %s", value, label)
			}
			keys[label] = true
			if l.Validate() != nil || seen[label] != "" && seen[label] != windows || suffixOf(l.Limit, 1) != "#"+windows {
				t.Errorf("%s: limit %d is %+v, %v", value, n, l, l.Validate())
			}
			seen[label] = windows
		}
	}
	allocs := testing.AllocsPerRun(100, func() {
		var l Limit
		rule.LimitFor(0, []Entry{{Key: "customer", Value: "both"}}, &l)
	})
	if allocs > 0 {
		t.Errorf("LimitFor allocates %v times", allocs)
	}
	others, err := tabledRules(t, "domain: edge\ndescriptors: [{key: customer, rate_limit: {unit: month, requests_per_unit: 1, table: plans.csv, align: {to: calendar}}}]",
		strings.Replace(table, "Asia/Kathmandu", "Asia/Tokyo", 1))
	must.Do(t, err)
	if a, b := others.All()[0].Limits[0].Table(), rule.Limits[0].Table(); a.Hash() == b.Hash() {
		t.Error("another zone is the same table")
	}
}

func TestWrongStartsInATableAreMistakes(t *testing.T) {
	const table = `value,requests_per_unit,unit,burst,day,zone
a,1,second
b,1,week,,15
c,1,,,,Berlin
d,1,,,,Mars
e,1,,,9,
`
	for align, want := range map[string]string{
		"align: {to: calendar}": `
plans.csv:2: unit: is second, must be day, week, month or year for a limit with align (rules.yaml:2)
plans.csv:3: day: is 15, must be left out for the unit week: only a month and a year begin on a day (rules.yaml:2)
plans.csv:4: zone: "Berlin" is not a time zone, must be an IANA name such as Europe/Berlin or UTC, did you mean Europe/Berlin? (rules.yaml:2)
plans.csv:5: zone: "Mars" is not a time zone, must be an IANA name such as Europe/Berlin or UTC (rules.yaml:2)`,
		"align: {to: first_hit}": `
plans.csv:2: unit: is second, must be day, week, month or year for a limit with align (rules.yaml:2)
plans.csv:3: day: is 15, must be left out for a limit with to: first_hit (rules.yaml:2)
plans.csv:4: zone: is "Berlin", must be left out for a limit with to: first_hit (rules.yaml:2)
plans.csv:5: zone: is "Mars", must be left out for a limit with to: first_hit (rules.yaml:2)
plans.csv:6: day: is 9, must be left out for a limit with to: first_hit (rules.yaml:2)`,
		"name: plain": `
plans.csv:3: day: is 15, must be left out for a limit without align (rules.yaml:2)
plans.csv:4: zone: is "Berlin", must be left out for a limit without align (rules.yaml:2)
plans.csv:5: zone: is "Mars", must be left out for a limit without align (rules.yaml:2)
plans.csv:6: day: is 9, must be left out for a limit without align (rules.yaml:2)`,
	} {
		_, err := tabledRules(t, "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: month, requests_per_unit: 5, table: plans.csv, "+align+"}}]", table)
		if err == nil {
			t.Errorf("%s: no mistakes", align)
		} else if got := "\n" + err.Error(); got != want {
			t.Errorf("%s: got %s\nwant %s", align, got, want)
		}
	}
	_, err := tabledRules(t, "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: month, requests_per_unit: 5, table: plans.csv, align: {to: calendar}}}]",
		"a,1,,,0\nb,1,,,32,\nc,1,,,x\n")
	if err == nil || strings.Count(err.Error(), "must be a day of the month from 1 to 31") != 3 {
		t.Errorf("wrong days: %v", err)
	}
}

// USE_CALENDAR_MONTH_RATE_LIMIT of envoyproxy/ratelimit.
func TestMonthsOfTheOriginalAreAlignedWhereAskedFor(t *testing.T) {
	for limit, want := range map[string]string{
		"{unit: month, requests_per_unit: 5}":                                             "fixed_window/30d@month,UTC",
		"{unit: MONTH, requests_per_unit: 5}":                                             "fixed_window/30d@month,UTC",
		"{unit: month, requests_per_unit: 5, align: {to: calendar, zone: Europe/Berlin}}": "fixed_window/30d@month,Europe/Berlin",
		"{unit: month, unit_multiplier: 2, requests_per_unit: 5}":                         "fixed_window/60d",
		"{unit: day, requests_per_unit: 5}":                                               "fixed_window/1d",
		"{unit: year, requests_per_unit: 5}":                                              "fixed_window/365d",
		"{period: 720h, requests_per_unit: 5}":                                            "fixed_window/30d",
		"{unit: month, requests_per_unit: 5, algorithm: token_bucket}":                    "token_bucket/30d",
	} {
		source := Source{Name: "rules.yaml", Data: []byte("domain: edge\ndescriptors: [{key: a, value: b, rate_limit: " + limit + "}]")}
		rules := must.First(Load([]Source{source}, Options{CalendarMonths: true}))(t)
		l := &rules.All()[0].Limits[0]
		if l.Label() != want {
			t.Errorf("%s: got %s, want %s", limit, l.Label(), want)
		}
		key := AppendKey(nil, "edge", []Entry{{"a", "b"}}, l)
		original, is := AppendOriginalKey(nil, key)
		if counted := strings.HasPrefix(want, "fixed_window") && !strings.Contains(want, "Berlin") && !strings.Contains(want, "60d"); is != counted {
			t.Errorf("%s: has a key of the original %t, want %t", limit, is, counted)
		}
		if is && string(original) != "edge_a_b_" {
			t.Errorf("%s: got the key %q", limit, original)
		}
	}
}
