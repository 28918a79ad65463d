// Package tracingtest receives spans as a collector does, by OTLP over gRPC or HTTP, for tests.
package tracingtest

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// within bounds the waits of Await, which take milliseconds on an idle machine.
const within = 30 * time.Second

// Collector keeps the spans that it receives. All methods are safe for concurrent use.
type Collector struct {
	Endpoint string // for OTEL_EXPORTER_OTLP_ENDPOINT

	mu       sync.Mutex // guards the rest
	spans    []*tracev1.Span
	resource map[string]string
	changed  chan struct{} // closed and replaced when there are more
}

// Start starts a collector on a port of its own, by a protocol of OTEL_EXPORTER_OTLP_PROTOCOL: grpc
// or http/protobuf. It ends with the test.
func Start(tb testing.TB, protocol string) *Collector {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	c := &Collector{Endpoint: "http://" + listener.Addr().String(), changed: make(chan struct{})}
	if protocol == "grpc" {
		server := grpc.NewServer()
		collectorv1.RegisterTraceServiceServer(server, &service{Collector: c})
		go func() { _ = server.Serve(listener) }()
		tb.Cleanup(server.Stop)
		return c
	}
	server := &http.Server{Handler: http.HandlerFunc(c.post), ReadHeaderTimeout: within}
	go func() { _ = server.Serve(listener) }()
	tb.Cleanup(func() { _ = server.Close() })
	return c
}

// service is the collector for gRPC.
type service struct {
	*Collector
	collectorv1.UnimplementedTraceServiceServer
}

// Export implements [collectorv1.TraceServiceServer].
func (s *service) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	s.take(r)
	return new(collectorv1.ExportTraceServiceResponse), nil
}

// post is the collector for HTTP.
func (c *Collector) post(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	request := new(collectorv1.ExportTraceServiceRequest)
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, request) != nil {
		http.Error(w, "not spans", http.StatusBadRequest)
		return
	}
	c.take(request)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// take keeps spans.
func (c *Collector) take(r *collectorv1.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range r.GetResourceSpans() {
		c.resource = make(map[string]string)
		for _, a := range of.GetResource().GetAttributes() {
			c.resource[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, s := range of.GetScopeSpans() {
			c.spans = append(c.spans, s.GetSpans()...)
		}
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// Spans returns the spans so far, and the attributes of the resource that sent the latest.
func (c *Collector) Spans() ([]*tracev1.Span, map[string]string) {
	spans, resource, _ := c.now()
	return spans, resource
}

func (c *Collector) now() ([]*tracev1.Span, map[string]string, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans), c.resource, c.changed
}

// Await waits until there are n spans and returns all there are.
func (c *Collector) Await(tb testing.TB, n int) []*tracev1.Span {
	tb.Helper()
	deadline := time.After(within)
	for {
		spans, _, more := c.now()
		if len(spans) >= n {
			return spans
		}
		select {
		case <-more:
		case <-deadline:
			tb.Fatalf("spans: got %d within %s, want %d", len(spans), within, n)
		}
	}
}

// Attributes returns the attributes of a span that are texts or whole numbers.
func Attributes(s *tracev1.Span) map[string]any {
	all := make(map[string]any)
	for _, a := range s.GetAttributes() {
		if n := a.GetValue().GetIntValue(); n != 0 {
			all[a.GetKey()] = n
			continue
		}
		all[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return all
}
