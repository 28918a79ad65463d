package limiter_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// limits returns rules for the key a with that many limits, and for b with one.
func limits(n int) string {
	var b strings.Builder
	b.WriteString("domain: edge\ndescriptors:\n- {key: b, rate_limit: {unit: hour, requests_per_unit: 1000000}}\n- key: a\n  rate_limits:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {unit: hour, requests_per_unit: %d}\n", 1_000_000+i)
	}
	return b.String()
}

func TestARequestTakesAtMostMaxChargesCharges(t *testing.T) {
	s := must.Get(memstore.New(memstore.Options{}))(t)
	t.Cleanup(s.Close)
	f := newFixtureOn(t, s, limits(32), limiter.Options{})
	ask := func(a, b int) error {
		var v limiter.Verdict
		return f.Check(t.Context(), request("edge", append(slices.Repeat([]string{"a=x"}, a), slices.Repeat([]string{"b=x"}, b)...)...), &v)
	}
	if err := ask(127, 32); err != nil {
		t.Errorf("4096 charges: %v", err)
	}
	before := s.Stats().Keys
	for name, c := range map[string][2]int{"one more": {127, 33}, "many more": {1000, 0}} {
		var invalid *limiter.InvalidError
		err := ask(c[0], c[1])
		if !errors.As(err, &invalid) || err.Error() != "one request for more than 4096 charges: each limit of each descriptor is one" {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if keys := s.Stats().Keys; keys != before {
		t.Errorf("refused requests charged: %d keys, want %d", keys, before)
	}
	if got := limiter.MaxCharges / descriptors.MaxLimits; got < 100 {
		t.Errorf("%d descriptors of the largest rule fit, want 100", got)
	}
}

func TestARequestReplacesAtMostMaxChargesNames(t *testing.T) {
	var names strings.Builder
	for i := range descriptors.MaxLimits {
		fmt.Fprintf(&names, "{name: n%d},", i)
	}
	f := newFixture(t, "domain: edge\ndescriptors:\n- {key: a, rate_limit: {unit: hour, requests_per_unit: 1000, replaces: ["+names.String()+"]}}\n"+
		"- {key: b, rate_limit: {unit: hour, requests_per_unit: 1, name: n7}}\n")
	var v limiter.Verdict
	if err := f.Check(t.Context(), request("edge", append(slices.Repeat([]string{"a=x"}, 102), "b=x hits=2")...), &v); err != nil || v.OverLimit {
		t.Errorf("4080 names: %v, over limit %v; want a pass, as the limit of b is replaced", err, v.OverLimit)
	}
	err := f.Check(t.Context(), request("edge", slices.Repeat([]string{"a=x"}, 103)...), &v)
	if err == nil || err.Error() != "one request for more than 4096 names to replace" {
		t.Errorf("4120 names: %v", err)
	}
}

func TestFurtherBytesCountChargesBeyondOneOfEachDescriptor(t *testing.T) {
	f := newFixture(t, limits(40))
	long := "a=" + strings.Repeat("v", 1000)
	for _, c := range []struct {
		name    string
		request *limiter.Request
		size    int
		least   int64
		most    int64
	}{
		{"one limit each", request("edge", slices.Repeat([]string{"b=x"}, 1000)...), 2000, 0, 0},
		{"no such domain", request("other", slices.Repeat([]string{"a=x"}, 1000)...), 2000, 0, 0},
		{"an override", request("edge", slices.Repeat([]string{"a=x override=5"}, 50)...), 2000, 0, 0},
		{"40 limits", request("edge", "a=x"), 2, 39 * 500, 39 * 600},
		{"40 limits with long keys", request("edge", long), 1001, 39 * 2500, 39 * 2600},
		{"100 descriptors", request("edge", slices.Repeat([]string{long}, 100)...), 100_100, 3900 * 2500, 3900 * 2600},
		{"a request that is refused", request("edge", slices.Repeat([]string{long}, 1000)...), 1_001_000, 3900 * 2500, 4100 * 2600},
	} {
		if got := f.FurtherBytes(c.request, c.size); got < c.least || got > c.most {
			t.Errorf("%s: got %d bytes, want %d to %d", c.name, got, c.least, c.most)
		}
	}
	f.rules(learnedRules)
	if got := f.FurtherBytes(request("edge", slices.Repeat([]string{"user=x,r=1"}, 100)...), 1000); got < 100*500 || got > 100*600 {
		t.Errorf("100 descriptors of a limit that learns: got %d bytes", got)
	}
	f.rules(limits(3))
	if got := f.FurtherBytes(request("edge", "a=x", "b=x"), 10); got != 0 {
		t.Errorf("a usual request: got %d bytes, want 0", got)
	}
}
