package main

import (
	"slices"
	"testing"

	reflectiongrpc "google.golang.org/grpc/reflection/grpc_reflection_v1"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirproxy/weir/internal/testing/must"
)

// So grpcurl works without files.
func TestReflectionNamesTheService(t *testing.T) {
	t.Parallel()
	r := start(t, "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 1}}]")
	stream := must.Get(reflectiongrpc.NewServerReflectionClient(r.conn).ServerReflectionInfo(t.Context()))(t)
	must.Do(t, stream.Send(&reflectiongrpc.ServerReflectionRequest{
		MessageRequest: &reflectiongrpc.ServerReflectionRequest_ListServices{},
	}))
	answer := must.Get(stream.Recv())(t)
	if !slices.ContainsFunc(answer.GetListServicesResponse().GetService(), func(s *reflectiongrpc.ServiceResponse) bool {
		return s.GetName() == ratelimitv3.RateLimitService_ServiceDesc.ServiceName
	}) {
		t.Errorf("got %v, want a list with %s", answer, ratelimitv3.RateLimitService_ServiceDesc.ServiceName)
	}
}
