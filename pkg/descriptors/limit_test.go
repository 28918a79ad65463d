package descriptors

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
)

func TestUnitNamesAreReadInAnyCase(t *testing.T) {
	for name, want := range map[string]Unit{
		"second": Second, "Minute": Minute, "HOUR": Hour, "dAy": Day, "week": Week, "MONTH": Month, "year": Year,
		"unknown": UnitUnknown, "UNKNOWN": UnitUnknown, "": UnitUnknown, "seconds": UnitUnknown, "s": UnitUnknown,
	} {
		got, ok := ParseUnit(name)
		if got != want || ok != (want != UnitUnknown) {
			t.Errorf("ParseUnit(%q) = %v, %t, want %v", name, got, ok, want)
		}
	}
}

func TestUnitsReadTheirOwnNames(t *testing.T) {
	for u := range Unit(9) {
		got, ok := ParseUnit(u.String())
		if want := u.Duration() != 0; ok != want || ok && got != u {
			t.Errorf("ParseUnit(%q) = %v, %t, want %v, %t", u, got, ok, u, want)
		}
	}
}

func TestPeriodIsReportedInItsLargestUnit(t *testing.T) {
	for _, tt := range []struct {
		period     time.Duration
		unit       Unit
		multiplier uint32
	}{
		{time.Second, Second, 1},
		{90 * time.Second, Second, 90},
		{2 * time.Minute, Minute, 2},
		{90 * time.Minute, Minute, 90},
		{24 * time.Hour, Day, 1},
		{168 * time.Hour, Week, 1},
		{336 * time.Hour, Week, 2},
		{720 * time.Hour, Month, 1},
		{8760 * time.Hour, Year, 1},
		{87600 * time.Hour, Year, 10},
		{87600*time.Hour - time.Second, Second, 315_359_999},
		{100 * time.Millisecond, UnitUnknown, 0},
		{1001 * time.Millisecond, UnitUnknown, 0},
		{0, UnitUnknown, 0},
	} {
		if unit, multiplier := unitOf(tt.period); unit != tt.unit || multiplier != tt.multiplier {
			t.Errorf("%v: got %v x %d, want %v x %d", tt.period, unit, multiplier, tt.unit, tt.multiplier)
		}
	}
}

// of returns a text of each limit, by the path of its rule.
func of(t *testing.T, document string, text func(Limit) string) map[string][]string {
	t.Helper()
	all := make(map[string][]string)
	for _, r := range load(t, document).All() {
		for _, l := range r.Limits {
			all[r.Path] = append(all[r.Path], text(l))
		}
	}
	return all
}

func TestOnStoreErrorIsThatOfTheNearest(t *testing.T) {
	const limits = `
descriptors:
  - key: inherits
    rate_limit: {unit: second, requests_per_unit: 1}
    descriptors:
      - {key: below, rate_limit: {unit: second, requests_per_unit: 1}}
  - key: rule
    on_store_error: allow
    rate_limits:
      - {unit: second, requests_per_unit: 1}
      - {unit: minute, requests_per_unit: 1, on_store_error: local}
      - {unit: hour, requests_per_unit: 1, on_store_error: deny}
    descriptors:
      - {key: below, rate_limit: {unit: second, requests_per_unit: 1}}
  - key: limit
    rate_limit: {unit: second, requests_per_unit: 1, on_store_error: deny}
`
	for defaults, want := range map[string]map[string][]string{
		"default: {unit: second, requests_per_unit: 1}": {
			"inherits": {"unset"}, "inherits,below": {"unset"}, "rule": {"allow", "local", "deny"}, "rule,below": {"unset"},
			"limit": {"deny"}, "default": {"unset"},
		},
		"defaults: {on_store_error: deny}\ndefault: {unit: second, requests_per_unit: 1, on_store_error: allow}": {
			"inherits": {"deny"}, "inherits,below": {"deny"}, "rule": {"allow", "local", "deny"}, "rule,below": {"deny"},
			"limit": {"deny"}, "default": {"allow"},
		},
	} {
		got := of(t, "domain: edge\n"+defaults+limits, func(l Limit) string { return l.OnStoreError.String() })
		must.Match(t, defaults, want, got)
	}
}

func TestSharingIsOfTheLimitElseOfTheDefaults(t *testing.T) {
	const limits = `
default: {unit: second, requests_per_unit: 1}
descriptors:
  - {key: silent, rate_limit: {unit: second, requests_per_unit: 1}}
  - key: several
    rate_limits:
      - {unit: second, requests_per_unit: 1, sharing: leased}
      - {unit: minute, requests_per_unit: 1, sharing: exact}
      - {unit: hour, requests_per_unit: 1}
`
	for defaults, want := range map[string]map[string][]string{
		"":                            {"default": {"unset"}, "silent": {"unset"}, "several": {"leased", "exact", "unset"}},
		"defaults: {sharing: leased}": {"default": {"leased"}, "silent": {"leased"}, "several": {"leased", "exact", "leased"}},
		"defaults: {sharing: exact}":  {"default": {"exact"}, "silent": {"exact"}, "several": {"leased", "exact", "exact"}},
	} {
		got := of(t, "domain: edge\n"+defaults+limits, func(l Limit) string { return l.Sharing.String() })
		must.Match(t, defaults, want, got)
	}
}

func TestAChoiceIsReadByTheNameItIsShownAs(t *testing.T) {
	for option, c := range map[string]struct {
		text         func(Limit) string
		names, wrong []string
		must         string
	}{
		"on_store_error": {
			func(l Limit) string { return l.OnStoreError.String() },
			[]string{"local", "allow", "deny"},
			[]string{`""`, "unset", "Local", "DENY", "fail", "on_store_error(9)"},
			"local, allow or deny",
		},
		"sharing": {
			func(l Limit) string { return l.Sharing.String() },
			[]string{"leased", "exact", "divided"},
			[]string{`""`, "unset", "Leased", "sharing(9)"},
			"leased, exact or divided",
		},
	} {
		document := "domain: d\ndefault: {unit: second, requests_per_unit: 1, " + option + ": "
		for _, name := range c.names {
			if got := c.text(load(t, document+name+"}").Domain("d").Default.Limits[0]); got != name {
				t.Errorf("%s: %s is shown as %s", option, name, got)
			}
		}
		for _, name := range c.wrong {
			_, _, err := Load([]Source{{Data: []byte(document + name + "}")}}, Options{})
			if err == nil || !strings.HasSuffix(err.Error(), " is not known, must be "+c.must) {
				t.Errorf("%s: %s: got %v", option, name, err)
			}
		}
	}
	got := fmt.Sprint(OnStoreErrorLocal, OnStoreErrorAllow, OnStoreErrorDeny, OnStoreError(9), SharingLeased, SharingExact)
	if want := "local allow deny on_store_error(9) leased exact"; got != want {
		t.Errorf("the names: got %s, want %s", got, want)
	}
}

// A limit with warn_at is a budget, and allow spends it without a bound during an outage.
func TestABudgetThatAnOutageLiftsIsAWarning(t *testing.T) {
	const want = "f:%d: warning: descriptors[0].rate_limit: has warn_at and on_store_error: allow, so nothing bounds or counts the budget " +
		"while Redis does not answer: probably local or deny is meant"
	for text, line := range map[string]int{ // 0: no warning
		"- key: a\n  rate_limit: {unit: day, requests_per_unit: 5, warn_at: 80%, on_store_error: allow}":                          4,
		"- key: a\n  on_store_error: allow\n  rate_limit: {unit: day, requests_per_unit: 5, warn_at: 80%}":                        5,
		"- key: a\n  rate_limit: {unit: day, requests_per_unit: 5, warn_at: 80%}\ndefaults: {on_store_error: allow}":              4,
		"- key: a\n  on_store_error: allow\n  rate_limit: {unit: day, requests_per_unit: 5}":                                      0,
		"- key: a\n  on_store_error: allow\n  rate_limit: {unit: day, requests_per_unit: 5, warn_at: 80%, on_store_error: local}": 0,
		"- key: a\n  rate_limit: {unit: day, requests_per_unit: 5, warn_at: 80%, on_store_error: deny}":                           0,
		"- key: a\n  shadow_mode: true\n  rate_limit: {unit: day, requests_per_unit: 5, warn_at: 80%, on_store_error: allow}":     0,
	} {
		_, warnings, err := Load([]Source{{Name: "f", Data: []byte("domain: edge\ndescriptors:\n" + text)}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, expected := "", ""
		for _, w := range warnings {
			got += w.String()
		}
		if line > 0 {
			expected = fmt.Sprintf(want, line)
		}
		if got != expected {
			t.Errorf("%s:\ngot  %q\nwant %q", text, got, expected)
		}
	}
}

func TestSharingThatCannotBeSaysSo(t *testing.T) {
	for limit, want := range map[string]string{
		"{unit: second, requests_per_unit: 1, sharing: both}":                                                  "is not known, must be leased, exact or divided",
		"{unit: second, requests_per_unit: 1, sharing: divided, algorithm: sliding_window_log}":                "has sharing: divided, must have leased or exact",
		"{period: 100ms, requests_per_unit: 1, sharing: divided}":                                              "a window of at most 100ms cannot be divided",
		"{unit: day, requests_per_unit: 1, sharing: divided, align: {to: calendar}}":                           "has sharing: divided, must have leased or exact",
		"{unit: second, requests_per_unit: 2000000000, sharing: divided}":                                      "has sharing: divided, must have leased or exact",
		"{unit: second, requests_per_unit: 1, sharing: divided}\n    quota_mode: true\n    group: a":           "has sharing: divided, must have leased or exact",
		"{unit: second, requests_per_unit: 1, sharing: leased, algorithm: sliding_window_log}":                 "sliding_window_log is never leased",
		"{unit: second, requests_per_unit: 1, sharing: leased, algorithm: token_bucket, count_rejected: true}": "only fixed_window is leased",
	} {
		_, warnings, err := Load([]Source{{Name: "f", Data: []byte("domain: edge\ndescriptors:\n  - key: a\n    rate_limit: " + limit)}}, Options{})
		text := ""
		if err != nil {
			text = err.Error()
		}
		for _, w := range warnings {
			text += w.String()
		}
		if !strings.Contains(text, want) {
			t.Errorf("%s: got %q, want %q in it", limit, text, want)
		}
	}
}
