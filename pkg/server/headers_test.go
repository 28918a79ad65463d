package server

import (
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/weirproxy/weir/internal/testing/metricstest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

const headerRules = `
domain: edge
descriptors:
  - {key: wide, rate_limit: {unit: minute, requests_per_unit: 100}}
  - {key: narrow, rate_limit: {unit: second, requests_per_unit: 1, name: narrow}}
  - {key: bucket, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: token_bucket}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: other, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
  - key: both
    rate_limits:
      - {unit: second, requests_per_unit: 10, name: 'sp"ik\e'}
      - {unit: day, unit_multiplier: 7, requests_per_unit: 1000}
      - {period: 1500ms, requests_per_unit: 20}
  - {key: burst, rate_limit: {unit: second, requests_per_unit: 20, algorithm: token_bucket, burst: 100}}
  - {key: meter, rate_limit: {unit: second, requests_per_unit: 20, algorithm: token_bucket, burst: 1}}
  - {key: never, rate_limits: [{unit: minute, requests_per_unit: 1}, {unit: second, requests_per_unit: 1}]}
  - {key: slots, rate_limit: {algorithm: concurrency, max_in_flight: 1, hold: {begin: request, end: done, at_most: 70s}}}
  - {key: money, rate_limit: {unit: hour, budget: 5000}}
  - {key: tenant, rate_limit: {table: tenants.csv, unit: minute, requests_per_unit: 3}}
`

// pairs returns the headers that a response asks to add, in order.
func pairs(r *ratelimitv3.RateLimitResponse) [][2]string {
	all := [][2]string{}
	for _, h := range r.GetResponseHeadersToAdd() {
		all = append(all, [2]string{h.GetKey(), h.GetValue()})
	}
	return all
}

func TestResponseHeaders(t *testing.T) {
	once(t)
	classic := Headers{RateLimit: true}
	named := Headers{RateLimit: true, Limit: "X-Most", Remaining: "X-Left", Reset: "X-Wait"}
	retry := Headers{RetryAfter: true}
	ietf := Headers{IETF: true}
	twice := func(d *commonv3.RateLimitDescriptor) [][]*commonv3.RateLimitDescriptor {
		return [][]*commonv3.RateLimitDescriptor{{d}, {d}}
	}
	once := func(all ...*commonv3.RateLimitDescriptor) [][]*commonv3.RateLimitDescriptor {
		return [][]*commonv3.RateLimitDescriptor{all}
	}
	tests := []struct {
		name    string
		headers Headers
		ask     [][]*commonv3.RateLimitDescriptor // the last answer counts; 10 s after midnight
		want    [][2]string
	}{
		{"none_unless_asked_for", Headers{Limit: "X-Most"}, twice(descriptor("narrow", "a")), [][2]string{}},
		{"least_remaining", classic, once(descriptor("wide", "a"), descriptor("narrow", "a")), [][2]string{
			{"RateLimit-Limit", "1"}, {"RateLimit-Remaining", "0"}, {"RateLimit-Reset", "1"},
		}},
		{"own_names", named, once(descriptor("wide", "a")), [][2]string{{"X-Most", "100"}, {"X-Left", "99"}, {"X-Wait", "50"}}},
		{"nothing_limited", classic, once(descriptor("free", "a"), descriptor("nothing", "a")), [][2]string{}},
		{"denying_before_least_remaining", classic, once(
			descriptor("narrow", "a"), hits(101, "wide", "a"), hits(1, "quota", "a"),
		), [][2]string{{"RateLimit-Limit", "100"}, {"RateLimit-Remaining", "0"}, {"RateLimit-Reset", "50"}}},
		{"last_of_the_denying", classic, once(hits(101, "wide", "a"), hits(2, "narrow", "a")), [][2]string{
			{"RateLimit-Limit", "1"}, {"RateLimit-Remaining", "0"}, {"RateLimit-Reset", "1"},
		}},
		{"denying_before_a_spent_quota", classic, once(hits(101, "wide", "a"), hits(2, "quota", "a")), [][2]string{
			{"RateLimit-Limit", "100"}, {"RateLimit-Remaining", "0"}, {"RateLimit-Reset", "50"},
		}},
		{"retry_after_over_limit", retry, twice(descriptor("bucket", "a")), [][2]string{{"retry-after", "60"}}},
		{"no_retry_after_when_ok", retry, once(descriptor("bucket", "a")), [][2]string{}},
		{"retry_after_of_the_last_to_have_room", retry, [][]*commonv3.RateLimitDescriptor{
			{descriptor("narrow", "a")}, {hits(100, "wide", "a")}, {descriptor("narrow", "a"), descriptor("wide", "a")},
		}, [][2]string{{"retry-after", "50"}}},
		{"retry_after_of_the_first_quota_to_have_room", retry, [][]*commonv3.RateLimitDescriptor{
			{descriptor("quota", "a"), descriptor("other", "a")}, {descriptor("quota", "a"), descriptor("other", "a")},
		}, [][2]string{{"retry-after", "3590"}}},
		{"retry_after_not_of_a_quota_that_does_not_matter", retry, [][]*commonv3.RateLimitDescriptor{
			{descriptor("narrow", "a")}, {hits(2, "other", "a"), descriptor("quota", "a"), descriptor("narrow", "a")},
		}, [][2]string{{"retry-after", "1"}}},
		{"no_retry_after_above_the_capacity", retry, once(hits(2, "bucket", "a")), [][2]string{}},
		{"no_retry_after_above_the_burst", retry, once(hits(101, "burst", "a")), [][2]string{}},
		{"no_retry_after_of_more_than_the_slots", retry, once(hits(2, "slots", "a", "request", "r1")), [][2]string{}},
		{"no_retry_after_beside_a_wait", retry, [][]*commonv3.RateLimitDescriptor{
			{descriptor("wide", "a")}, {hits(99, "wide", "a")}, {descriptor("wide", "a"), hits(2, "narrow", "a")},
		}, [][2]string{}},
		{"no_retry_after_with_one_of_two_limits", retry, twice(hits(2, "never", "a")), [][2]string{}},
		{"no_retry_after_of_quotas_that_never_have_room", retry, once(hits(2, "quota", "a"), hits(2, "other", "a")), [][2]string{}},
		{"retry_after_of_the_only_quota_that_can_have_room", retry, [][]*commonv3.RateLimitDescriptor{
			{descriptor("other", "a")}, {hits(2, "quota", "a"), descriptor("other", "a")},
		}, [][2]string{{"retry-after", "86390"}}},
		{"burst", classic, once(descriptor("burst", "a")), [][2]string{
			{"RateLimit-Limit", "100"}, {"RateLimit-Remaining", "99"}, {"RateLimit-Reset", "1"},
		}},
		{"burst_below_the_requests", classic, once(descriptor("meter", "a")), [][2]string{
			{"RateLimit-Limit", "20"}, {"RateLimit-Remaining", "0"}, {"RateLimit-Reset", "1"},
		}},
		{"ietf_burst", ietf, once(descriptor("burst", "a"), descriptor("meter", "a")), [][2]string{
			{"RateLimit-Policy", `"second";q=20;w=1;burst=100, "second-2";q=20;w=1;burst=1`}, {"RateLimit", `"second";r=99;t=1, "second-2";r=0;t=1`},
		}},
		{"ietf", ietf, once(descriptor("both", "a"), descriptor("wide", "a")), [][2]string{
			{"RateLimit-Policy", `"sp\"ik\\e";q=10;w=1, "7day";q=1000;w=604800, "1.5s";q=20, "minute";q=100;w=60`},
			{"RateLimit", `"sp\"ik\\e";r=9;t=1, "minute";r=99;t=50`},
		}},
		{"more_than_32_bits", Headers{RateLimit: true, IETF: true}, once(descriptor("money", "a")), [][2]string{
			{"RateLimit-Limit", "4294967295"},
			{"RateLimit-Remaining", "4294967295"},
			{"RateLimit-Reset", "3590"},
			{"RateLimit-Policy", `"hour";q=4294967295;w=3600`},
			{"RateLimit", `"hour";r=4294967295;t=3590`},
		}},
		{"below_32_bits_again", Headers{RateLimit: true, IETF: true}, [][]*commonv3.RateLimitDescriptor{
			{hits(4_294_967_295, "money", "a")}, {descriptor("money", "a")},
		}, [][2]string{
			{"RateLimit-Limit", "4294967295"},
			{"RateLimit-Remaining", "705032704"},
			{"RateLimit-Reset", "3590"},
			{"RateLimit-Policy", `"hour";q=4294967295;w=3600`},
			{"RateLimit", `"hour";r=705032704;t=3590`},
		}},
		{"ietf_same_limit_twice", ietf, once(hits(5, "wide", "a"), descriptor("wide", "b")), [][2]string{
			{"RateLimit-Policy", `"minute";q=100;w=60`}, {"RateLimit", `"minute";r=95;t=50`},
		}},
		{"ietf_same_name_twice", ietf, once(
			descriptor("wide", "a"), override(7, typev3.RateLimitUnit_MINUTE, 0, "wide", "b"),
		), [][2]string{
			{"RateLimit-Policy", `"minute";q=100;w=60, "minute-2";q=7;w=60`}, {"RateLimit", `"minute";r=99;t=50, "minute-2";r=6;t=50`},
		}},
		{"ietf_concurrency", ietf, once(descriptor("slots", "a", "request", "r1")), [][2]string{
			{"RateLimit-Policy", `"concurrency";q=1;qu="concurrent-requests"`}, {"RateLimit", `"concurrency";r=0;t=70`},
		}},
		{"table", classic, once(descriptor("tenant", "gold")), [][2]string{
			{"RateLimit-Limit", "7"}, {"RateLimit-Remaining", "6"}, {"RateLimit-Reset", "50"},
		}},
		{"ietf_table", ietf, once(descriptor("tenant", "gold"), descriptor("tenant", "slow"), descriptor("tenant", "other")), [][2]string{
			{"RateLimit-Policy", `"minute";q=7;w=60, "hour";q=5;w=3600, "minute-2";q=3;w=60`},
			{"RateLimit", `"minute";r=6;t=50, "hour";r=4;t=3590, "minute-2";r=2;t=50`},
		}},
		{"concurrency", Headers{RateLimit: true, RetryAfter: true}, [][]*commonv3.RateLimitDescriptor{
			{descriptor("slots", "a", "request", "r1")}, {descriptor("slots", "a", "request", "r2")},
		}, [][2]string{{"RateLimit-Limit", "1"}, {"RateLimit-Remaining", "0"}, {"RateLimit-Reset", "70"}, {"retry-after", "70"}}},
		{"ietf_nothing_limited", ietf, once(descriptor("free", "a")), [][2]string{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, headerRules, func(o *Options) { o.Headers = test.headers })
				time.Sleep(10 * time.Second)
				var got *ratelimitv3.RateLimitResponse
				for _, all := range test.ask {
					got = f.ask(t, all...)
				}
				if diff := cmp.Diff(test.want, pairs(got)); diff != "" {
					t.Errorf("response_headers_to_add (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestASoftBreachIsAHeaderFromTheFirstMarkOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, `domain: edge
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 5, warn_at: [80%, 100%]}}
`, func(o *Options) { o.Headers.RetryAfter = true })
		breach := [2]string{"x-ratelimit-soft-breach", "1"}
		for n, want := range [][][2]string{{}, {breach}, {breach}, {{"retry-after", "3600"}, breach}} {
			d := descriptor("user", "a")
			if n == 0 {
				d = hits(3, "user", "a")
			}
			if diff := cmp.Diff(want, pairs(f.ask(t, d))); diff != "" {
				t.Errorf("answer %d (-want +got):\n%s", n, diff)
			}
		}
		body := f.fetch(t, "POST", "/json", `{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}`).Body.String()
		if !strings.Contains(body, `{"key":"x-ratelimit-soft-breach", "value":"1"}`) && !strings.Contains(body, `{"key":"x-ratelimit-soft-breach","value":"1"}`) {
			t.Errorf("/json: got %s; want the header", body)
		}
		want := map[string]float64{
			`weir_warn_at_total{domain="edge",mark="80%",rule="user"}`:  1,
			`weir_warn_at_total{domain="edge",mark="100%",rule="user"}`: 1,
		}
		if diff := cmp.Diff(want, metricstest.Gather(t, f.registry, "weir_warn_at_total")); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
	})
}

func TestRetryAfterIsAtLeastOneSecond(t *testing.T) {
	once(t)
	limit := &descriptors.Limit{Limit: algorithms.Limit{Requests: 1}}
	for _, retry := range []time.Duration{0, 1, time.Second, time.Second + 1} {
		v := &limiter.Verdict{OverLimit: true, Statuses: []limiter.DescriptorStatus{
			{Outcome: limiter.Limited, OverLimit: true, Limit: limit, Decision: algorithms.Decision{RetryAfter: retry}},
		}}
		want := "1"
		if retry > time.Second {
			want = strconv.Itoa(2)
		}
		h := Headers{RetryAfter: true}
		if diff := cmp.Diff(appendHeader(nil, "retry-after", want), h.append(nil, v)); diff != "" {
			t.Errorf("retry after %v (-want +got):\n%s", retry, diff)
		}
	}
}

const metadataRules = `
domain: edge
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tier: gold, deep: {x: 1, list: [1]}, flag: true}}
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tier: silver, deep: {y: null, list: [2]}, flag: {z: 1}}}
  - {key: spent, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}, metadata: {spent: true}}
  - {key: free, rate_limit: {unlimited: true}, metadata: {free: true}}
`

func TestDynamicMetadataHasTheShapeOfTheReference(t *testing.T) {
	once(t)
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
				f := start(t, metadataRules, func(o *Options) { o.DynamicMetadata, o.Original = true, true })
				test.request.Domain = "edge"
				got := must.Get(f.client.ShouldRateLimit(t.Context(), test.request))(t)
				if diff := cmp.Diff(test.want, got.GetDynamicMetadata().AsMap()); diff != "" {
					t.Errorf("dynamic_metadata (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestMergingMetadataLeavesTheRulesAsTheyAre(t *testing.T) {
	once(t)
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
	once(t)
	synctest.Test(t, func(t *testing.T) {
		if got := start(t, metadataRules, nil).ask(t, descriptor("a", "x")).GetDynamicMetadata(); got != nil {
			t.Errorf("dynamic_metadata: got %v; want none", got)
		}
	})
}

func TestOverrideInWords(t *testing.T) {
	once(t)
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
		if got := string(appendOverride(nil, &test.override)); got != test.want {
			t.Errorf("appendOverride(%+v) = %q; want %q", test.override, got, test.want)
		}
	}
}
