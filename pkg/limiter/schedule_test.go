package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/zones"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// slowEntry is an entry of a schedule for the slow model: days, and wall-clock times of the hours.
type slowEntry struct {
	text         string
	from, until  string // dates; "" for none
	days         []time.Weekday
	opens, close time.Duration // from midnight; close above 24 h is of the next day
	gives        uint64
}

func workdays() []time.Weekday {
	return []time.Weekday{time.Monday, time.Tuesday, time.Wednesday, time.Thursday, time.Friday}
}

func slowEntries() []slowEntry {
	return []slowEntry{
		{text: "{until: 2026-02-01, requests_per_unit: 1}", until: "2026-02-01", gives: 1},
		{
			text: "{from: 2026-03-28, until: 2026-03-30, days: [sat, sunday], hours: 01:30-02:30, requests_per_unit: 2}", from: "2026-03-28",
			until: "2026-03-30", days: []time.Weekday{time.Saturday, time.Sunday}, opens: 90 * time.Minute, close: 150 * time.Minute, gives: 2,
		},
		{
			text: "{days: fri-mon, hours: 22:00-06:00, requests_per_unit: 3}", opens: 22 * time.Hour, close: 30 * time.Hour, gives: 3,
			days: []time.Weekday{time.Friday, time.Saturday, time.Sunday, time.Monday},
		},
		{text: "{hours: 02:15-02:45, requests_per_unit: 4}", opens: 135 * time.Minute, close: 165 * time.Minute, gives: 4},
		{text: "{days: mon-fri, hours: 09:00-18:00, factor: 2}", days: workdays(), opens: 9 * time.Hour, close: 18 * time.Hour, gives: 200},
		{text: "{days: wed, requests_per_unit: 5}", days: []time.Weekday{time.Wednesday}, close: 24 * time.Hour, gives: 5},
		{text: "{hours: 18:30-24:00, requests_per_unit: 6}", opens: 18*time.Hour + 30*time.Minute, close: 24 * time.Hour, gives: 6},
		{text: "{from: 2026-11-15, requests_per_unit: 7}", from: "2026-11-15", gives: 7},
	}
}

// times returns the spans in which the entry holds in 2026, as Unix times.
func (e *slowEntry) times(t *testing.T, zone *time.Location) (all [][2]int64) {
	t.Helper()
	first, last := int64(0), int64(1<<40)
	date := func(text string) int64 {
		return slowFirst(zone, must.Get(time.Parse(time.DateOnly, text))(t).Unix())
	}
	if e.from != "" {
		first = date(e.from)
	}
	if e.until != "" {
		last = date(e.until)
	}
	if e.close == 0 {
		return [][2]int64{{first, last}}
	}
	for d := time.Date(2025, 12, 25, 0, 0, 0, 0, time.UTC); d.Year() < 2027 || d.YearDay() < 10; d = d.AddDate(0, 0, 1) {
		opens, shuts := slowFirst(zone, d.Add(e.opens).Unix()), slowFirst(zone, d.Add(e.close).Unix())
		if skipped := slowFirst(zone, d.AddDate(0, 0, 1).Unix()) == slowFirst(zone, d.Unix()); skipped {
			continue
		}
		if from, until := max(opens, first), min(shuts, last); from < until && (e.days == nil || slices.Contains(e.days, d.Weekday())) {
			all = append(all, [2]int64{from, until})
		}
	}
	return all
}

// scheduledLimiter returns a limiter with one limit of 100 per minute with these entries.
func scheduledLimiter(t *testing.T, zone string, entries []slowEntry, clock *atomic.Int64) *limiter.Limiter {
	t.Helper()
	counts := must.Get(memstore.New(memstore.Options{MaxKeys: 4, Virtual: func() algorithms.Instant { return algorithms.Instant(clock.Load()) }}))(t)
	t.Cleanup(counts.Close)
	l := must.Get(limiter.New(counts, limiter.Options{Now: func() time.Time { return time.Unix(0, clock.Load()) }}))(t)
	var texts []string
	for _, e := range entries {
		texts = append(texts, strings.Replace(e.text, "{", "{zone: "+zone+", ", 1))
	}
	text := "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 100, schedule: [" + strings.Join(texts, ", ") + "]}}]"
	l.SetRules(must.First(descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(text)}}, descriptors.Options{}))(t))
	return l
}

// Each edge of 2026 in ten zones is exact to the nanosecond, against spans that a slow model finds
// minute by minute.
func TestEdgesOfSchedulesAreExact(t *testing.T) {
	for _, name := range []string{
		"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Beirut", "America/Santiago", "America/Havana",
		"Antarctica/Troll", "Pacific/Chatham", "UTC",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			zone, random := must.Get(zones.Load(name))(t), rand.New(rand.NewPCG(1, 2))
			all, spans := slowEntries(), make(map[string][][2]int64)
			for i := range all {
				spans[all[i].text] = all[i].times(t, zone)
			}
			for n := range 12 {
				entries := all
				if n > 0 {
					entries = slices.Clone(all)
					random.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
					entries = entries[:1+random.IntN(len(entries))]
				}
				checkEdges(t, zone, entries, spans)
				if race.Short() {
					break
				}
			}
		})
	}
}

// checkEdges compares the numbers of entries with their spans, which have the texts of the entries.
func checkEdges(t *testing.T, zone *time.Location, entries []slowEntry, of map[string][][2]int64) {
	t.Helper()
	var clock atomic.Int64 // the sweep reads it too
	l := scheduledLimiter(t, zone.String(), entries, &clock)
	spans := make([][][2]int64, len(entries))
	var edges []int64
	for i := range entries {
		spans[i] = of[entries[i].text]
		for _, s := range spans[i] {
			edges = append(edges, s[0], s[1])
		}
	}
	slices.Sort(edges)
	want := func(second int64) uint64 {
		for i := range entries {
			if slices.ContainsFunc(spans[i], func(s [2]int64) bool { return second >= s[0] && second < s[1] }) {
				return entries[i].gives
			}
		}
		return 100
	}
	var v limiter.Verdict
	for _, edge := range slices.Compact(edges) {
		if at := time.Unix(edge, 0).UTC(); at.Year() != 2026 {
			continue
		}
		for _, at := range []int64{edge*1e9 - 1, edge * 1e9} {
			clock.Store(at)
			must.Do(t, l.Check(t.Context(), request("edge", "a=x"), &v))
			second := at / 1e9
			if got := v.Statuses[0].Limit.PerPeriod(); got != want(second) {
				t.Fatalf("%s: %v: got %d, want %d\n%s", zone, time.Unix(0, at).In(zone), got, want(second), fmt.Sprint(entries))
			}
		}
	}
}

// scheduled is a limiter with an hour of twice the limit, from ten o'clock, in virtual time.
func scheduled(t *testing.T, limit string) (admits func(at string, hits int) (admitted int, wait time.Duration)) {
	t.Helper()
	var clock atomic.Int64 // the sweep reads it too
	counts := must.Get(memstore.New(memstore.Options{MaxKeys: 4, Virtual: func() algorithms.Instant { return algorithms.Instant(clock.Load()) }}))(t)
	t.Cleanup(counts.Close)
	l := must.Get(limiter.New(counts, limiter.Options{Now: func() time.Time { return time.Unix(0, clock.Load()) }}))(t)
	text := "domain: edge\ndescriptors: [{key: a, rate_limit: {" + limit + ", schedule: [{hours: 10:00-11:00, factor: 2}]}}]"
	l.SetRules(must.First(descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(text)}}, descriptors.Options{}))(t))
	var v limiter.Verdict
	return func(at string, hits int) (admitted int, wait time.Duration) {
		clock.Store(must.Get(time.Parse(time.DateTime, "2026-11-28 "+at))(t).UnixNano())
		for range hits {
			must.Do(t, l.Check(t.Context(), request("edge", "a=x"), &v))
			if !v.OverLimit {
				admitted++
			}
		}
		return admitted, v.Statuses[0].Decision.RetryAfter
	}
}

// A rise forgives no window, and a fall neither: the count goes on under the other number.
func TestTheCountOfAWindowGoesOnOverAnEdge(t *testing.T) {
	admits := scheduled(t, "unit: day, requests_per_unit: 10, count_rejected: false")
	for _, c := range []struct {
		at   string
		want int
		wait time.Duration
	}{
		{"09:00:00", 10, time.Hour}, // may pass at ten, when the number rises
		{"10:00:00", 10, 14 * time.Hour},
		{"11:00:00", 0, 13 * time.Hour},
		{"23:59:59", 0, time.Second},
	} {
		if got, wait := admits(c.at, 25); got != c.want || wait != c.wait {
			t.Errorf("%s: %d admitted, then a wait of %v; want %d and %v", c.at, got, wait, c.want, c.wait)
		}
	}
}

// A bucket that fell has at most the smaller burst. One that rose gains up to the larger one.
func TestABucketIsClippedAtAFallingEdge(t *testing.T) {
	admits := scheduled(t, "algorithm: token_bucket, unit: minute, requests_per_unit: 10")
	for _, c := range []struct {
		at   string
		want int
		wait time.Duration
	}{
		{"09:59:50", 10, 6 * time.Second},
		{"10:00:00", 1, 2 * time.Second}, // of 10 s at 10 a minute, 1.67
		{"10:01:00", 20, 3 * time.Second},
		{"11:30:00", 10, 6 * time.Second},
	} {
		got, wait := admits(c.at, 30)
		if d := wait - c.wait; got != c.want || d > 0 || d < -3*time.Second {
			t.Errorf("%s: %d admitted, then a wait of %v; want %d and about %v", c.at, got, wait, c.want, c.wait)
		}
	}
}

// More hits than the limit has now are not hopeless if an entry has room for them. The bubble
// begins on Saturday, 1 January 2000, 00:00.
func TestHitsThatFitLaterAreNotHopeless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 10, schedule: ["+
			"{days: sun, requests_per_unit: 20}, {days: mon, factor: 0.1}]}}]")
		var v limiter.Verdict
		for hits, want := range map[int]bool{11: false, 20: false, 21: true} {
			must.Do(t, f.Check(t.Context(), request("edge", fmt.Sprintf("a=%d hits=%d", hits, hits)), &v))
			if s := v.Statuses[0]; !s.OverLimit || s.Never != want {
				t.Errorf("%d hits: over limit %v, never %v, want %v", hits, s.OverLimit, s.Never, want)
			}
		}
	})
}

// A grant with a number stands in place of the schedule. A factor multiplies the number of now, and
// added hits join it.
func TestGrantsMeetTheNumberOfTheSchedule(t *testing.T) {
	const text = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 10, schedule: [{hours: 00:00-01:00, factor: 2}]}}]"
	for _, c := range []struct {
		gives      limiter.Grant
		now, later int
	}{
		{limiter.Grant{Gives: limiter.GivesFactor, Factor: 3}, 60, 30},
		{requests(7), 7, 7},
		{limiter.Grant{Gives: limiter.GivesAdd, Requests: 5, From: time.Unix(0, 0)}, 25, 15},
		{limiter.Grant{Gives: limiter.GivesUnlimited}, 100, 100},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := &granting{fixture: newFixtureWith(t, text, limiter.Options{Now: time.Now})}
			given := grant("1", "a=x", c.gives)
			given.Until = time.Now().Add(2 * time.Hour)
			g.ChangeGrants(nil, []*limiter.Grant{given})
			if before := must.Get(g.Grantable(given))(t).Before[0].PerPeriod(); before != 20 {
				t.Errorf("%d gives: before %d, want 20", c.gives.Gives, before)
			}
			if got := g.admits(t, "a=x"); got != c.now {
				t.Errorf("%d gives: %d admitted, want %d", c.gives.Gives, got, c.now)
			}
			time.Sleep(time.Hour)
			if got := g.admits(t, "a=x"); got != c.later {
				t.Errorf("%d gives, an hour later: %d admitted, want %d", c.gives.Gives, got, c.later)
			}
		})
	}
}

// An override comes with the request, and the schedule of the rule has no say.
func TestAnOverrideHasNoSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 10, schedule: [{days: mon-sun, hours: 00:00-24:00, factor: 2}]}}]")
		var v limiter.Verdict
		must.Do(t, f.Check(t.Context(), request("edge", "a=x override=5"), &v))
		if got := v.Statuses[0].Limit.PerPeriod(); got != 5 {
			t.Errorf("%d per minute, want 5", got)
		}
	})
}

// A factor multiplies the number of a table's line.
func TestAFactorMultipliesTheNumbersOfATable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		const text = "domain: edge\ndescriptors: [{key: tenant, rate_limit: {table: t.csv, unit: minute, requests_per_unit: 4, schedule: [{hours: 00:00-01:00, factor: 2.5}]}}]"
		for name, text := range map[string]string{"rules.yaml": text, "t.csv": "gold,3\nbanned,0\n"} {
			must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		g := &granting{fixture: newFixture(t, "domain: edge\n")}
		_ = must.Get(g.LoadFiles(filepath.Join(dir, "rules.yaml")))(t)
		for hour, want := range []map[string]int{{"gold": 8, "banned": 0, "other": 10}, {"gold": 3, "banned": 0, "other": 4}} {
			for tenant, n := range want {
				if got := g.admits(t, "tenant="+tenant); got != n {
					t.Errorf("hour %d, %s: %d admitted, want %d", hour, tenant, got, n)
				}
			}
			time.Sleep(time.Hour)
		}
	})
}

// A reload keeps the count of a limit whose schedule changes. A limit of another period takes the
// hits over, also from a limit that its schedule alone has opened.
func TestCountsGoOnWhereAScheduleChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := func(limit string) string { return "domain: edge\ndescriptors: [{key: a, rate_limit: {" + limit + "}}]" }
		g := &granting{fixture: newFixtureWith(t, rules("unit: day, count_rejected: false, requests_per_unit: 0, schedule: [{hours: 00:00-02:00, requests_per_unit: 20}]"),
			limiter.Options{Now: time.Now})}
		for _, step := range []struct {
			rules string
			want  int
		}{
			{"", 20},
			{"unit: day, count_rejected: false, requests_per_unit: 0, schedule: [{hours: 00:00-02:00, requests_per_unit: 30}]", 10},
			{"unit: hour, count_rejected: false, requests_per_unit: 50", 20},
			{"unit: hour, count_rejected: false, requests_per_unit: 50, schedule: [{days: sat, factor: 1.2}]", 10},
		} {
			if step.rules != "" {
				g.rules(rules(step.rules))
			}
			if got := g.admits(t, "a=x"); got != step.want {
				t.Errorf("%s: %d admitted, want %d", step.rules, got, step.want)
			}
		}
	})
}

// A request under a schedule allocates nothing.
func TestSchedulesAllocateNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	f := newFixture(t, "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 10, schedule: ["+
		"{days: mon-fri, hours: 09:00-18:00, factor: 2}, {hours: 00:00-24:00, factor: 3}]}}]")
	r, v := request("edge", "a=x"), new(limiter.Verdict)
	if n := testing.AllocsPerRun(1000, func() { must.Do(t, f.Check(t.Context(), r, v)) }); n > 0 {
		t.Errorf("%v allocations for each request, want 0", n)
	}
}
