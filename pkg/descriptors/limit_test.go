package descriptors

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	for _, tt := range []struct {
		name, document string
		want           map[string][]string
	}{
		{"without defaults", "domain: edge\ndefault: {unit: second, requests_per_unit: 1}" + limits, map[string][]string{
			"inherits": {"unset"}, "inherits,below": {"unset"}, "rule": {"allow", "local", "deny"}, "rule,below": {"unset"},
			"limit": {"deny"}, "default": {"unset"},
		}},
		{"with defaults", "domain: edge\ndefaults: {on_store_error: deny}\ndefault: {unit: second, requests_per_unit: 1, on_store_error: allow}" + limits, map[string][]string{
			"inherits": {"deny"}, "inherits,below": {"deny"}, "rule": {"allow", "local", "deny"}, "rule,below": {"deny"},
			"limit": {"deny"}, "default": {"allow"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := make(map[string][]string)
			for _, r := range load(t, tt.document).All() {
				for _, l := range r.Limits {
					got[r.Path] = append(got[r.Path], l.OnStoreError.String())
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestOnStoreErrorIsReadByTheNameItIsShownAs(t *testing.T) {
	for o, name := range map[OnStoreError]string{OnStoreErrorLocal: "local", OnStoreErrorAllow: "allow", OnStoreErrorDeny: "deny"} {
		rules := load(t, "domain: d\ndefault: {unit: second, requests_per_unit: 1, on_store_error: "+name+"}")
		if got := rules.Domain("d").Default.Limits[0].OnStoreError; got != o || o.String() != name {
			t.Errorf("%s: got %v and the name %s", name, got, o)
		}
	}
	for _, name := range []string{`""`, "unset", "Local", "DENY", "fail", "on_store_error(9)"} {
		document := "domain: d\ndefault: {unit: second, requests_per_unit: 1, on_store_error: " + name + "}"
		_, _, err := Load([]Source{{Data: []byte(document)}}, Options{})
		if err == nil || !strings.HasSuffix(err.Error(), " is not known, must be local, allow or deny") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if got := OnStoreError(9).String(); got != "on_store_error(9)" {
		t.Errorf("an unknown one is %q", got)
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
		got := make(map[string][]string)
		for _, r := range load(t, "domain: edge\n"+defaults+limits).All() {
			for _, l := range r.Limits {
				got[r.Path] = append(got[r.Path], l.Sharing.String())
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", defaults, diff)
		}
	}
}

func TestSharingIsReadByTheNameItIsShownAs(t *testing.T) {
	for s, name := range map[Sharing]string{SharingLeased: "leased", SharingExact: "exact"} {
		rules := load(t, "domain: d\ndefault: {unit: second, requests_per_unit: 1, sharing: "+name+"}")
		if got := rules.Domain("d").Default.Limits[0].Sharing; got != s || s.String() != name {
			t.Errorf("%s: got %v and the name %s", name, got, s)
		}
	}
	for _, name := range []string{`""`, "unset", "Leased", "sharing(9)"} {
		document := "domain: d\ndefault: {unit: second, requests_per_unit: 1, sharing: " + name + "}"
		_, _, err := Load([]Source{{Data: []byte(document)}}, Options{})
		if err == nil || !strings.HasSuffix(err.Error(), " is not known, must be leased or exact") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestSharingThatCannotBeSaysSo(t *testing.T) {
	for limit, want := range map[string]string{
		"{unit: second, requests_per_unit: 1, sharing: both}":                                                  "is not known, must be leased or exact",
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
