package descriptors_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
)

const traced = `domain: edge
descriptors:
  - key: plan
    value: free
    rate_limit: {unit: second, requests_per_unit: 1}
  - key: plan
    value: free_*
    descriptors:
      - key: user
        rate_limit: {unit: second, requests_per_unit: 1}
  - key: plan
    value: "*a"
    rate_limit: {unit: second, requests_per_unit: 1}
  - key: plan
    rate_limit: {unit: second, requests_per_unit: 1}
  - key: model
    rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: request, end: done, at_most: 1s}}
    descriptors:
      - {key: user, rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: request, end: done, at_most: 1s}}}
`

func traceDomain(t *testing.T) *descriptors.Domain {
	t.Helper()
	rules := must.First(descriptors.Load([]descriptors.Source{{Name: "edge.yaml", Data: []byte(traced)}}, descriptors.Options{}))(t)
	return rules.Domain("edge")
}

func TestTraceHasAStepForEachEntry(t *testing.T) {
	tests := []struct {
		name    string
		entries []descriptors.Entry
		want    []string
	}{
		{"exact", []descriptors.Entry{{Key: "plan", Value: "free"}}, []string{"plan=free: exact value"}},
		{"first_wildcard", []descriptors.Entry{{Key: "plan", Value: "free_a"}, {Key: "user", Value: "x"}}, []string{
			"plan=free_a: wildcard free_*", "user=x: key only",
		}},
		{"text_of_a_wildcard", []descriptors.Entry{{Key: "plan", Value: "*a"}}, []string{"plan=*a: exact value"}},
		{"key_only", []descriptors.Entry{{Key: "plan", Value: "b"}}, []string{"plan=b: key only"}},
		{"nothing", []descriptors.Entry{{Key: "plan", Value: "b"}, {Key: "user", Value: "x"}, {Key: "more"}}, []string{
			"plan=b: key only", "user=x: no descriptor for it here",
		}},
		{"no_entries", nil, []string{}},
		{"begin", []descriptors.Entry{{Key: "model", Value: "m"}, {Key: "request", Value: "r"}}, []string{
			"model=m: key only", "request=r: begins a hold",
		}},
		{"end", []descriptors.Entry{{Key: "model", Value: "m"}, {Key: "done", Value: "r"}}, []string{"model=m: key only", "done=r: ends a hold"}},
		{"no_holder", []descriptors.Entry{{Key: "model", Value: "m"}}, []string{
			"model=m: its rule has hold, and needs one more entry: request or done",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := []string{}
			for _, s := range traceDomain(t).Trace(test.entries) {
				got = append(got, s.String())
			}
			must.Match(t, "Trace", test.want, got)
		})
	}
}

func TestTraceEndsAtTheRuleThatMatchFinds(t *testing.T) {
	d := traceDomain(t)
	keys, values := []string{"plan", "user", "other", "model", "request", "done"}, []string{"", "free", "free_", "free_a", "*a", "a", "b"}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		entries := make([]descriptors.Entry, 1+r.IntN(4))
		for i := range entries {
			entries[i] = descriptors.Entry{Key: keys[r.IntN(len(keys))], Value: values[r.IntN(len(values))]}
		}
		steps := d.Trace(entries)
		last := steps[len(steps)-1]
		if got, want := last.Rule, d.Match(entries); got != want && last.Reason != descriptors.NoHolder || last.Reason == descriptors.NoHolder && want != nil {
			t.Fatalf("Trace(%v) ends at %v; Match gives %v", entries, fmt.Sprint(got), fmt.Sprint(want))
		}
		if (last.Reason == descriptors.NoMatch) != (last.Rule == nil) || last.Rule != nil && len(steps) != len(entries) {
			t.Fatalf("Trace(%v) = %v", entries, steps)
		}
	}
}
