package e2e

import (
	"encoding/hex"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/metadata"

	"github.com/weirproxy/weir/internal/testing/tracingtest"
	"github.com/weirproxy/weir/test/parts"
)

func TestWhatIsAskedOfRedisIsASpanOfItsRequest(t *testing.T) {
	redis := startRedis(t, parts.RedisOptions{})
	c := tracingtest.Start(t, "grpc")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.Endpoint)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	t.Setenv("OTEL_SERVICE_NAME", "edge-limits")
	// A machine that is busy must not look like a Redis that is away.
	s := startSidecar(t, tlsRules, "--store=redis", "--redis-url="+urlOf(redis.Address()), "--redis-timeout=10s")
	if _, err := s.AwaitMessage(parts.Soon(t), 0, "ready"); err != nil {
		t.Fatal(err)
	}
	const trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	ctx := metadata.AppendToOutgoingContext(parts.Soon(t), "traceparent", "00-"+trace+"-"+span+"-01")
	if _, err := ratelimitv3.NewRateLimitServiceClient(dial(t, s.GRPC).connection).ShouldRateLimit(ctx, request(1, "user", "x")); err != nil {
		t.Fatal(err)
	}
	s.terminate(t)
	s.awaitExit(t)
	spans, resource := c.Spans()
	if len(spans) != 2 {
		t.Fatalf("spans: got %v, want 2", spans)
	}
	inner, outer := spans[0], spans[1]
	for what, pair := range map[string][2]string{
		"service":               {resource["service.name"], "edge-limits"},
		"name":                  {inner.GetName(), "redis"},
		"parent":                {hex.EncodeToString(inner.GetParentSpanId()), hex.EncodeToString(outer.GetSpanId())},
		"parent of the request": {hex.EncodeToString(outer.GetParentSpanId()), span},
		"trace":                 {hex.EncodeToString(inner.GetTraceId()), trace},
		"status":                {inner.GetStatus().GetMessage(), ""},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: got %q, want %q", what, pair[0], pair[1])
		}
	}
	if inner.GetEndTimeUnixNano() <= inner.GetStartTimeUnixNano() || inner.GetEndTimeUnixNano() > outer.GetEndTimeUnixNano() {
		t.Errorf("Redis took from %d to %d of a request to %d", inner.GetStartTimeUnixNano(), inner.GetEndTimeUnixNano(), outer.GetEndTimeUnixNano())
	}
}
