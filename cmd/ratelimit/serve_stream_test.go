package main

import (
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weirproxy/weir/internal/testing/must"
)

func TestASecondMessageOnAStreamIsRefused(t *testing.T) {
	t.Parallel()
	r := start(t, fleetRules)
	stream := must.Get(r.conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName))(t)
	for range 2 {
		must.Do(t, stream.SendMsg(parseRequest(t, "edge | bucket=a")))
	}
	must.Do(t, stream.CloseSend())
	if err := stream.RecvMsg(new(ratelimitv3.RateLimitResponse)); status.Code(err) != codes.Internal {
		t.Errorf("two messages on one stream: got %v, want %v", err, codes.Internal)
	}
}
