package grpcmiddleware

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/limiter"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{
			"internal/headers", "internal/ranges", "internal/regular", "internal/spelling", "internal/timespan", "internal/top", "internal/zones",
			"pkg/algorithms", "pkg/descriptors", "pkg/limiter", "pkg/store", "pkg/store/memstore",
		},
		Third: []string{
			"google.golang.org/genproto/googleapis/rpc/errdetails", "google.golang.org/grpc", "google.golang.org/grpc/codes",
			"google.golang.org/grpc/metadata", "google.golang.org/grpc/status", "google.golang.org/protobuf/types/known/durationpb",
		},
	})
}

// start returns a client of gRPC's health service behind interceptors.
func start(t *testing.T, i *Interceptors) healthv1.HealthClient {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.UnaryInterceptor(i.Unary), grpc.StreamInterceptor(i.Stream))
	healthv1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn := must.Get(grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return healthv1.NewHealthClient(conn)
}

func TestCallsOverTheLimitFailWithTheWait(t *testing.T) {
	limits := must.Get(limiter.PerKey(limiter.PerHour(1), 2))(t)
	defer limits.Close()
	client := start(t, PerKey(limits, Metadata("x-api-key")))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "alice")
	var md metadata.MD
	must.Get(client.Check(ctx, &healthv1.HealthCheckRequest{}, grpc.Header(&md)))(t)
	want := metadata.MD{
		"ratelimit-limit": {"2"}, "ratelimit-remaining": {"1"}, "ratelimit-reset": {"3600"},
		"ratelimit-policy": {`"hour";q=1;w=3600;burst=2`}, "ratelimit": {`"hour";r=1;t=3600`},
	}
	delete(md, "content-type")
	if diff := cmp.Diff(want, md); diff != "" {
		t.Errorf("metadata of the first call (-want +got):\n%s", diff)
	}
	stream := must.Get(client.Watch(ctx, &healthv1.HealthCheckRequest{}))(t)
	must.Get(stream.Recv())(t)
	if md := must.Get(stream.Header())(t); md.Get("ratelimit-remaining")[0] != "0" {
		t.Errorf("metadata of the stream: got %v, want 0 remaining", md)
	}
	stream = must.Get(client.Watch(ctx, &healthv1.HealthCheckRequest{}))(t)
	_, err := stream.Recv()
	_, other := client.Check(ctx, &healthv1.HealthCheckRequest{}, grpc.Header(&md))
	for name, err := range map[string]error{"stream": err, "unary": other} {
		s := status.Convert(err)
		if s.Code() != codes.ResourceExhausted || len(s.Details()) != 1 {
			t.Fatalf("%s: got %v, want RESOURCE_EXHAUSTED with one detail", name, err)
		}
		if info, ok := s.Details()[0].(*errdetails.RetryInfo); !ok || info.GetRetryDelay().AsDuration() < 59*time.Minute {
			t.Errorf("%s: got the detail %v, want a wait of an hour", name, s.Details()[0])
		}
	}
	if md.Get("retry-after")[0] != "3600" {
		t.Errorf("retry-after: got %v, want 3600", md)
	}
	if _, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
		t.Errorf("another key: %v", err)
	}
}

func TestAnErrorOfTheCheckPassesUnlessOnErrorSaysOtherwise(t *testing.T) {
	limits := must.Get(limiter.PerKey(limiter.PerHour(1), 1))(t)
	defer limits.Close()
	o := Options{Limiter: limits.Limiter(), Describe: func(_ context.Context, method string, to *limiter.Request) {
		if method == healthv1.Health_Check_FullMethodName {
			to.Add() // without a domain: invalid
		}
	}}
	client := start(t, must.Get(New(o))(t))
	must.Get(client.Check(t.Context(), &healthv1.HealthCheckRequest{}))(t)
	o.OnError = func(_ context.Context, err error) error {
		if invalid, ok := errors.AsType[*limiter.InvalidError](err); ok {
			return status.Error(codes.Internal, invalid.Violations[0].Description)
		}
		return nil
	}
	client = start(t, must.Get(New(o))(t))
	if _, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{}); status.Code(err) != codes.Internal {
		t.Errorf("got %v, want the error of OnError", err)
	}
	if _, err := client.List(t.Context(), &healthv1.HealthListRequest{}); err != nil {
		t.Errorf("a call without descriptors: %v", err)
	}
	if _, err := New(Options{}); err == nil || err.Error() != "limiter: must not be nil\ndescribe: must not be nil" {
		t.Errorf("New: got %v, want both missing options", err)
	}
}
