package descriptors

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
		if got, ok := ParseSharing(name); got != s || !ok || s.String() != name {
			t.Errorf("%s: got %v, %t and the name %s", name, got, ok, s)
		}
	}
	for _, name := range []string{"", "unset", "Leased", "sharing(9)"} {
		if got, ok := ParseSharing(name); ok {
			t.Errorf("%q: got %v, want no choice", name, got)
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
