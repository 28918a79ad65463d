package main

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/tracingtest"
)

// otel sets variables of OpenTelemetry, and no other ones of these are set.
func otel(t *testing.T, pairs ...string) {
	t.Helper()
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "") // puts it back
			must.Do(t, os.Unsetenv(name))
		}
	}
	for _, pair := range pairs {
		name, text, _ := strings.Cut(pair, "=")
		t.Setenv(name, text)
	}
}

// traced starts a service whose spans a collector gets at its end, makes two requests of a caller,
// and ends it.
func traced(t *testing.T, protocol, sampled string, environment ...string) *tracingtest.Collector {
	t.Helper()
	c := tracingtest.Start(t, map[string]string{"http": "http/protobuf", "gRPC": "grpc"}[protocol])
	otel(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.Endpoint, "OTEL_BSP_SCHEDULE_DELAY=3600000")
	root := t.TempDir()
	lay(t, root, map[string]string{"config/a.yaml": rules("d", "k", 1)})
	r := launchWith(append(append(anyPort(), "USE_STATSD=false", "RUNTIME_ROOT="+root, "TRACING_ENABLED=true", "TRACING_EXPORTER_PROTOCOL="+protocol), environment...), drainTimeout)
	r.connect(t, insecure.NewCredentials())
	ctx := t.Context()
	if sampled != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"+sampled)
	}
	for range 2 {
		must.Get(ratelimitv3.NewRateLimitServiceClient(r.conn).ShouldRateLimit(ctx, parseRequest(t, "d | k=v")))(t)
	}
	if spans, _ := c.Spans(); len(spans) > 0 {
		t.Errorf("%d spans before the end", len(spans))
	}
	r.stop()
	r.awaitEnd(t)
	return c
}

func TestTracesGoWhereTheEnvironmentSays(t *testing.T) {
	for _, protocol := range []string{"http", "gRPC"} {
		t.Run(protocol, func(t *testing.T) {
			c := traced(t, protocol, "01", "TRACING_SERVICE_NAME=rls-1", "TRACING_SERVICE_NAMESPACE=edge-1", "TRACING_SERVICE_INSTANCE_ID=pod-1", "TRACING_SAMPLING_RATE=0")
			spans, resource := c.Spans()
			if len(spans) != 2 {
				t.Fatalf("spans: got %d, want 2: who asks has decided that", len(spans))
			}
			for i, code := range []string{"ok", "over_limit"} {
				got := []any{hex.EncodeToString(spans[i].GetTraceId()), hex.EncodeToString(spans[i].GetParentSpanId()), tracingtest.Attributes(spans[i])}
				want := []any{"0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", map[string]any{"weir.domain": "d", "weir.descriptors": int64(1), "weir.code": code}}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("span %d (-want +got):\n%s", i+1, diff)
				}
			}
			for name, want := range map[string]string{"service.name": "rls-1", "service.namespace": "edge-1", "service.instance.id": "pod-1"} {
				if resource[name] != want {
					t.Errorf("%s: got %q, want %q", name, resource[name], want)
				}
			}
		})
	}
}

func TestTheSamplingRateIsForCallersThatHaveNotDecided(t *testing.T) {
	for name, test := range map[string]struct {
		sampled, rate string
		want          int
	}{
		"all":                          {"", "1", 2},
		"none":                         {"", "0", 0},
		"the caller says no, and that": {"00", "1", 0},
	} {
		t.Run(name, func(t *testing.T) {
			spans, resource := traced(t, "http", test.sampled, "TRACING_SAMPLING_RATE="+test.rate).Spans()
			if len(spans) != test.want {
				t.Errorf("spans: got %d, want %d", len(spans), test.want)
			}
			if test.want > 0 && (resource["service.name"] != "RateLimit" || resource["service.instance.id"] == "") {
				t.Errorf("resource without names: got %v", resource)
			}
		})
	}
}
