package descriptors

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
)

func TestLimitIsReadAsWritten(t *testing.T) {
	for _, tt := range []struct {
		name, defaults, limit, want string
	}{
		{"plain", "", "{unit: second, requests_per_unit: 5}", "fixed_window 5 per 1s burst 0 second x1 rejected true"},
		{"multiplier", "", "{unit: day, unit_multiplier: 7, requests_per_unit: 5}", "fixed_window 5 per 168h0m0s burst 0 day x7 rejected true"},
		{"period", "", "{period: 90s, requests_per_unit: 5}", "fixed_window 5 per 1m30s burst 0 second x90 rejected true"},
		{"short period", "", "{period: 100ms, requests_per_unit: 5}", "fixed_window 5 per 100ms burst 0 unknown x0 rejected true"},
		{"longest period", "", "{period: 87600h, requests_per_unit: 5}", "fixed_window 5 per 87600h0m0s burst 0 year x10 rejected true"},
		{"shortest period", "", "{period: 1ms, requests_per_unit: 5}", "fixed_window 5 per 1ms burst 0 unknown x0 rejected true"},
		{"burst", "", "{unit: second, requests_per_unit: 5, algorithm: token_bucket, burst: 7}", "token_bucket 5 per 1s burst 7 second x1 rejected false"},
		{"log", "", "{unit: second, requests_per_unit: 5, algorithm: sliding_window_log}", "sliding_window_log 5 per 1s burst 0 second x1 rejected false"},
		{"counter", "", "{unit: second, requests_per_unit: 5, algorithm: sliding_window_counter}", "sliding_window_counter 5 per 1s burst 0 second x1 rejected false"},
		{"integer", "", "{unit: second, requests_per_unit: 5, algorithm: token_bucket_integer}", "token_bucket_integer 5 per 1s burst 0 second x1 rejected false"},
		{"rejected on", "", "{unit: second, requests_per_unit: 5, algorithm: token_bucket, count_rejected: true}", "token_bucket 5 per 1s burst 0 second x1 rejected true"},
		{"rejected off", "", "{unit: second, requests_per_unit: 5, count_rejected: false}", "fixed_window 5 per 1s burst 0 second x1 rejected false"},
		{"default algorithm", "{algorithm: token_bucket}", "{unit: second, requests_per_unit: 5, burst: 7}", "token_bucket 5 per 1s burst 7 second x1 rejected false"},
		{"other than default", "{algorithm: token_bucket}", "{unit: second, requests_per_unit: 5, algorithm: fixed_window}", "fixed_window 5 per 1s burst 0 second x1 rejected true"},
		{"default rejected", "{count_rejected: true, algorithm: token_bucket}", "{unit: second, requests_per_unit: 5}", "token_bucket 5 per 1s burst 0 second x1 rejected true"},
		{"default not rejected", "{count_rejected: false}", "{unit: second, requests_per_unit: 5}", "fixed_window 5 per 1s burst 0 second x1 rejected false"},
		{"other than default rejected", "{count_rejected: false}", "{unit: second, requests_per_unit: 5, count_rejected: true}", "fixed_window 5 per 1s burst 0 second x1 rejected true"},
		{"ban", "", "{unit: second, requests_per_unit: 0}", "fixed_window 0 per 1s burst 0 second x1 rejected true"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			document := "domain: edge\ndescriptors:\n  - {key: a, rate_limit: " + tt.limit + "}\n  - {key: b, rate_limits: [" + tt.limit + "]}\ndefault: " + tt.limit
			if tt.defaults != "" {
				document += "\ndefaults: " + tt.defaults
			}
			for _, r := range load(t, document).All() {
				if len(r.Limits) != 1 {
					t.Fatalf("%s: got %d limits, want 1", r.Path, len(r.Limits))
				}
				l := r.Limits[0]
				got := fmt.Sprintf("%v %d per %v burst %d %v x%d rejected %t", l.Algorithm, l.Requests, l.Period, l.Burst, l.Unit, l.Multiplier, l.CountRejected)
				if got != tt.want {
					t.Errorf("%s: got %q, want %q", r.Path, got, tt.want)
				}
				if want := NewLimit(l.Limit, l.Unit, l.Multiplier, l.CountRejected, 1); l != want {
					t.Errorf("%s: got %+v, want that of NewLimit, %+v", r.Path, l, want)
				}
			}
		})
	}
}

func TestPeriodsAreMultiplesOfTheGranularity(t *testing.T) {
	for _, tt := range []struct {
		limit, want string // want is the mistake with microseconds
	}{
		{"{period: 1500us, requests_per_unit: 5}", ""},
		{"{period: 0.001001s, requests_per_unit: 5}", ""},
		{"{unit: week, unit_multiplier: 3, requests_per_unit: 5}", ""},
		{"{period: 1.0000005s, requests_per_unit: 5}", `rules.yaml:2: default.period: "1.0000005s" is too fine, must be a whole multiple of 1µs, the step in which the store counts time`},
		{"{period: 1ms1ns, requests_per_unit: 5}", `rules.yaml:2: default.period: "1ms1ns" is too fine, must be a whole multiple of 1µs, the step in which the store counts time`},
	} {
		sources := []Source{{Name: "rules.yaml", Data: []byte("domain: edge\ndefault: " + tt.limit)}}
		if _, _, err := Load(sources, Options{}); err != nil {
			t.Errorf("%s with any granularity: %v", tt.limit, err)
		}
		got := ""
		if _, _, err := Load(sources, Options{Granularity: time.Microsecond}); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s in microseconds: got %q, want %q", tt.limit, got, tt.want)
		}
	}
}

func TestRuleHasTheOptionsOfItsDescriptor(t *testing.T) {
	rules := load(t, `
domain: edge
descriptors:
  - key: plan
    value: free_*
    shadow_mode: true
    quota_mode: true
    detailed_metric: true
    share_threshold: true
    metadata: {Tier: free, Weight: 1, List: [true, null, {a: b}]}
    rate_limit:
      unit: hour
      requests_per_unit: 100
      name: plan
      replaces: [{name: address}, {name: other}, {name: address}]
    descriptors:
      - key: user
        value_to_metric: true
        rate_limit: {unlimited: true, name: address, requests_per_unit: 5}
  - key: names
    rate_limits:
      - {unit: second, requests_per_unit: 1, name: other, replaces: [{name: plan}]}
      - {unit: minute, requests_per_unit: 1, name: other, replaces: [{name: address}, {name: plan}]}
  - key: different_names
    rate_limits:
      - {unit: second, requests_per_unit: 1, name: seconds}
      - {unit: minute, requests_per_unit: 1}
default: {unit: second, requests_per_unit: 1, name: rest}
`)
	limit := func(l Limit, name string) Limit {
		l.Name = name
		return l
	}
	fixed := func(period time.Duration, requests uint32, u Unit) Limit {
		return NewLimit(algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: requests, Period: period}, u, 1, true, 1)
	}
	want := []*Rule{
		{
			ID: 0, Domain: "edge", Path: "plan=free_*", File: "rules.yaml", Line: 4, Name: "plan", Replaces: []string{"address", "other"},
			Limits: []Limit{limit(fixed(time.Hour, 100, Hour), "plan")}, Shadow: true, Quota: true, DetailedMetric: true,
			Metadata: map[string]any{"Tier": "free", "Weight": 1.0, "List": []any{true, nil, map[string]any{"a": "b"}}},
		},
		{ID: 1, Domain: "edge", Path: "plan=free_*,user", File: "rules.yaml", Line: 17, Name: "address", Unlimited: true},
		{
			ID: 2, Domain: "edge", Path: "names", File: "rules.yaml", Line: 20, Name: "other", Replaces: []string{"plan", "address"},
			Limits: []Limit{limit(fixed(time.Second, 1, Second), "other"), limit(fixed(time.Minute, 1, Minute), "other")},
		},
		{
			ID: 3, Domain: "edge", Path: "different_names", File: "rules.yaml", Line: 24,
			Limits: []Limit{limit(fixed(time.Second, 1, Second), "seconds"), fixed(time.Minute, 1, Minute)},
		},
		{
			ID: 4, Domain: "edge", Path: "default", File: "rules.yaml", Line: 28, Name: "rest",
			Limits: []Limit{limit(fixed(time.Second, 1, Second), "rest")},
		},
	}
	unexported := cmp.FilterPath(func(p cmp.Path) bool {
		name := p.Last().String()
		return name == ".Levels" || name == ".detailed" || name == ".rank"
	}, cmp.Ignore())
	must.Match(t, "rules", want, rules.All(), cmp.AllowUnexported(Rule{}, Limit{}), unexported)
	for i, want := range []bool{true, true, false, false, false} {
		if got := rules.All()[i].Detailed(); got != want {
			t.Errorf("rule %d is detailed: got %t, want %t", i, got, want)
		}
	}
}

func TestNoSourcesAreNoRules(t *testing.T) {
	rules, warnings, err := Load(nil, Options{})
	if err != nil || len(warnings) > 0 || rules.Len() != 0 || rules.Domain("edge") != nil {
		t.Errorf("got %v, %v, %v, want rules without domains", rules, warnings, err)
	}
	var zero Rules
	if zero.Domain("edge") != nil || zero.Len() != 0 || len(zero.Domains()) != 0 || len(zero.All()) != 0 {
		t.Error("the zero value has rules, want none")
	}
}

func TestDomainsAreSortedAndCaseSensitive(t *testing.T) {
	rules := must.First(Load([]Source{
		{Name: "1.yaml", Data: []byte("domain: b\ndescriptors: [{key: x}]")},
		{Name: "2.yaml", Data: []byte("domain: B\ndescriptors: [{key: y}]")},
		{Name: "3.yaml", Data: []byte("domain: a\ndescriptors: [{key: z}]")},
	}, Options{}))(t)
	var got []string
	for _, d := range rules.Domains() {
		got = append(got, d.Name+" "+rules.Domain(d.Name).File)
	}
	for i, r := range rules.All() {
		got = append(got, fmt.Sprint(i, " ", r.ID, " ", r.Path))
	}
	want := []string{"B 2.yaml", "a 3.yaml", "b 1.yaml", "0 0 y", "1 1 z", "2 2 x"}
	must.Match(t, "result", want, got)
}

func TestMatchOfNoEntriesIsNothing(t *testing.T) {
	d := load(t, "domain: edge\ndescriptors: [{key: a}]\ndefault: {unit: second, requests_per_unit: 1}").Domain("edge")
	if got := d.Match(nil); got != nil {
		t.Errorf("got %v, want nil", got)
	}
}

func TestEarlierWildcardCoversLater(t *testing.T) {
	for _, tt := range []struct {
		earlier, later string
		covers         bool
	}{
		{"*", "a*", true},
		{"a*", "ab*", true},
		{"a*", "ab*c", true},
		{"a*", "*", false},
		{"a*b", "a*b*", false},
		{"a*b*", "a*b", true},
		{"*b*", "a*b*c", true},
		{"*bc*", "*b*c*", false},
		{"*b*c*", "*bc*", true},
		{"a**", "a*", true},
		{"a*a", "a*", false},
		{"a*a", "a*a*a", true},
	} {
		w := newWildcard(tt.earlier)
		if got := w.test(tt.later) == yes; got != tt.covers {
			t.Errorf("%q covers %q: got %t, want %t", tt.earlier, tt.later, got, tt.covers)
		}
	}
}

func TestNearestKeyIsSuggested(t *testing.T) {
	original, own := limitForm.keys()
	for key, want := range map[string]string{
		"requestsPerUnit": "requests_per_unit", "requests-per-unit": "requests_per_unit", "request_per_unit": "requests_per_unit",
		"UNIT": "unit", "unti": "unit", "units": "unit", "brust": "burst", "algorihm": "algorithm", "replace": "replaces", "naem": "name",
		"shade": "", "x": "", "": "", "rate": "", "limit": "",
	} {
		if got := nearest(key, slices.Concat(original, own)); got != want {
			t.Errorf("nearest(%q) = %q, want %q", key, got, want)
		}
	}
}
