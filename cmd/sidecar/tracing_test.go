package main

import (
	"context"
	"encoding/hex"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	md "google.golang.org/grpc/metadata"

	"github.com/weirproxy/weir/internal/testing/tracingtest"
	"github.com/weirproxy/weir/test/parts"
)

// otel sets these variables and no other of OpenTelemetry's.
func otel(t *testing.T, pairs ...string) {
	t.Helper()
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "OTEL_") {
			unset(t, name)
		}
	}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
}

const (
	callersTrace = "0af7651916cd43dd8448eb211c80319c"
	callersSpan  = "b7ad6b7169203331"
)

// asCaller is a context of a request that belongs to a span.
func asCaller(t *testing.T) context.Context {
	t.Helper()
	return md.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+callersTrace+"-"+callersSpan+"-01")
}

func TestSpansOfRequestsReachTheCollectorBeforeTheEnd(t *testing.T) {
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(protocol, func(t *testing.T) {
			c := tracingtest.Start(t, protocol)
			// Nothing is sent before the end.
			otel(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.Endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol, "OTEL_BSP_SCHEDULE_DELAY=3600000")
			r := start(t, "--rules", rulesFile(t, rulesOf("1")), "--drain-timeout=10s")
			client := ratelimitv3.NewRateLimitServiceClient(r.dial(t, r.address["grpc tcp"]))
			for range 2 {
				if _, err := client.ShouldRateLimit(asCaller(t), requestFor("x")); err != nil {
					t.Fatal(err)
				}
			}
			if spans, _ := c.Spans(); len(spans) > 0 {
				t.Errorf("%d spans before the end", len(spans))
			}
			raise(t, syscall.SIGTERM)
			r.awaitEnd(t)
			spans, resource := c.Spans()
			if len(spans) != 2 {
				t.Fatalf("spans: got %d, want 2", len(spans))
			}
			for i, code := range []string{"ok", "over_limit"} {
				got := []any{hex.EncodeToString(spans[i].GetTraceId()), hex.EncodeToString(spans[i].GetParentSpanId()), tracingtest.Attributes(spans[i])}
				want := []any{callersTrace, callersSpan, map[string]any{"weir.domain": "test", "weir.descriptors": int64(1), "weir.code": code}}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("span %d (-want +got):\n%s", i+1, diff)
				}
			}
			if resource["service.name"] != "weir" || resource["service.version"] == "" || resource["telemetry.sdk.language"] != "go" {
				t.Errorf("resource: got %v", resource)
			}
		})
	}
}

func TestWithoutTracingNothingOfItRuns(t *testing.T) {
	otel(t, "OTEL_SDK_DISABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+parts.Nowhere(t), "OTEL_TRACES_SAMPLER=nonsense")
	r := start(t, "--rules", rulesFile(t, rulesOf("1")))
	if got := limitFor(t, r.dial(t, r.address["grpc tcp"])); got != 1 {
		t.Errorf("limit in force: got %d, want 1", got)
	}
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	if strings.Contains(string(stacks), "go.opentelemetry.io") {
		t.Errorf("something of OpenTelemetry runs:\n%s", stacks)
	}
}

func TestACollectorThatIsAwayHoldsUpNeitherRequestsNorTheEnd(t *testing.T) {
	dead, err := net.Listen("tcp", "127.0.0.1:0") // it never answers
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(protocol, func(t *testing.T) {
			otel(t, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+dead.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol,
				"OTEL_BSP_SCHEDULE_DELAY=1", "OTEL_BSP_MAX_QUEUE_SIZE=4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=2")
			const drain = 2 * time.Second
			r := start(t, "--rules", rulesFile(t, rulesOf("1")), "--drain-timeout="+drain.String())
			client := ratelimitv3.NewRateLimitServiceClient(r.dial(t, r.address["grpc tcp"]))
			for range 200 {
				// The exporter waits 10 s for the collector. A request that waits with the exporter fails, and
				// a busy machine does not.
				ctx, cancel := context.WithTimeout(asCaller(t), 5*time.Second)
				_, err := client.ShouldRateLimit(ctx, requestFor("x"))
				cancel()
				if err != nil {
					t.Fatal(err)
				}
			}
			begun := time.Now()
			raise(t, syscall.SIGTERM)
			r.awaitEnd(t)
			if spent := time.Since(begun); spent > drain+5*time.Second {
				t.Errorf("the end took %s, with a drain timeout of %s", spent, drain)
			}
		})
	}
}

func TestMistakesOfTracingEndTheStart(t *testing.T) {
	otel(t, "OTEL_TRACES_EXPORTER=otlp", "OTEL_TRACES_SAMPLER=nonsense")
	err := run(t.Context(), []string{"--rules", rulesFile(t, rulesOf("1"))}, strings.NewReader(""), new(strings.Builder), new(strings.Builder))
	if err == nil || !strings.Contains(err.Error(), "tracing: unsupported sampler: nonsense") {
		t.Errorf("got %v", err)
	}
}
