package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	otel "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

const spanRules = `
domain: edge
descriptors:
  - {key: user, rate_limit: {requests_per_unit: 1, unit: year}}
`

const (
	callersTrace = "0af7651916cd43dd8448eb211c80319c"
	callersSpan  = "b7ad6b7169203331"
	traceparent  = "00-" + callersTrace + "-" + callersSpan + "-01"
)

// traced returns options that keep spans in memory.
func traced(o *Options) *tracetest.InMemoryExporter {
	spans := tracetest.NewInMemoryExporter()
	o.Tracer = sdk.NewTracerProvider(sdk.WithSyncer(spans)).Tracer("test")
	o.Propagator = propagation.TraceContext{}
	return spans
}

// said returns the attributes of a span, and its other fields that vary.
func said(s *tracetest.SpanStub) map[string]any {
	all := map[string]any{"name": s.Name, "kind": s.SpanKind, "status": s.Status, "parent": s.Parent.SpanID().String(), "trace": s.SpanContext.TraceID().String()}
	for _, a := range s.Attributes {
		all[string(a.Key)] = a.Value.AsInterface()
	}
	return all
}

func TestARequestIsASpanOfItsCaller(t *testing.T) {
	var spans *tracetest.InMemoryExporter
	f := start(t, spanRules, func(o *Options) { spans = traced(o) })
	grpcCall := func(r *ratelimitv3.RateLimitRequest) {
		_, _ = f.client.ShouldRateLimit(metadata.AppendToOutgoingContext(t.Context(), "traceparent", traceparent), r)
	}
	httpCall := func(*ratelimitv3.RateLimitRequest) {
		r := fromHere(t, http.MethodPost, "/json", `{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"x"}]}]}`)
		r.Header.Set("Traceparent", traceparent)
		f.json.ServeHTTP(httptest.NewRecorder(), r)
	}
	user := &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: []*commonv3.RateLimitDescriptor{descriptor("user", "x"), descriptor("other", "x")}}
	tests := []struct {
		name        string
		call        func(*ratelimitv3.RateLimitRequest)
		request     *ratelimitv3.RateLimitRequest
		domain      string
		descriptors int64
		code        string
		status      sdk.Status
	}{
		{"ok", grpcCall, user, "edge", 2, "ok", sdk.Status{}},
		{"over limit", grpcCall, user, "edge", 2, "over_limit", sdk.Status{}},
		{"over limit, by HTTP", httpCall, nil, "edge", 1, "over_limit", sdk.Status{}},
		{
			"error", grpcCall, &ratelimitv3.RateLimitRequest{Domain: "edge"}, "edge", 0, "error",
			sdk.Status{Code: otel.Error, Description: "rate limit descriptor list must not be empty"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			spans.Reset()
			test.call(test.request)
			got := spans.GetSpans()
			if len(got) != 1 {
				t.Fatalf("spans: got %d, want 1", len(got))
			}
			want := map[string]any{
				"name": strings.TrimPrefix(ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, "/"), "kind": trace.SpanKindServer,
				"status": test.status, "parent": callersSpan, "trace": callersTrace,
				"weir.domain": test.domain, "weir.descriptors": test.descriptors, "weir.code": test.code,
			}
			if diff := cmp.Diff(want, said(&got[0])); diff != "" {
				t.Errorf("span (-want +got):\n%s", diff)
			}
			if !got[0].EndTime.After(got[0].StartTime) {
				t.Errorf("span: from %v to %v", got[0].StartTime, got[0].EndTime)
			}
		})
	}
}

func TestARequestWithoutACallersSpanBeginsATrace(t *testing.T) {
	var spans *tracetest.InMemoryExporter
	f := start(t, spanRules, func(o *Options) { spans = traced(o); o.Propagator = nil })
	for _, ctx := range []context.Context{t.Context(), metadata.AppendToOutgoingContext(t.Context(), "traceparent", traceparent)} {
		spans.Reset()
		if _, err := f.client.ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: []*commonv3.RateLimitDescriptor{descriptor("user", "x")}}); err != nil {
			t.Fatal(err)
		}
		if got := spans.GetSpans(); len(got) != 1 || got[0].Parent.IsValid() {
			t.Errorf("got %v, want one span without a parent", got)
		}
	}
}

// contextStore keeps the context that it was asked with.
type contextStore struct {
	ctx context.Context //nolint:containedctx // the test is about this
}

func (s *contextStore) Take(ctx context.Context, _ []store.Charge, _ []algorithms.Decision) (bool, error) {
	s.ctx = ctx
	panic("the store") //nolint:forbidigo // so that the span ends all the same
}

func TestTheStoreIsAskedWithinTheSpanWhichAPanicEnds(t *testing.T) {
	var spans *tracetest.InMemoryExporter
	s := new(contextStore)
	f := startOn(t, storetest.Of(s), spanRules, func(o *Options) { spans = traced(o) })
	_, err := f.client.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: []*commonv3.RateLimitDescriptor{descriptor("user", "x")}})
	if err == nil {
		t.Error("got no error")
	}
	got := spans.GetSpans()
	if len(got) != 1 || got[0].SpanContext.SpanID() != trace.SpanContextFromContext(s.ctx).SpanID() {
		t.Errorf("got %v; want one span, that of the store's context", got)
	}
}

func TestTextsOfASpanAreBounded(t *testing.T) {
	once(t)
	for text, want := range map[string]string{
		"short":                                 "short",
		strings.Repeat("x", 255):                strings.Repeat("x", 255),
		strings.Repeat("x", 256):                strings.Repeat("x", 255),
		strings.Repeat("x", 254) + "é":          strings.Repeat("x", 254),
		strings.Repeat("x", 253) + "ééé":        strings.Repeat("x", 253) + "é",
		strings.Repeat("x", 252) + "\U0001F30D": strings.Repeat("x", 252),
	} {
		if got := clip(text); got != want {
			t.Errorf("clip(%q) = %q", text, got)
		}
	}
}

func TestWithoutATracerACallAllocatesNothingMore(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes what is allocated")
	}
	f := start(t, spanRules, nil)
	message, err := proto.Marshal(&ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: []*commonv3.RateLimitDescriptor{descriptor("other", "x")}})
	if err != nil {
		t.Fatal(err)
	}
	codec, data := newCodec(), mem.BufferSlice{mem.SliceBuffer(message)}
	decode := func(c any) error { return codec.Unmarshal(data, c) }
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", traceparent))
	got := testing.AllocsPerRun(1000, func() {
		must.Get(f.server.service.shouldRateLimit(ctx, decode))(t)
	})
	if got != 2 { // the text of the message, and the reply
		t.Errorf("allocations: got %g, want 2", got)
	}
}

// BenchmarkSpans is BenchmarkShouldRateLimit with spans that are kept, and that are not. What it
// takes to send those that are kept is not in it.
func BenchmarkSpans(b *testing.B) {
	for _, sampler := range []sdk.Sampler{sdk.NeverSample(), sdk.AlwaysSample()} {
		b.Run(sampler.Description(), func(b *testing.B) {
			s := benchServer(b, nil)
			s.service.options.Tracer = sdk.NewTracerProvider(sdk.WithSampler(sampler)).Tracer("bench")
			s.service.options.Propagator = propagation.TraceContext{}
			codec := newCodec()
			data := mem.BufferSlice{mem.SliceBuffer(benchMessage())}
			ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("traceparent", traceparent))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.service.shouldRateLimit(ctx, func(c any) error { return codec.Unmarshal(data, c) }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
