package server

import (
	"math"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
)

// response writes a verdict with generated code, which appendResponse must agree with.
func response(v *limiter.Verdict, exact bool) *ratelimitv3.RateLimitResponse {
	codes := map[bool]ratelimitv3.RateLimitResponse_Code{
		false: ratelimitv3.RateLimitResponse_OK, true: ratelimitv3.RateLimitResponse_OVER_LIMIT,
	}
	out := &ratelimitv3.RateLimitResponse{OverallCode: codes[v.OverLimit]}
	for i := range v.Statuses {
		in := &v.Statuses[i]
		s := &ratelimitv3.RateLimitResponse_DescriptorStatus{Code: codes[in.OverLimit]}
		if in.Outcome == limiter.Unlimited {
			s.LimitRemaining = 4294967295
		}
		if in.Outcome == limiter.Limited {
			wait := in.Decision.ResetAfter
			if in.OverLimit {
				wait = in.Decision.RetryAfter
			}
			s.LimitRemaining = uint32(min(in.Decision.Remaining, math.MaxUint32))
			s.DurationUntilReset = durationpb.New(wait)
			if !exact {
				s.DurationUntilReset = &durationpb.Duration{Seconds: int64((uint64(wait) + 999_999_999) / 1_000_000_000)}
			}
			if in.OverLimit && in.Never && exact {
				s.DurationUntilReset = nil
			}
			s.CurrentLimit = &ratelimitv3.RateLimitResponse_RateLimit{
				RequestsPerUnit: uint32(min(in.Limit.PerPeriod(), math.MaxUint32)),
				Unit:            ratelimitv3.RateLimitResponse_RateLimit_Unit(in.Limit.Unit),
				Name:            in.Limit.Name,
			}
			if in.Limit.Multiplier > 1 {
				s.CurrentLimit.UnitMultiplier = wrapperspb.UInt32(in.Limit.Multiplier)
			}
		}
		out.Statuses = append(out.Statuses, s)
	}
	return out
}

func TestEncodedLengthsOfAnySize(t *testing.T) {
	once(t)
	for _, n := range []int{0, 1, 100, 126, 127, 128, 129, 16382, 16383, 16384, 16385, 1 << 21} {
		value := strings.Repeat("v", n)
		got := new(ratelimitv3.RateLimitResponse)
		if err := proto.Unmarshal(appendHeader(appendHeader(nil, "first", value), "second", "x"), got); err != nil {
			t.Fatalf("a header of %d bytes: %v", n, err)
		}
		want := &ratelimitv3.RateLimitResponse{ResponseHeadersToAdd: []*corev3.HeaderValue{{Key: "first", Value: value}, {Key: "second", Value: "x"}}}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("a header of %d bytes (-want +got):\n%s", n, diff)
		}
	}
}

func TestEncodingIsThatOfGeneratedCodeByteForByte(t *testing.T) {
	once(t)
	v := &limiter.Verdict{OverLimit: true, Statuses: []limiter.DescriptorStatus{
		{Outcome: limiter.Limited, OverLimit: true, Limit: &descriptors.Limit{
			Limit: algorithms.Limit{Requests: 300}, Name: "per-minute", Unit: descriptors.Minute, Multiplier: 5,
		}, Decision: algorithms.Decision{RetryAfter: 90 * time.Second}},
		{Outcome: limiter.Unlimited},
		{},
	}}
	want := must.Get(proto.MarshalOptions{Deterministic: true}.Marshal(response(v, false)))(t)
	if diff := cmp.Diff(want, form{}.appendResponse(nil, v)); diff != "" {
		t.Errorf("appendResponse (-want +got):\n%s", diff)
	}
}

func FuzzEncode(f *testing.F) {
	f.Add(uint8(2), uint8(3), uint64(10), uint64(3), uint8(1), uint32(1), "name", int64(5e9), int64(1), true, true, false)
	f.Add(uint8(9), uint8(1), uint64(1<<32-1), uint64(1<<53-1), uint8(200), uint32(1<<32-1), strings.Repeat("n", 200), int64(1<<63-1), int64(1<<63-1), false, true, true)
	f.Fuzz(func(t *testing.T, n, outcome uint8, requests, remaining uint64, unit uint8, multiplier uint32, name string, retry, reset int64,
		over, exact, never bool,
	) {
		limit := &descriptors.Limit{
			Name: strings.ToValidUTF8(name, ""),
			Unit: descriptors.Unit(unit), Multiplier: multiplier,
		}
		limit.SetPerPeriod(requests % algorithms.MaxCount)
		v := &limiter.Verdict{OverLimit: over}
		for i := range n % 16 {
			v.Statuses = append(v.Statuses, limiter.DescriptorStatus{
				Outcome:   limiter.Outcome((outcome + i) % 4),
				OverLimit: over && i%2 == 0,
				Never:     never && i%3 == 0,
				Limit:     limit,
				Decision: algorithms.Decision{
					Remaining: remaining, RetryAfter: time.Duration(max(retry, 0)), ResetAfter: time.Duration(max(reset, 0)),
				},
			})
		}
		got := new(ratelimitv3.RateLimitResponse)
		must.Do(t, proto.Unmarshal(form{exact: exact}.appendResponse(nil, v), got))
		if diff := cmp.Diff(response(v, exact), got, protocmp.Transform()); diff != "" {
			t.Errorf("appendResponse (-want +got):\n%s", diff)
		}
	})
}
