package server

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/internal/testing/must"
)

const everything = `
domain: edge
descriptors:
  - {key: minute, rate_limit: {unit: minute, requests_per_unit: 2, name: per-minute}}
  - {key: week, rate_limit: {unit: day, unit_multiplier: 7, requests_per_unit: 5}}
  - {key: odd, rate_limit: {period: 1500ms, requests_per_unit: 3}}
  - {key: bucket, rate_limit: {unit: second, requests_per_unit: 10, algorithm: token_bucket}}
  - {key: ban, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true, replaces: [{name: basic}]}}
  - {key: basic, rate_limit: {name: basic, unit: minute, requests_per_unit: 1}}
  - {key: known}
`

// want reads a RateLimitResponse in the text form of protobuf.
func want(t *testing.T, text string) *ratelimitv3.RateLimitResponse {
	t.Helper()
	response := new(ratelimitv3.RateLimitResponse)
	must.Do(t, prototext.Unmarshal([]byte(text), response))
	return response
}

func TestAnswerIsThatOfTheLimitFieldByField(t *testing.T) {
	once(t)
	// Bubbles begin at midnight UTC of 2000-01-01, a Saturday. Each row takes a while to ask after
	// that.
	tests := []struct {
		name  string
		after time.Duration
		ask   []*commonv3.RateLimitDescriptor // asked one by one; the last answer counts
		want  string
	}{
		{"unit_with_name", 500 * time.Millisecond, asks(descriptor("minute", "a")), `overall_code: OK statuses {
			code: OK limit_remaining: 1 duration_until_reset { seconds: 60 }
			current_limit { requests_per_unit: 2 unit: MINUTE name: "per-minute" } }`},
		{"whole_seconds_rounded_up", 59*time.Second + 1, asks(descriptor("minute", "a")), `overall_code: OK statuses {
			code: OK limit_remaining: 1 duration_until_reset { seconds: 1 }
			current_limit { requests_per_unit: 2 unit: MINUTE name: "per-minute" } }`},
		{"unit_multiplier", 0, asks(descriptor("week", "a")), `overall_code: OK statuses {
			code: OK limit_remaining: 4 duration_until_reset { seconds: 432000 }
			current_limit { requests_per_unit: 5 unit: DAY unit_multiplier { value: 7 } } }`},
		{"period_that_is_no_unit", 0, asks(descriptor("odd", "a")), `overall_code: OK statuses {
			code: OK limit_remaining: 2 duration_until_reset { seconds: 2 }
			current_limit { requests_per_unit: 3 } }`},
		{"token_bucket_until_full", 0, asks(descriptor("bucket", "a")), `overall_code: OK statuses {
			code: OK limit_remaining: 9 duration_until_reset { seconds: 1 }
			current_limit { requests_per_unit: 10 unit: SECOND } }`},
		{"over_limit_until_retry", time.Second, asks(hits(10, "bucket", "a"), hits(5, "bucket", "a")), `overall_code: OVER_LIMIT statuses {
			code: OVER_LIMIT duration_until_reset { seconds: 1 }
			current_limit { requests_per_unit: 10 unit: SECOND } }`},
		{"ban", time.Minute, asks(descriptor("ban", "a")), `overall_code: OVER_LIMIT statuses {
			code: OVER_LIMIT duration_until_reset { seconds: 3540 }
			current_limit { unit: HOUR } }`},
		{"shadow_reports_ok_and_reset", 10 * time.Second, asks(descriptor("shadow", "a"), descriptor("shadow", "a")), `overall_code: OK statuses {
			code: OK duration_until_reset { seconds: 50 }
			current_limit { requests_per_unit: 1 unit: MINUTE } }`},
		{"unmatched", 0, asks(descriptor("nothing", "a")), `overall_code: OK statuses { code: OK }`},
		{"matched_without_limit", 0, asks(descriptor("known", "a")), `overall_code: OK statuses { code: OK }`},
		{"no_entries", 0, asks(descriptor()), `overall_code: OK statuses { code: OK }`},
		{"unlimited", 0, asks(descriptor("free", "a")), `overall_code: OK statuses { code: OK limit_remaining: 4294967295 }`},
		{"probe", 0, asks(hits(0, "minute", "a")), `overall_code: OK statuses {
			code: OK limit_remaining: 2 duration_until_reset { seconds: 60 }
			current_limit { requests_per_unit: 2 unit: MINUTE name: "per-minute" } }`},
		{"refund", 0, asks(hits(2, "minute", "a"), refund(1, "minute", "a")), `overall_code: OK statuses {
			code: OK limit_remaining: 1 duration_until_reset { seconds: 60 }
			current_limit { requests_per_unit: 2 unit: MINUTE name: "per-minute" } }`},
		{"override", 0, asks(override(9, typev3.RateLimitUnit_HOUR, 2, "minute", "a")), `overall_code: OK statuses {
			code: OK limit_remaining: 8 duration_until_reset { seconds: 7200 }
			current_limit { requests_per_unit: 9 unit: HOUR unit_multiplier { value: 2 } } }`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, everything, nil)
				time.Sleep(test.after)
				var got *ratelimitv3.RateLimitResponse
				for _, d := range test.ask {
					got = f.ask(t, d)
				}
				if diff := cmp.Diff(want(t, test.want), got, protocmp.Transform()); diff != "" {
					t.Errorf("ShouldRateLimit (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestStatusesStandInTheOrderOfTheDescriptors(t *testing.T) {
	once(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		got := f.ask(t, descriptor("basic", "a"), descriptor("nothing", "a"), descriptor("free", "a"),
			descriptor("minute", "a"), descriptor("minute", "a"), descriptor("minute", "a"), descriptor("shadow", "a"))
		if diff := cmp.Diff(want(t, `overall_code: OVER_LIMIT
			statuses { code: OK }
			statuses { code: OK }
			statuses { code: OK limit_remaining: 4294967295 }
			statuses { code: OK limit_remaining: 1 duration_until_reset { seconds: 60 }
				current_limit { requests_per_unit: 2 unit: MINUTE name: "per-minute" } }
			statuses { code: OK duration_until_reset { seconds: 60 }
				current_limit { requests_per_unit: 2 unit: MINUTE name: "per-minute" } }
			statuses { code: OVER_LIMIT duration_until_reset { seconds: 60 }
				current_limit { requests_per_unit: 2 unit: MINUTE name: "per-minute" } }
			statuses { code: OK duration_until_reset { seconds: 60 }
				current_limit { requests_per_unit: 1 unit: MINUTE } }`), got, protocmp.Transform()); diff != "" {
			t.Errorf("ShouldRateLimit (-want +got):\n%s", diff)
		}
	})
}

func TestRequestHitsCountForDescriptorsWithoutTheirOwn(t *testing.T) {
	once(t)
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		got, err := f.client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{
			Domain: "edge", HitsAddend: 3, Descriptors: asks(descriptor("bucket", "a"), hits(1, "bucket", "b")),
		})
		if err != nil {
			t.Fatal(err)
		}
		remaining := []uint32{got.GetStatuses()[0].GetLimitRemaining(), got.GetStatuses()[1].GetLimitRemaining()}
		if want := []uint32{7, 9}; !slices.Equal(remaining, want) {
			t.Errorf("limit_remaining: got %d; want %d", remaining, want)
		}
	})
}

func TestLastRequestIsWhenTheLatestArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, everything, nil)
		started := time.Now()
		if got := f.server.LastRequest(); !got.Equal(started) {
			t.Errorf("LastRequest before any: got %v; want the start, %v", got, started)
		}
		time.Sleep(3 * time.Second)
		f.ask(t, descriptor("nothing", "a"))
		time.Sleep(time.Second)
		if got, want := f.server.LastRequest(), started.Add(3*time.Second); !got.Equal(want) {
			t.Errorf("LastRequest: got %v; want %v", got, want)
		}
	})
}

func asks(all ...*commonv3.RateLimitDescriptor) []*commonv3.RateLimitDescriptor { return all }

func hits(n uint64, keysAndValues ...string) *commonv3.RateLimitDescriptor {
	d := descriptor(keysAndValues...)
	d.HitsAddend = wrapperspb.UInt64(n)
	return d
}

func refund(n uint64, keysAndValues ...string) *commonv3.RateLimitDescriptor {
	d := hits(n, keysAndValues...)
	d.IsNegativeHits = true
	return d
}

func override(requests uint32, unit typev3.RateLimitUnit, multiplier uint32, keysAndValues ...string) *commonv3.RateLimitDescriptor {
	d := descriptor(keysAndValues...)
	d.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: requests, Unit: unit}
	if multiplier > 0 {
		d.Limit.UnitMultiplier = wrapperspb.UInt32(multiplier)
	}
	return d
}
