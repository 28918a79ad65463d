package model

import (
	"slices"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

type (
	request    = ratelimitv3.RateLimitRequest
	response   = ratelimitv3.RateLimitResponse
	descriptor = commonv3.RateLimitDescriptor

	descriptorStatus = ratelimitv3.RateLimitResponse_DescriptorStatus
)

const (
	ok   = ratelimitv3.RateLimitResponse_OK
	over = ratelimitv3.RateLimitResponse_OVER_LIMIT
)

// A mutant is a service with one fault. A new one is one element of mutants: its name, the cases
// that find it, and the hooks that it replaces. See Hooks.
type mutant struct {
	name  string
	found string // cases that must fail, with a blank between two
	hooks func(h *Hooks)
}

func mutants() []mutant {
	return slices.Concat(
		hitMutants(), windowMutants(), keyMutants(), ruleMutants(), answerMutants(), requestMutants(), processMutants(), fieldMutants(),
	)
}
