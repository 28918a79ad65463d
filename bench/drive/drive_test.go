package drive

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// service answers with the code that a request's hits_addend names, and keeps the request.
type service struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
	code ratelimitv3.RateLimitResponse_Code
	seen atomic.Pointer[ratelimitv3.RateLimitRequest]
}

func (s *service) ShouldRateLimit(_ context.Context, r *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	s.seen.Store(r)
	return &ratelimitv3.RateLimitResponse{
		OverallCode: s.code,
		Statuses:    []*ratelimitv3.RateLimitResponse_DescriptorStatus{{Code: s.code, LimitRemaining: 7}},
	}, nil
}

// serve serves s until the test ends, and returns its address.
func serve(t *testing.T, s *service, options ...grpc.ServerOption) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	ratelimitv3.RegisterRateLimitServiceServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return listener.Addr().String()
}

func TestAskSendsTheRequestAndReadsTheVerdict(t *testing.T) {
	s := &service{}
	conn, err := Dial(serve(t, s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	request, err := Request("d", []Entry{{"a", "1"}, {"b", "2"}}, []Entry{{"c", "3"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		code    ratelimitv3.RateLimitResponse_Code
		allowed bool
		fails   bool
	}{
		{ratelimitv3.RateLimitResponse_OK, true, false},
		{ratelimitv3.RateLimitResponse_OVER_LIMIT, false, false},
		{ratelimitv3.RateLimitResponse_UNKNOWN, false, true},
	} {
		s.code = test.code
		allowed, err := conn.Ask(t.Context(), request)
		if allowed != test.allowed || (err != nil) != test.fails {
			t.Errorf("%v: got %v, %v; want %v, an error: %v", test.code, allowed, err, test.allowed, test.fails)
		}
	}
	var want ratelimitv3.RateLimitRequest
	if err := proto.Unmarshal(request, &want); err != nil {
		t.Fatal(err)
	}
	if seen := s.seen.Load(); !proto.Equal(&want, seen) || len(seen.GetDescriptors()) != 2 {
		t.Errorf("request: got %v; want %v", seen, &want)
	}
}

func TestSumAddsUpOneMetric(t *testing.T) {
	m := Metrics("# HELP a x\na{policy=\"x y\"} 2\na{policy=\"y\"} 3\nab 7\nb 1e3\n")
	for name, want := range map[string]float64{"a": 5, "ab": 7, "b": 1000, "c": 0} {
		if got := m.Sum(name); got != want {
			t.Errorf("%s: got %v; want %v", name, got, want)
		}
	}
}
