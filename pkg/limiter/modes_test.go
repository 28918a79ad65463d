package limiter_test

import (
	"math"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

const modeRules = `
domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: s, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: u, rate_limit: {unlimited: true}}
- {key: n}
`

func TestShadowLetsEveryRequestPassAndSaysWhatWasFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, modeRules, limiter.Options{Shadow: true})
		r := request("d", "a=1")
		f.check(r)
		var v limiter.Verdict
		if err := f.Check(t.Context(), r, &v); err != nil || v.OverLimit || !v.Statuses[0].OverLimit {
			t.Errorf("over limit %t, its status %t, error %v; want only the status to be", v.OverLimit, v.Statuses[0].OverLimit, err)
		}
		want := limiter.RequestCounts{OK: 2, Shadowed: 1}
		if diff := cmp.Diff(want, f.Requests()); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	})
}

func TestWithQuotaARequestIsOverWhenAllItsLimitsAre(t *testing.T) {
	tests := map[string]struct {
		with string // beside a, which is over
		over bool
	}{
		"alone":                             {"", true},
		"a limit with room":                 {"b=1", false},
		"a limit that is over":              {"a=2 hits=5", true},
		"an override that is over":          {"x=1 hits=5 override=1", true},
		"an override with room":             {"x=1 override=1", false},
		"a shadow limit, which passes":      {"s=1 hits=5", false},
		"an unlimited one, which is none":   {"u=1", true},
		"one that matches nothing":          {"z=1", false},
		"one that is not limited":           {"n=1", false},
		"the same again, which is over too": {"a=1", true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixtureWith(t, modeRules, limiter.Options{Quota: true})
				f.check(request("d", "a=1"))
				r := request("d", "a=1")
				if test.with != "" {
					r = request("d", "a=1", test.with)
				}
				var v limiter.Verdict
				if err := f.Check(t.Context(), r, &v); err != nil || v.OverLimit != test.over {
					t.Errorf("over limit %t, error %v; want %t", v.OverLimit, err, test.over)
				}
				if s := v.Statuses[0]; !s.OverLimit || !s.Quota {
					t.Errorf("the status says over limit %t, quota %t; want both", s.OverLimit, s.Quota)
				}
			})
		})
	}
}

func TestDropRejectedIsForOverridesWithoutARule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, drop := range []bool{false, true} {
			f := newFixtureWith(t, modeRules, limiter.Options{DropRejected: drop})
			over := request("d", "x=1 hits=5 override=3")
			f.check(over)
			var v limiter.Verdict
			if err := f.Check(t.Context(), request("d", "x=1 hits=3 override=3"), &v); err != nil || v.OverLimit == drop {
				t.Errorf("with DropRejected %t three of three hits after five denied ones: over limit %t, error %v", drop, v.OverLimit, err)
			}
		}
	})
}

// The rows are from envoyproxy/ratelimit with NEAR_LIMIT_RATIO 0.8, for allowed hits.
func TestHitsNearALimitAreCounted(t *testing.T) {
	tests := map[string]struct {
		rule string
		hits []string // of one key, in order
		near uint64
	}{
		"none below":                    {"requests_per_unit: 10", []string{"8"}, 0},
		"those above":                   {"requests_per_unit: 10", []string{"9"}, 1},
		"all that begin above":          {"requests_per_unit: 10", []string{"8", "1", "1"}, 2},
		"denied ones do not":            {"requests_per_unit: 10", []string{"8", "1", "1", "1"}, 2},
		"the threshold is rounded down": {"requests_per_unit: 3", []string{"2", "1"}, 1},
		"of a limit of one":             {"requests_per_unit: 1", []string{"1"}, 1},
		"a probe does not":              {"requests_per_unit: 10", []string{"10", "0"}, 2},
		"of a bucket's burst":           {"requests_per_unit: 1, algorithm: token_bucket, burst: 10", []string{"9"}, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				document := "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: hour, " + test.rule + "}}\n"
				f := newFixtureWith(t, document, limiter.Options{NearLimit: 0.8})
				for _, hits := range test.hits {
					f.check(request("d", "k=v hits="+hits))
				}
				for c := range f.Counts() {
					if got := c.Counts.Total().Near; c.Rule != nil && got != test.near {
						t.Errorf("%d hits were near, want %d", got, test.near)
					}
				}
			})
		})
	}
}

func TestHitsNearALimitThatAnotherDeniedAreThoseThatWouldHaveBeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const document = `
domain: d
descriptors:
- {key: k, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: token_bucket}}
- {key: ban, rate_limit: {unit: hour, requests_per_unit: 0}}
`
		f := newFixtureWith(t, document, limiter.Options{NearLimit: 0.8})
		f.check(request("d", "k=v hits=9", "ban=x"))
		for c := range f.Counts() {
			if got := c.Counts.Total().Near; c.Path == "k" && got != 1 {
				t.Errorf("%d hits were near, want 1", got)
			}
		}
	})
}

func TestNothingIsNearUnlessAskedFor(t *testing.T) {
	f := newFixture(t, modeRules)
	f.check(request("d", "a=1"))
	for c := range f.Counts() {
		if got := c.Counts.Total().Near; got != 0 {
			t.Errorf("%s: %d hits were near", c.Path, got)
		}
	}
	for _, ratio := range []float64{-1, math.NaN(), math.Inf(1)} {
		s := must.Get(memstore.New(memstore.Options{}))(t)
		defer s.Close()
		if _, err := limiter.New(s, limiter.Options{NearLimit: ratio}); err == nil {
			t.Errorf("a ratio of %v is accepted", ratio)
		}
	}
}

func TestValuesAreCountedByLevel(t *testing.T) {
	const document = `
domain: d
descriptors:
- key: a
  descriptors:
  - {key: b, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 1}}
`
	f := newFixtureWith(t, document, limiter.Options{DetailedValues: 1})
	f.check(request("d", "a=1.2,b=\xff"))
	f.check(request("d", "a=3,b=4"))
	values := 0
	for c := range f.Counts() {
		if c.Rule == nil {
			continue
		}
		for levels, tally := range c.Counts.Levels() {
			values++
			want := []string{"a_1.2", "b_\uFFFD"}
			if len(levels) == 1 {
				want = []string{limiter.OtherValue}
			}
			if diff := cmp.Diff(want, levels); diff != "" || tally.Decisions[limiter.CodeOK] != 1 {
				t.Errorf("%d decisions, levels (-want +got):\n%s", tally.Decisions[limiter.CodeOK], diff)
			}
		}
	}
	if values != 2 {
		t.Errorf("%d values are counted apart, want one and the others", values)
	}
}
