package server

import (
	"encoding/json"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
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

// Every server answers so: the lane, gRPC's library and /json.
func TestACallerThatAsksGetsDurationsToTheNanosecond(t *testing.T) {
	for _, library := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, everything, func(o *Options) { o.GRPCGo, o.Headers.RetryAfter = library, true })
			time.Sleep(12*time.Second + 345_678_901)
			const limit = `limit_remaining: 1 current_limit { requests_per_unit: 2 unit: MINUTE name: "per-minute" }`
			for value, reset := range map[string]string{
				"": "seconds: 48", "0": "seconds: 48", "true": "seconds: 48", "1": "seconds: 47 nanos: 654321099",
			} {
				ctx := metadata.AppendToOutgoingContext(t.Context(), "X-Weir-Exact", value)
				r := &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: asks(descriptor("minute", "key"+value))}
				expected := want(t, `overall_code: OK statuses { code: OK duration_until_reset {`+reset+`}`+limit+`}`)
				if diff := cmp.Diff(expected, must.Get(f.client.ShouldRateLimit(ctx, r))(t), protocmp.Transform()); diff != "" {
					t.Errorf("library %t, x-weir-exact %q (-want +got):\n%s", library, value, diff)
				}
				r.Descriptors[0].Entries[0].Value = "json" + value
				ask := fromHere(t, "POST", "/json", string(must.Get(protojson.Marshal(r))(t)))
				ask.Header.Set("X-Weir-Exact", value)
				w, got := httptest.NewRecorder(), new(ratelimitv3.RateLimitResponse)
				f.json.ServeHTTP(w, ask)
				must.Do(t, protojson.Unmarshal(w.Body.Bytes(), got))
				if diff := cmp.Diff(expected, got, protocmp.Transform()); diff != "" {
					t.Errorf("/json, x-weir-exact %q (-want +got):\n%s", value, diff)
				}
			}
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-weir-exact", "1")
			r := &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: asks(hits(2, "minute", "b"), descriptor("minute", "b"))}
			denied := must.Get(f.client.ShouldRateLimit(ctx, r))(t)
			if diff := cmp.Diff([][2]string{{"retry-after", "48"}}, pairs(denied)); diff != "" {
				t.Errorf("a header has whole seconds in any case (-want +got):\n%s", diff)
			}
			r.Descriptors = asks(hits(11, "bucket", "b"))
			never := want(t, `overall_code: OVER_LIMIT statuses { code: OVER_LIMIT limit_remaining: 10 current_limit { requests_per_unit: 10 unit: SECOND } }`)
			if diff := cmp.Diff(never, must.Get(f.client.ShouldRateLimit(ctx, r))(t), protocmp.Transform()); diff != "" {
				t.Errorf("hits that never pass have no wait (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHitsThatNeverPassAreToldApartFromAWait(t *testing.T) {
	const ask = `{"domain": "edge", "descriptors": [
		{"entries": [{"key": "minute", "value": "a"}], "hitsAddend": "3"}, {"entries": [{"key": "ban", "value": "a"}]},
		{"entries": [{"key": "quota", "value": "a"}]}, {"entries": [{"key": "shadow", "value": "a"}], "hitsAddend": "2"}]}`
	for _, original := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, everything, func(o *Options) { o.DynamicMetadata, o.Original = true, original })
			var got struct {
				Statuses        []map[string]any
				DynamicMetadata struct{ Descriptors []map[string]any }
			}
			must.Do(t, json.Unmarshal(f.fetch(t, "POST", "/json", ask).Body.Bytes(), &got))
			for i, never := range []bool{true, true, false, false} {
				status, metadata := got.Statuses[i], got.DynamicMetadata.Descriptors[i]
				wait := status["durationUntilReset"] != nil
				if told := never && !original; (status["never"] == true) != told || (metadata["never"] == true) != told || wait == told {
					t.Errorf("original %t, descriptor %d: got never %v in the status, %v in the metadata, a wait %t; want never %t and a wait otherwise",
						original, i, status["never"], metadata["never"], wait, told)
				}
			}
		})
	}
}
