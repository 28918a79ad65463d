package descriptors

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
		if got, ok := ParseOnStoreError(name); got != o || !ok || o.String() != name {
			t.Errorf("%s: got %v, %t and the name %s", name, got, ok, o)
		}
	}
	for _, name := range []string{"", "unset", "Local", "DENY", "fail", "on_store_error(9)"} {
		if got, ok := ParseOnStoreError(name); ok || got != OnStoreErrorUnset {
			t.Errorf("%q: got %v, want none", name, got)
		}
	}
	if got := OnStoreError(9).String(); got != "on_store_error(9)" {
		t.Errorf("an unknown one is %q", got)
	}
}
