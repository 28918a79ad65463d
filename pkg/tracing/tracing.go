// Package tracing sends spans to where the environment says, by OTLP, with OpenTelemetry's SDK.
//
// The SDK reads the standard variables itself: OTEL_EXPORTER_OTLP_* (endpoint, headers, certificates, timeout, compression),
// OTEL_TRACES_SAMPLER, OTEL_BSP_* (the queue), OTEL_SPAN_*, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and OTEL_PROPAGATORS.
// What it leaves to the program is here: OTEL_EXPORTER_OTLP_PROTOCOL and OTEL_TRACES_EXPORTER. A request never waits for a
// collector: its span is put into a queue, or dropped when that is full.
//
// What becomes a span is no business of this package, but for [Store].
package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"go.opentelemetry.io/contrib/propagators/autoprop"
	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// scope is what made the spans.
const scope = "github.com/weirproxy/weir"

// The protocols. The default is that of OpenTelemetry.
const (
	ProtocolGRPC     = "grpc"
	ProtocolProtobuf = "http/protobuf"
	DefaultProtocol  = ProtocolProtobuf

	protocolJSON = "http/json" // which only the environment can choose
)

// Options is what New needs where the environment, which wins, says nothing. Service and Logger must be given.
type Options struct {
	Service    string            // service.name
	Attributes map[string]string // further attributes of the resource
	Protocol   string            // "" means DefaultProtocol
	Ratio      float64           // how many of the traces that begin here are kept, 0 to 1; one that began elsewhere is kept if it was there
	Logger     *slog.Logger
}

// Tracing makes spans and sends them. All methods are safe for concurrent use; those of a nil Tracing, which makes none, too.
type Tracing struct {
	provider   *sdk.TracerProvider
	queue      sdk.SpanProcessor // of ended spans that are to be sent
	exporter   *exporter
	propagator propagation.TextMapPropagator
}

// New begins to send spans; it waits for no collector. It returns nil where OTEL_TRACES_EXPORTER is none. The error says what
// is wrong with the options or the environment, all of it as far as the SDK tells.
//
// What the SDK reports goes to the logger of the latest call, for the SDK has one place for all: a program calls New once.
func New(ctx context.Context, o Options) (*Tracing, error) {
	switch kind := os.Getenv("OTEL_TRACES_EXPORTER"); kind {
	case "none":
		return nil, nil //nolint:nilnil // a nil Tracing is one that makes no spans
	case "", "otlp":
	default:
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER: %q: must be otlp or none", kind)
	}
	heard := hear(o.Logger)
	t := &Tracing{propagator: autoprop.NewTextMapPropagator(
		// The later wins. Baggage is left where it is: nothing here asks for it.
		b3.New(), propagation.TraceContext{},
	)}
	errs := []error{t.export(ctx, o)}
	if mistakes := heard.startOver(); len(mistakes) > 0 {
		errs = append(errs, mistakes...)
	}
	if err := errors.Join(errs...); err != nil {
		if t.provider != nil {
			canceled, cancel := context.WithCancel(ctx)
			cancel()
			t.Close(canceled)
		}
		return nil, fmt.Errorf("tracing: %w", err)
	}
	return t, nil
}

// export makes the provider.
func (t *Tracing) export(ctx context.Context, o Options) error {
	about := []attribute.KeyValue{attribute.String("service.name", o.Service)}
	for name, value := range o.Attributes {
		about = append(about, attribute.String(name, value))
	}
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(about...), resource.WithFromEnv())
	if err != nil {
		return fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	spans, err := newExporter(ctx, o.Protocol)
	if err != nil {
		return err
	}
	t.exporter = &exporter{SpanExporter: spans, logger: o.Logger, ended: make(chan struct{})}
	t.queue = sdk.NewBatchSpanProcessor(t.exporter)
	options := []sdk.TracerProviderOption{sdk.WithResource(res), sdk.WithSpanProcessor(t.queue)}
	if os.Getenv("OTEL_TRACES_SAMPLER") == "" { // an option would win over it
		options = append(options, sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(o.Ratio))))
	}
	t.provider = sdk.NewTracerProvider(options...)
	return nil
}

// newExporter returns what sends spans by the protocol that the environment names, or by that.
func newExporter(ctx context.Context, protocol string) (sdk.SpanExporter, error) {
	name := "protocol"
	for _, variable := range []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"} {
		if set := os.Getenv(variable); set != "" {
			name, protocol = variable, set
		}
	}
	switch protocol = cmp.Or(protocol, DefaultProtocol); protocol {
	case ProtocolGRPC:
		return otlptracegrpc.New(ctx)
	case ProtocolProtobuf, protocolJSON:
		return otlptracehttp.New(ctx)
	default:
		return nil, fmt.Errorf("%s: %q: must be %s, %s or %s", name, protocol, ProtocolGRPC, ProtocolProtobuf, protocolJSON)
	}
}

// Tracer returns what makes spans; nil for a nil Tracing.
func (t *Tracing) Tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer(scope)
}

// Propagator returns what reads which span a request belongs to; nil for a nil Tracing. Without OTEL_PROPAGATORS it reads
// traceparent and the two forms of B3, which Envoy's tracers send.
func (t *Tracing) Propagator() propagation.TextMapPropagator {
	if t == nil {
		return nil
	}
	return t.propagator
}

// Close sends the spans that wait, until ctx ends, and then gives up those that are left. It returns when nothing runs any
// more. Closing twice is harmless.
func (t *Tracing) Close(ctx context.Context) {
	if t == nil {
		return
	}
	// Not the provider's Shutdown, which stops nothing when ctx is over.
	if t.queue.Shutdown(ctx) != nil {
		canceled, cancel := context.WithCancel(ctx)
		cancel()
		_ = t.exporter.SpanExporter.Shutdown(canceled) // breaks off what is being sent
	}
	<-t.exporter.ended
}

// exporter logs when spans begin to get lost, and when they arrive again.
type exporter struct {
	sdk.SpanExporter

	logger *slog.Logger
	mu     sync.Mutex // guards losing
	losing bool

	end   sync.Once
	ended chan struct{} // closed when the SDK has sent or given up all spans
}

// ExportSpans implements [sdk.SpanExporter].
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch lost := err != nil; {
	case lost && !e.losing:
		e.logger.LogAttrs(ctx, slog.LevelWarn, "spans are lost", slog.String("error", err.Error()))
	case !lost && e.losing:
		e.logger.LogAttrs(ctx, slog.LevelInfo, "spans arrive again")
	}
	e.losing = err != nil
	return nil // the SDK would log it each time
}

// Shutdown implements [sdk.SpanExporter].
func (e *exporter) Shutdown(ctx context.Context) error {
	err := e.SpanExporter.Shutdown(ctx)
	e.end.Do(func() { close(e.ended) })
	return err
}
