package tracing

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/logtest"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/tracingtest"
)

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own:   []string{"internal/loglimit", "internal/regular", "pkg/store", "pkg/algorithms"},
		Never: []string{"github.com/spf13", "github.com/weirproxy/weir/pkg/server", "github.com/prometheus"},
	})
}

// environment sets these variables and no other of OpenTelemetry's, until the test ends.
func environment(t *testing.T, pairs ...string) {
	t.Helper()
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "") // which is the same as none, and is put back
		}
	}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
}

// begin starts to send spans and returns the log.
func begin(t *testing.T, o Options) (*Tracing, *logtest.Log) {
	t.Helper()
	l := new(logtest.Log)
	o.Service, o.Logger = "weir", slog.New(slog.NewTextHandler(l, nil))
	tracing, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return tracing, l
}

// parentOf is the span that a request with these headers belongs to.
func (t *Tracing) parentOf(headers map[string]string) context.Context {
	return t.Propagator().Extract(context.Background(), propagation.MapCarrier(headers))
}

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	spanID  = "b7ad6b7169203331"
)

func TestSpansArriveByBothProtocolsWithTheirParents(t *testing.T) {
	for _, protocol := range []string{ProtocolGRPC, ProtocolProtobuf} {
		t.Run(protocol, func(t *testing.T) {
			c := tracingtest.Start(t, protocol)
			environment(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.Endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol,
				"OTEL_RESOURCE_ATTRIBUTES=team=edge,service.version=2")
			tr, _ := begin(t, Options{Ratio: 1, Attributes: map[string]string{"service.version": "1", "service.namespace": "n"}})
			ctx, outer := tr.Tracer().Start(tr.parentOf(map[string]string{"traceparent": "00-" + traceID + "-" + spanID + "-01"}), "outer")
			_, inner := tr.Tracer().Start(ctx, "inner")
			inner.End()
			outer.End()
			tr.Close(t.Context())
			spans, resource := c.Spans()
			if len(spans) != 2 {
				t.Fatalf("spans: got %d, want 2", len(spans))
			}
			if got := []string{spans[0].GetName(), hex.EncodeToString(spans[0].GetTraceId()), hex.EncodeToString(spans[0].GetParentSpanId())}; !cmp.Equal(got,
				[]string{"inner", traceID, hex.EncodeToString(spans[1].GetSpanId())}) {
				t.Errorf("inner: got %q", got)
			}
			if got := []string{spans[1].GetName(), hex.EncodeToString(spans[1].GetTraceId()), hex.EncodeToString(spans[1].GetParentSpanId())}; !cmp.Equal(got,
				[]string{"outer", traceID, spanID}) {
				t.Errorf("outer: got %q", got)
			}
			for name, want := range map[string]string{"service.name": "weir", "team": "edge", "service.version": "2", "service.namespace": "n"} {
				if got := resource[name]; got != want {
					t.Errorf("resource, %s: got %q, want %q", name, got, want)
				}
			}
			tr.Close(t.Context()) // again
		})
	}
}

func TestTheEnvironmentWins(t *testing.T) {
	c := tracingtest.Start(t, ProtocolGRPC)
	environment(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.Endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc",
		"OTEL_SERVICE_NAME=edge-limits", "OTEL_TRACES_SAMPLER=always_on", "OTEL_BSP_SCHEDULE_DELAY=1")
	tr, _ := begin(t, Options{Ratio: 0, Protocol: ProtocolProtobuf})
	_, span := tr.Tracer().Start(t.Context(), "one")
	span.End()
	c.Await(t, 1)
	tr.Close(t.Context())
	if _, resource := c.Spans(); resource["service.name"] != "edge-limits" {
		t.Errorf("resource: got %v", resource)
	}
}

func TestWhichTracesAreKept(t *testing.T) {
	tests := []struct {
		name    string
		ratio   float64
		sampler string
		headers map[string]string
		want    bool
	}{
		{name: "a new one", ratio: 1, want: true},
		{name: "a new one of a ratio of 0", ratio: 0},
		{name: "one that is kept elsewhere", ratio: 0, headers: map[string]string{"traceparent": "00-" + traceID + "-" + spanID + "-01"}, want: true},
		{name: "one that is not", ratio: 1, headers: map[string]string{"traceparent": "00-" + traceID + "-" + spanID + "-00"}},
		{name: "one of B3, in one header", ratio: 0, headers: map[string]string{"b3": traceID + "-" + spanID + "-1"}, want: true},
		{name: "one of B3, in several", ratio: 0, headers: map[string]string{"x-b3-traceid": traceID, "x-b3-spanid": spanID, "x-b3-sampled": "1"}, want: true},
		{name: "W3C before B3", ratio: 0, headers: map[string]string{"b3": traceID + "-" + spanID + "-1", "traceparent": "00-" + traceID + "-" + spanID + "-00"}},
		{name: "none, by the environment", ratio: 1, sampler: "always_off"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			environment(t, "OTEL_TRACES_SAMPLER="+test.sampler)
			tr, _ := begin(t, Options{Ratio: test.ratio})
			_, span := tr.Tracer().Start(tr.parentOf(test.headers), "one")
			if got := span.SpanContext().IsSampled(); got != test.want {
				t.Errorf("sampled: got %t, want %t", got, test.want)
			}
			if test.headers != nil && span.SpanContext().TraceID().String() != traceID {
				t.Errorf("trace: got %s, want the caller's", span.SpanContext().TraceID())
			}
			canceled, cancel := context.WithCancel(t.Context())
			cancel()
			tr.Close(canceled) // the span never ended
		})
	}
}

func TestMistakesInTheEnvironmentAreTold(t *testing.T) {
	dir := t.TempDir()
	pipe, large := filepath.Join(dir, "pipe"), filepath.Join(dir, "large")
	must.Do(t, syscall.Mkfifo(pipe, 0o600))
	must.Do(t, os.WriteFile(large, nil, 0o600))
	must.Do(t, os.Truncate(large, 20<<30)) // sparse
	for _, test := range []struct{ variable, want string }{
		{"OTEL_TRACES_EXPORTER=zipkin", `OTEL_TRACES_EXPORTER: "zipkin": must be otlp or none`},
		{"OTEL_EXPORTER_OTLP_PROTOCOL=thrift", `OTEL_EXPORTER_OTLP_PROTOCOL: "thrift": must be grpc, http/protobuf or http/json`},
		{"OTEL_TRACES_SAMPLER=some", "unsupported sampler: some"},
		{"OTEL_PROPAGATORS=pigeon", "unknown propagator: pigeon"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://[", "parse url"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE=/nowhere", "OTEL_EXPORTER_OTLP_CERTIFICATE: open /nowhere: no such file or directory"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE=" + pipe, "OTEL_EXPORTER_OTLP_CERTIFICATE: open " + pipe + ": must be a regular file"},
		{"OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY=" + large, "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY: read " + large + ": must have at most 1048576 bytes"},
		{"OTEL_RESOURCE_ATTRIBUTES=team", "OTEL_RESOURCE_ATTRIBUTES: "},
	} {
		t.Run(test.variable, func(t *testing.T) {
			environment(t, test.variable)
			tr, err := New(t.Context(), Options{Service: "weir", Logger: slog.New(slog.DiscardHandler)})
			if err == nil || tr != nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestExporterNoneMakesNoSpans(t *testing.T) {
	environment(t, "OTEL_TRACES_EXPORTER=none")
	tr, err := New(t.Context(), Options{Service: "weir", Logger: slog.New(slog.DiscardHandler)})
	if tr != nil || err != nil {
		t.Fatalf("New: got %v, %v", tr, err)
	}
	if tr.Tracer() != nil || tr.Propagator() != nil {
		t.Error("a nil Tracing has a tracer or a propagator")
	}
	if tr.Asked("redis") != nil {
		t.Error("a nil Tracing changes a store")
	}
	tr.Close(t.Context())
}

func TestACollectorThatIsAwayIsToldOfOnceAndHoldsUpNothing(t *testing.T) {
	// The listener accepts connections and never answers.
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	for _, protocol := range []string{ProtocolGRPC, ProtocolProtobuf} {
		t.Run(protocol, func(t *testing.T) {
			environment(t, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+dead.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol,
				"OTEL_BSP_SCHEDULE_DELAY=1", "OTEL_BSP_MAX_QUEUE_SIZE=16", "OTEL_EXPORTER_OTLP_TIMEOUT=20", "OTEL_BSP_EXPORT_TIMEOUT=50")
			tr, l := begin(t, Options{Ratio: 1})
			start := time.Now()
			for range 10_000 {
				_, span := tr.Tracer().Start(t.Context(), "one")
				span.End()
			}
			if spent := time.Since(start); spent > within {
				t.Errorf("spans: %s", spent)
			}
			l.Await(t, 0, logtest.Has("spans are lost"))
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			start = time.Now()
			tr.Close(ctx)
			if spent := time.Since(start); spent > within {
				t.Errorf("Close: %s", spent)
			}
			if got := strings.Count(l.String(), "spans are lost"); got != 1 {
				t.Errorf("lines: got %d, want 1:\n%s", got, l)
			}
		})
	}
}

// within is how long something may take that takes milliseconds on an idle machine.
const within = 10 * time.Second

func TestAskingAStoreIsASpanOfItsRequest(t *testing.T) {
	c := tracingtest.Start(t, ProtocolGRPC)
	environment(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.Endpoint)
	tr, _ := begin(t, Options{Ratio: 1, Protocol: ProtocolGRPC})
	ctx, outer := tr.Tracer().Start(t.Context(), "outer")
	asked := tr.Asked("redis")
	inner, end := asked(ctx, 3)
	end(nil)
	_, end = asked(ctx, 0)
	end(errors.New("away"))
	if got := trace.SpanContextFromContext(inner); got.SpanID() == outer.SpanContext().SpanID() {
		t.Error("the store is not asked within its span")
	}
	tr.Close(t.Context())
	spans, _ := c.Spans()
	if len(spans) != 2 {
		t.Fatalf("spans: got %d, want 2", len(spans))
	}
	for i, want := range []struct {
		code    tracev1.Status_StatusCode
		message string
		charges int64
	}{{tracev1.Status_STATUS_CODE_UNSET, "", 3}, {tracev1.Status_STATUS_CODE_ERROR, "away", 0}} {
		span := spans[i]
		if span.GetName() != "redis" || span.GetKind() != tracev1.Span_SPAN_KIND_CLIENT ||
			hex.EncodeToString(span.GetParentSpanId()) != outer.SpanContext().SpanID().String() ||
			span.GetStatus().GetCode() != want.code || span.GetStatus().GetMessage() != want.message {
			t.Errorf("span %d: got %v", i, span)
		}
		if got := span.GetAttributes()[0].GetValue().GetIntValue(); got != want.charges {
			t.Errorf("span %d: got %d charges, want %d", i, got, want.charges)
		}
	}
}
