package suggest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/internal/lab/records"
	"github.com/weirproxy/weir/internal/lab/simulate"
	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

func load(tb testing.TB, documents ...string) *descriptors.Rules {
	tb.Helper()
	var sources []descriptors.Source
	for i, d := range documents {
		sources = append(sources, descriptors.Source{Name: fmt.Sprintf("rules%d.yaml", i), Data: []byte(d)})
	}
	rules, warnings, err := descriptors.Load(sources, descriptors.Options{})
	if err != nil || len(warnings) > 0 {
		tb.Fatalf("%v, %v in\n%s", err, warnings, strings.Join(documents, "\n---\n"))
	}
	return rules
}

const start = algorithms.Instant(1_800_000_000 * time.Second)

// record returns a request of one descriptor. pairs is its keys and values in turn.
func record(after time.Duration, hits uint64, pairs ...string) *records.Record {
	d := limiter.Descriptor{Hits: hits}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, limiter.Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return &records.Record{At: start + algorithms.Instant(after), Request: limiter.Request{Domain: "edge", Descriptors: []limiter.Descriptor{d}}}
}

// late returns a request that makes a record longer, and says nothing about a limit.
func late(after time.Duration) *records.Record {
	r := record(after, 0, "client", "1")
	r.Request.Descriptors[0].Probe = true
	return r
}

func suggestions(tb testing.TB, o Options, g Goal, traffic []*records.Record) (*Result, []string) {
	tb.Helper()
	c := New(o)
	for _, r := range traffic {
		c.Add(r)
	}
	r := must.Get(c.Result(g))(tb)
	return r, yamlOf(tb, r)
}

func yamlOf(tb testing.TB, r *Result) (all []string) {
	tb.Helper()
	documents := must.Get(r.Documents())(tb)
	for _, d := range documents {
		all = append(all, d.YAML)
	}
	return all
}

func simulated(tb testing.TB, documents []string, traffic []*records.Record) simulate.Result {
	tb.Helper()
	s := must.Get(simulate.New(simulate.Options{Rules: load(tb, documents...)}))(tb)
	defer s.Close()
	for _, r := range traffic {
		s.Decide(r)
	}
	return s.Result()
}

// skewed returns traffic of clients, of which few send most.
func skewed(seed uint64, many int, key string) (all []*records.Record) {
	r := rand.New(rand.NewPCG(seed, 1))
	zipf := rand.NewZipf(r, 1.2, 2, 3000)
	at := time.Duration(0)
	for range many {
		at += time.Duration(r.ExpFloat64() * float64(20*time.Millisecond))
		all = append(all, record(at, uint64(r.IntN(3)), key, fmt.Sprint(zipf.Uint64())))
	}
	return all
}

// The suggested rules load, and deny no more than the goal allows, under each algorithm, after the
// check that the command makes.
func TestSuggestedRulesDenyAsLittleAsTheGoalSays(t *testing.T) {
	race.Without(t)
	for _, algorithm := range []string{"", "fixed_window", "token_bucket", "sliding_window_log", "sliding_window_counter", "token_bucket_integer"} {
		for _, g := range []Goal{{0.001, 0.999, descriptors.Minute}, {0.05, 0.5, descriptors.Second}, {0, 1, descriptors.Hour}} {
			t.Run(fmt.Sprint(algorithm, g), func(t *testing.T) {
				o := Options{}
				if algorithm != "" {
					o.Rules = load(t, "domain: edge\ndescriptors:\n- {key: client, rate_limit: {algorithm: "+algorithm+", unit: "+g.Unit.String()+", requests_per_unit: 3}}\n")
				}
				traffic := append(skewed(7, 40_000, "client"), late(2*time.Hour))
				r, documents := suggestions(t, o, g, traffic)
				var got simulate.Result
				for range 10 {
					got = simulated(t, documents, traffic)
					if !r.Check(&got, g) {
						break
					}
					documents = yamlOf(t, r)
				}
				row := got.Rules[0]
				denied, keys := float64(row.Denied)/float64(row.Requests), float64(row.KeysDenied)/float64(r.Shapes[0].Keys)
				if len(got.Rules) != 1 || row.Rule != "client" || denied > g.Deny || keys > 1-g.Keys || !r.Shapes[0].Checked {
					t.Errorf("%v of the hits and %v of the keys are denied: %+v\n%s", denied, keys, row, documents)
				}
				if limit := r.Shapes[0].Limits[0]; algorithm == "" && g.Deny > 0 && limit.Requests > 2*r.Shapes[0].Windows[len(r.Shapes[0].Windows)-1].Max {
					t.Errorf("%d is far more than any key needs: %+v", limit.Requests, r.Shapes[0].Windows)
				}
			})
		}
	}
}

// The goal decides: hits, keys, the larger of the two, and rounding up to two digits.
func TestTheSmallestLimitThatMeetsTheGoal(t *testing.T) {
	var traffic []*records.Record
	for k := range 100 { // 99 keys with 1 to 99 hits in a minute, and one with 1000
		hits := uint64(k + 1)
		if k == 99 {
			hits = 1000
		}
		traffic = append(traffic, record(0, hits, "client", fmt.Sprint(k)))
	}
	traffic = append(traffic, late(2*time.Hour))
	for name, c := range map[string]struct {
		g    Goal
		want uint64
	}{
		"nothing denied":      {Goal{Deny: 0, Keys: 0, Unit: descriptors.Minute}, 1000},
		"all keys":            {Goal{Deny: 1, Keys: 1, Unit: descriptors.Minute}, 1000},
		"half of the keys":    {Goal{Deny: 1, Keys: 0.5, Unit: descriptors.Minute}, 50},
		"99% of the keys":     {Goal{Deny: 1, Keys: 0.99, Unit: descriptors.Hour}, 99},
		"900 of 5950 hits":    {Goal{Deny: 900.0 / 5950, Keys: 0, Unit: descriptors.Minute}, 100},
		"877 hits, rounded":   {Goal{Deny: 877.0 / 5950, Keys: 0, Unit: descriptors.Minute}, 130},
		"everything":          {Goal{Deny: 1, Keys: 0, Unit: descriptors.Second}, 1},
		"the larger of both":  {Goal{Deny: 900.0 / 5950, Keys: 1, Unit: descriptors.Minute}, 1000},
		"the larger of both2": {Goal{Deny: 0, Keys: 0.5, Unit: descriptors.Minute}, 1000},
	} {
		r, _ := suggestions(t, Options{}, c.g, traffic)
		if got := r.Shapes[0].Limits[0].Requests; got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

// Rules keep their place, modes, algorithm, name and period; new ones stand beside them.
func TestSuggestionsAreReadyToPaste(t *testing.T) {
	const rules = `
domain: edge
default: {unit: day, requests_per_unit: 7}
descriptors:
- key: path
  value: /b*
  descriptors:
  - {key: client, shadow_mode: true, detailed_metric: true, rate_limit: {name: own, algorithm: token_bucket, period: 90s, requests_per_unit: 2, burst: 6, on_store_error: deny, sharing: exact}}
- key: path
  value: "*"
  share_threshold: true
  rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 1, count_rejected: false}
- key: two
  rate_limits: [{unit: second, requests_per_unit: 1}, {unit: hour, requests_per_unit: 2}]
- {key: free, rate_limit: {unlimited: true}}
- {key: none}
`
	o := Options{Rules: load(t, rules)}
	var traffic []*records.Record
	for i := range 12 {
		at := time.Duration(i) * time.Second
		traffic = append(traffic,
			record(at, 1, "path", "/best", "client", "x"), record(at, 1, "path", fmt.Sprint(i)), record(at, 2, "two", "true"),
			record(at, 1, "free", "x"), record(at, 3, "none", "x"), record(at, 1, "unknown", "x"), record(at, 1, "none", "x", "123", "null: # [x]\n"))
	}
	other := record(time.Minute, 1, "a", "b")
	other.Request.Domain = "yes"
	traffic = append(traffic, other, record(0, 0, "client", "x"), late(48*time.Hour))
	r, documents := suggestions(t, o, Goal{Deny: 0, Keys: 1, Unit: descriptors.Minute}, traffic)
	want := `domain: edge
# hits: 25, keys: 3; now 7, in rules0.yaml:3
# most per second: half of the keys 1, 99% of the keys 1, all 1
# most per minute: half of the keys 12, 99% of the keys 12, all 12
# most per hour: half of the keys 12, 99% of the keys 12, all 12
# most per day: half of the keys 12, 99% of the keys 12, all 12
default: {unit: day, requests_per_unit: 12}
`
	if got := documents[0]; !strings.HasPrefix(got, want) {
		t.Errorf("got\n%s\nwant it to begin with\n%s", got, want)
	}
	for _, line := range []string{
		"share_threshold: true", "shadow_mode: true", "detailed_metric: true",
		"rate_limit: {name: own, algorithm: token_bucket, unit: second, unit_multiplier: 90, requests_per_unit: 12, burst: 36, on_store_error: deny, sharing: exact}",
		"rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 12, count_rejected: false}",
		"- {unit: second, requests_per_unit: 2}", "- {unit: hour, requests_per_unit: 24}",
	} {
		if !strings.Contains(documents[0], line) {
			t.Errorf("%s is not in\n%s", line, documents[0])
		}
	}
	if !strings.HasPrefix(documents[1], `domain: "yes"`) {
		t.Errorf("the second document: %s", documents[1])
	}
	if r.Skipped.Unlimited != 12 {
		t.Errorf("skipped %+v", r.Skipped)
	}
	if got := simulated(t, documents, traffic); got.Denied != 0 {
		t.Errorf("%d are denied: %+v", got.Denied, got.Rules)
	}
}

// Fourteen hits in seven seconds say nothing about a minute: 14 would deny most of a day.
func TestALimitLongerThanTheRecordIsNotGuessed(t *testing.T) {
	const rules = `
domain: edge
descriptors:
- key: client
  rate_limits: [{unit: second, requests_per_unit: 1}, {unit: minute, requests_per_unit: 20}]
`
	var traffic []*records.Record
	for i := range 15 {
		at := time.Duration(i) * 500 * time.Millisecond
		traffic = append(traffic, record(at, 1, "client", "a"), record(at, 1, "new", "a"))
	}
	g := Goal{Keys: 1, Unit: descriptors.Hour}
	r, documents := suggestions(t, Options{Rules: load(t, rules)}, g, traffic)
	for _, s := range r.Shapes {
		if s.New {
			must.Match(t, "a new limit", []time.Duration{time.Second, 2}, []time.Duration{s.Limits[0].Period, time.Duration(s.Limits[0].Requests)})
			continue
		}
		if a, b := s.Limits[0], s.Limits[1]; a.Stays || a.Requests != 2 || !b.Stays || b.Requests != 20 {
			t.Errorf("limits: got %+v, want 2 a second, and 20 a minute as it is", s.Limits)
		}
	}
	for _, line := range []string{"# 20/minute stays: the record has no whole minute", "- {unit: minute, requests_per_unit: 20}"} {
		if !strings.Contains(documents[0], line) {
			t.Errorf("%s is not in\n%s", line, documents[0])
		}
	}
	c := New(Options{})
	c.Add(record(0, 1, "client", "a"))
	if _, err := c.Result(g); !errors.Is(err, ErrShort) {
		t.Errorf("a record of one instant: got %v, want %v", err, ErrShort)
	}
}

// A limit that stays is not raised, however much it denies.
func TestALimitThatStaysIsNotRaised(t *testing.T) {
	var traffic []*records.Record
	for i := range 10 {
		traffic = append(traffic, record(time.Duration(i)*time.Second, 1, "client", "a"))
	}
	o := Options{Rules: load(t, "domain: edge\ndescriptors:\n- {key: client, rate_limit: {unit: hour, requests_per_unit: 3}}\n")}
	g := Goal{Keys: 1, Unit: descriptors.Minute}
	r, documents := suggestions(t, o, g, traffic)
	got := simulated(t, documents, traffic)
	if r.Check(&got, g) || r.Shapes[0].Limits[0].Requests != 3 || r.Shapes[0].Denied != 0.7 {
		t.Errorf("got %+v, want 3 an hour as it is, and 70%% denied", r.Shapes[0])
	}
}

// Descriptors that say nothing about a limit are counted as such.
func TestSkippedDescriptors(t *testing.T) {
	c := New(Options{MaxKeys: 2, Rules: load(t, "domain: edge\ndescriptors:\n- {key: m, rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: r, end: d, at_most: 1s}}}\n")})
	refund, probe, override := record(0, 1, "a", "b"), record(0, 0, "a", "b"), record(0, 0, "a", "b")
	refund.Request.Descriptors[0].Refund = true
	probe.Request.Descriptors[0].Probe = true
	override.Request.Descriptors[0].Override = new(limiter.Override)
	for _, r := range []*records.Record{refund, probe, override, record(0, 1, "m", "x", "r", "1"), record(0, 1), record(0, 1, "k", "1"), record(0, 1, "k", "2"), record(0, 1, "k", "3")} {
		c.Add(r)
	}
	c.Add(late(2 * time.Second))
	r := must.Get(c.Result(Goal{Unit: descriptors.Second}))(t)
	if want := (Skipped{Overrides: 1, Refunds: 1, Probes: 2, Holders: 1, Untracked: 2}); r.Skipped != want || len(r.Shapes) != 1 || r.Shapes[0].Keys != 2 {
		t.Errorf("got %+v and %+v, want %+v", r.Skipped, r.Shapes, want)
	}
}

// Keys with numbers in a table keep these: only other keys count, and the rule keeps its table.
func TestTablesStay(t *testing.T) {
	table := descriptors.NewTable("rules/tables/t.csv", []byte("big,1000\n"))
	source := descriptors.Source{
		Name: "rules/edge.yaml", Table: func(string) (*descriptors.Table, error) { return table, nil },
		Data: []byte("domain: edge\ndescriptors:\n- {key: client, rate_limit: {table: tables/t.csv, unit: minute, requests_per_unit: 5}}\n"),
	}
	rules := must.First(descriptors.Load([]descriptors.Source{source}, descriptors.Options{}))(t)
	traffic := []*records.Record{record(0, 900, "client", "big"), record(0, 7, "client", "small"), late(2 * time.Minute)}
	r, documents := suggestions(t, Options{Rules: rules}, Goal{Keys: 1, Unit: descriptors.Minute}, traffic)
	if r.Skipped.Tabled != 1 || !strings.Contains(documents[0], "rate_limit: {table: tables/t.csv, unit: minute, requests_per_unit: 7}") {
		t.Errorf("%+v\n%s", r.Skipped, documents[0])
	}
	again, _, err := descriptors.Load([]descriptors.Source{{Name: "x", Data: []byte(documents[0]), Table: r.Table}}, descriptors.Options{})
	if err != nil || again.Domains()[0].Match(traffic[0].Request.Descriptors[0].Entries).Limits[0].Table() != table {
		t.Errorf("the suggested rules: %v", err)
	}
	s := must.Get(simulate.New(simulate.Options{Rules: again}))(t)
	defer s.Close()
	for _, one := range traffic {
		s.Decide(one)
	}
	if got := s.Result(); got.Denied != 0 || r.Check(&got, Goal{Keys: 1}) || r.Shapes[0].Checked {
		t.Errorf("%+v", got)
	}
}

// A rule with a budget stays as it is, also one that learns its estimates.
func TestBudgetsStay(t *testing.T) {
	table := descriptors.NewTable("rules/p.csv", []byte("model,input,cached_input,cache_write,output\n*,1,1,1,1\n"))
	source := descriptors.Source{
		Name: "rules/llm.yaml", Table: func(string) (*descriptors.Table, error) { return table, nil },
		Data: []byte("domain: llm\ndescriptors:\n- {key: team, rate_limit: {budget: 0.5, unit: day, prices: {table: p.csv, unknown: default}, " +
			"hold: {begin: r, end: d, at_most: 1m, estimate: {learned: {quantile: 0.9, ceiling: 0.25}}}}}\n- {key: client, rate_limit: {unit: minute, requests_per_unit: 5}}\n"),
	}
	rules := must.First(descriptors.Load([]descriptors.Source{source}, descriptors.Options{}))(t)
	begin := record(0, 1, "team", "a", descriptors.UsageKey, descriptors.NoUsage, "r", "1")
	traffic := []*records.Record{begin, record(0, 7, "client", "small"), late(2 * time.Minute)}
	for _, one := range traffic {
		one.Request.Domain = "llm"
	}
	r, documents := suggestions(t, Options{Rules: rules}, Goal{Keys: 1, Unit: descriptors.Minute}, traffic)
	again, _, err := descriptors.Load([]descriptors.Source{{Name: "x", Data: []byte(documents[0]), Table: r.Table}}, descriptors.Options{})
	if err != nil {
		t.Fatalf("the suggested rules: %v\n%s", err, documents[0])
	}
	entries := []descriptors.Entry{{Key: "team", Value: "a"}, {Key: descriptors.UsageKey, Value: descriptors.NoUsage}, {Key: "r", Value: "1"}}
	was, is := rules.Domains()[0].Match(entries).Limits[0], again.Domains()[0].Match(entries).Limits[0]
	if is.Limit != was.Limit || !is.Money || is.PriceTable() != table || is.UnknownModels() != "default" || is.Estimate != was.Estimate {
		t.Errorf("the suggested limit is %+v, was %+v", is, was)
	}
}

// Clients may send any keys: shapes are bounded.
func TestShapesAreBounded(t *testing.T) {
	c := New(Options{})
	for i := range 3 * maxShapes {
		c.Add(record(0, 1, fmt.Sprint("key", i), "x"))
	}
	c.Add(late(2 * time.Second))
	if r := must.Get(c.Result(Goal{Unit: descriptors.Second}))(t); len(r.Shapes) != maxShapes || r.Skipped.Untracked != 2*maxShapes {
		t.Errorf("%d shapes, %+v", len(r.Shapes), r.Skipped)
	}
}

// The histogram agrees with a list of all numbers, up to the width of a bucket.
func TestAHistogramAgreesWithAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.OneOf(rapid.Uint32Range(1, 50), rapid.Uint32Range(1, 5000), rapid.Uint32()), 1, 200).Draw(t, "numbers")
		part := rapid.Float64Range(0, 1).Draw(t, "part")
		var h histogram
		sum := uint64(0)
		for i := range all {
			all[i] = max(all[i], 1)
			h.add(uint64(all[i]))
			sum += uint64(all[i])
		}
		slices.Sort(all)
		within := 0
		q := h.quantile(part)
		for _, n := range all {
			if uint64(n) <= q {
				within++
			}
		}
		if float64(within) < part*float64(len(all)) {
			t.Fatalf("the quantile %v is %d, and %d of %d are within", part, q, within, len(all))
		}
		excess := uint64(part * float64(sum))
		n := h.bound(excess)
		over := func(n uint64) (sum uint64) {
			for _, x := range all {
				sum += max(uint64(x), n) - n
			}
			return sum
		}
		if slack := sum / 256; over(n) > excess+slack || n > 1 && over(n-1-n/256) <= excess {
			t.Fatalf("the bound for %d is %d, which %d exceed", excess, n, over(n))
		}
	})
}

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{
			"internal/lockfile", "internal/metrics", "internal/regular", "internal/lab", "internal/lab/records", "internal/lab/simulate", "internal/top", "internal/ranges", "internal/spelling", "internal/timespan", "internal/zones", "pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store",
			"pkg/store/memstore",
		},
		Never: []string{"google.golang.org/grpc", "github.com/envoyproxy", "github.com/redis", "github.com/spf13"},
	})
}
