package server

import (
	"testing"
	"testing/synctest"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/google/go-cmp/cmp"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const groupRules = `
domain: edge
descriptors:
  - {key: backend, value: pt, quota_mode: true, group: pt, metadata: {seen: [pt, x]}, rate_limit: {unit: minute, requests_per_unit: 2, name: pt}}
  - key: backend
    value: od
    quota_mode: true
    group: od
    metadata: {seen: [od, x]}
    rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 3}
    descriptors:
      - {key: tenant, quota_mode: true, group: od, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: flat, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
`

func TestDynamicMetadataSaysWhereThereIsRoom(t *testing.T) {
	ask := func() []*commonv3.RateLimitDescriptor {
		return []*commonv3.RateLimitDescriptor{descriptor("backend", "od", "tenant", "t"), descriptor("backend", "pt"), descriptor("backend", "od")}
	}
	group := func(names ...string) (all []any) {
		for _, name := range names {
			all = append(all, map[string]any{"name": name})
		}
		return all
	}
	od := []any{map[string]any{"backend": "od", "tenant": "t"}, map[string]any{"backend": "od"}}
	both := []any{od[0], map[string]any{"backend": "pt"}, od[1]}
	seen := func(list ...any) map[string]any { return map[string]any{"seen": list} }
	for _, wide := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, groupRules, func(o *Options) { o.DynamicMetadata, o.Headers.RetryAfter = wide, true })
			var last *ratelimitv3.RateLimitResponse
			for i, want := range []struct {
				groups, passed []any
				metadata       map[string]any
				code           any // of pt
			}{
				{group("pt", "od"), both, seen("pt", "x", "od"), nil},
				{group("pt", "od"), both, seen("pt", "x", "od"), nil},
				{group("od"), od, seen("od", "x"), "OVER_LIMIT"},
				{group("od"), od, seen("od", "x"), "OVER_LIMIT"},
				{nil, nil, nil, "OVER_LIMIT"}, // the tenant is spent, its backend is not
			} {
				last = f.ask(t, ask()...)
				got := last.GetDynamicMetadata().AsMap()
				if diff := cmp.Diff(want.groups, list(got["priority_groups"])); diff != "" {
					t.Errorf("request %d, metadata %t: priority_groups (-want +got):\n%s", i, wide, diff)
				}
				if !wide {
					if len(got) > 1 || got["domain"] != nil {
						t.Errorf("request %d: without Options.DynamicMetadata: got %v, want priority_groups alone", i, got)
					}
					continue
				}
				if diff := cmp.Diff(want.passed, list(got["passedDescriptors"])); diff != "" {
					t.Errorf("request %d: passedDescriptors (-want +got):\n%s", i, diff)
				}
				metadata, _ := got["metadata"].(map[string]any)
				if diff := cmp.Diff(want.metadata, metadata); diff != "" {
					t.Errorf("request %d: metadata (-want +got):\n%s", i, diff)
				}
				pt, _ := list(got["descriptors"])[1].(map[string]any)
				if pt["code"] != want.code || want.code != nil && pt["limitName"] != "pt" {
					t.Errorf("request %d: descriptor pt: got %v, want the code %v, with the name of its limit", i, pt, want.code)
				}
			}
			// pt has room again in a minute, od in an hour.
			if diff := cmp.Diff([][2]string{{"retry-after", "60"}}, pairs(last)); diff != "" {
				t.Errorf("headers of the last answer (-want +got):\n%s", diff)
			}
			if got := f.ask(t, descriptor("flat", "a")).GetDynamicMetadata().AsMap(); wide && len(list(got["passedDescriptors"])) != 1 || got["priority_groups"] != nil {
				t.Errorf("a quota without a group: got %v, want it to pass, in no group", got)
			}
		})
	}
}

// list returns a list of metadata; nil stays nil.
func list(v any) []any {
	all, _ := v.([]any)
	return all
}
