package e2e

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// A recorder is a rate limit service that keeps the requests of Envoy, and answers as the test
// says.
type recorder struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
	address string // host:port
	answer  func(ctx context.Context, call string) (ratelimitv3.RateLimitResponse_Code, error)

	mu    sync.Mutex // guards calls
	calls []string
}

// startRecorder serves a recorder.
func startRecorder(t *testing.T, answer func(ctx context.Context, call string) (ratelimitv3.RateLimitResponse_Code, error)) *recorder {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{address: listener.Addr().String(), answer: answer}
	server := grpc.NewServer()
	ratelimitv3.RegisterRateLimitServiceServer(server, r)
	healthy := health.NewServer()
	healthy.SetServingStatus(ratelimitv3.RateLimitService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, healthy)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return r
}

// ShouldRateLimit keeps the request as a line: the descriptors as key=value, with +hits or -hits
// where Envoy sends hits.
func (r *recorder) ShouldRateLimit(ctx context.Context, request *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	var descriptors []string
	for _, d := range request.GetDescriptors() {
		var entries []string
		for _, entry := range d.GetEntries() {
			entries = append(entries, entry.GetKey()+"="+entry.GetValue())
		}
		line := strings.Join(entries, ",")
		if d.GetHitsAddend() != nil {
			line += fmt.Sprintf(" %s%d", map[bool]string{false: "+", true: "-"}[d.GetIsNegativeHits()], d.GetHitsAddend().GetValue())
		}
		descriptors = append(descriptors, line)
	}
	call := strings.Join(descriptors, "; ")
	r.mu.Lock()
	r.calls = append(r.calls, call)
	r.mu.Unlock()
	code, err := r.answer(ctx, call)
	if err != nil {
		return nil, err
	}
	response := &ratelimitv3.RateLimitResponse{OverallCode: code}
	for range request.GetDescriptors() {
		response.Statuses = append(response.Statuses, &ratelimitv3.RateLimitResponse_DescriptorStatus{Code: code})
	}
	return response, nil
}

// of returns the calls so far that have the text.
func (r *recorder) of(text string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.calls), func(call string) bool { return !strings.Contains(call, text) })
}
