package drive

import (
	"google.golang.org/protobuf/types/known/durationpb"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// Constant returns the answer of servers that decide nothing: one descriptor is within its limit.
func Constant() *ratelimitv3.RateLimitResponse {
	return &ratelimitv3.RateLimitResponse{
		OverallCode: ratelimitv3.RateLimitResponse_OK,
		Statuses: []*ratelimitv3.RateLimitResponse_DescriptorStatus{{
			Code: ratelimitv3.RateLimitResponse_OK,
			CurrentLimit: &ratelimitv3.RateLimitResponse_RateLimit{
				RequestsPerUnit: 1000,
				Unit:            ratelimitv3.RateLimitResponse_RateLimit_SECOND,
			},
			LimitRemaining:     999,
			DurationUntilReset: durationpb.New(1e9),
		}},
	}
}
