package server

import (
	"testing"
	"testing/synctest"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/pkg/limiter"
)

const metadataRules = `
domain: edge
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tier: gold, deep: {x: 1, list: [1]}, flag: true}}
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tier: silver, deep: {y: null, list: [2]}, flag: {z: 1}}}
  - {key: spent, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}, metadata: {spent: true}}
  - {key: free, rate_limit: {unlimited: true}, metadata: {free: true}}
`

func TestDynamicMetadataHasTheShapeOfTheReference(t *testing.T) {
	tests := []struct {
		name    string
		request *ratelimitv3.RateLimitRequest
		want    map[string]any
	}{
		{"plain", &ratelimitv3.RateLimitRequest{Descriptors: asks(descriptor("nothing", "x", "more", ""))}, map[string]any{
			"domain": "edge", "descriptors": []any{map[string]any{"entries": []any{"nothing=x", "more="}}},
		}},
		{"hits_and_limit", &ratelimitv3.RateLimitRequest{HitsAddend: 2, Descriptors: []*commonv3.RateLimitDescriptor{
			hits(0, "nothing", "x"), override(2, typev3.RateLimitUnit_MINUTE, 0, "nothing", "y"),
		}}, map[string]any{
			"domain": "edge", "hitsAddend": 2.0, "descriptors": []any{
				map[string]any{"entries": []any{"nothing=x"}, "hitsAddend": 0.0},
				map[string]any{"entries": []any{"nothing=y"}, "limit": "requests_per_unit:2 unit:MINUTE"},
			},
		}},
		{"metadata_of_what_passed_first_one_stays", &ratelimitv3.RateLimitRequest{Descriptors: asks(
			descriptor("a", "x"), descriptor("b", "x"), descriptor("spent", "x"), descriptor("free", "x"), descriptor("a", "y"),
		)}, map[string]any{
			"domain": "edge",
			"descriptors": []any{
				map[string]any{"entries": []any{"a=x"}},
				map[string]any{"entries": []any{"b=x"}},
				map[string]any{"entries": []any{"spent=x"}},
				map[string]any{"entries": []any{"free=x"}},
				map[string]any{"entries": []any{"a=y"}},
			},
			"metadata": map[string]any{
				"tier": "gold", "flag": true, "deep": map[string]any{"x": 1.0, "y": nil, "list": []any{1.0}},
			},
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, metadataRules, func(o *Options) { o.DynamicMetadata = true })
				test.request.Domain = "edge"
				got, err := f.client.ShouldRateLimit(t.Context(), test.request)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(test.want, got.GetDynamicMetadata().AsMap()); diff != "" {
					t.Errorf("dynamic_metadata (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestMergingMetadataLeavesTheRulesAsTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, metadataRules, func(o *Options) { o.DynamicMetadata = true })
		alone := f.ask(t, descriptor("a", "x")).GetDynamicMetadata().AsMap()
		f.ask(t, descriptor("a", "x"), descriptor("b", "x"))
		if diff := cmp.Diff(alone, f.ask(t, descriptor("a", "x")).GetDynamicMetadata().AsMap()); diff != "" {
			t.Errorf("dynamic_metadata after one that was merged (-before +after):\n%s", diff)
		}
	})
}

func TestNoDynamicMetadataUnlessAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if got := start(t, metadataRules, nil).ask(t, descriptor("a", "x")).GetDynamicMetadata(); got != nil {
			t.Errorf("dynamic_metadata: got %v; want none", got)
		}
	})
}

func TestOverrideInWords(t *testing.T) {
	tests := []struct {
		override limiter.Override
		want     string
	}{
		{limiter.Override{}, ""},
		{limiter.Override{Unit: 1}, "unit:SECOND"},
		{limiter.Override{Requests: 5, Unit: 7}, "requests_per_unit:5 unit:7"}, // Envoy's enumeration for overrides has no week
		{limiter.Override{Requests: 5, Unit: 4, Multiplier: 3}, "requests_per_unit:5 unit:DAY unit_multiplier:{value:3}"},
	}
	for _, test := range tests {
		if got := overrideText(&test.override); got != test.want {
			t.Errorf("overrideText(%+v) = %q; want %q", test.override, got, test.want)
		}
	}
}
