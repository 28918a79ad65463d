package e2e

import (
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/test/parts"
)

// A client asks a sidecar directly, without Envoy.
type client struct {
	connection *grpc.ClientConn
	service    ratelimitv3.RateLimitServiceClient
}

// dial connects to the sidecar at host:port, or unix:path.
func dial(t *testing.T, target string) client {
	t.Helper()
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return client{connection, ratelimitv3.NewRateLimitServiceClient(connection)}
}

// request makes a request of domain e2e with one descriptor, (key=value), of so many hits.
func request(hits uint64, key, value string) *ratelimitv3.RateLimitRequest {
	return &ratelimitv3.RateLimitRequest{Domain: "e2e", Descriptors: []*commonv3.RateLimitDescriptor{{
		Entries:    []*commonv3.RateLimitDescriptor_Entry{{Key: key, Value: value}},
		HitsAddend: wrapperspb.UInt64(hits),
	}}}
}

// ask takes hits (0 takes nothing) and returns the status of the descriptor.
func (c client) ask(t *testing.T, hits uint64, key, value string) *ratelimitv3.RateLimitResponse_DescriptorStatus {
	t.Helper()
	response, err := c.service.ShouldRateLimit(parts.Soon(t), request(hits, key, value))
	if err != nil {
		t.Fatal(err)
	}
	if got := len(response.GetStatuses()); got != 1 {
		t.Fatalf("statuses: got %d, want 1", got)
	}
	return response.GetStatuses()[0]
}
