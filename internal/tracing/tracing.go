// Package tracing sends spans by OTLP with OpenTelemetry's SDK, as the environment says.
//
// The SDK reads the standard variables itself: OTEL_EXPORTER_OTLP_* (endpoint, headers,
// certificates, timeout, compression), OTEL_TRACES_SAMPLER, OTEL_BSP_* (the queue), OTEL_SPAN_*,
// OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and OTEL_PROPAGATORS. This package reads
// OTEL_EXPORTER_OTLP_PROTOCOL and OTEL_TRACES_EXPORTER. A request never waits for a collector:
// spans go into a queue, and a full queue drops them.
//
// The server makes the spans of requests; this package makes the spans of calls to Redis, see
// [Tracing.Asked].
package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr/funcr"
	"go.opentelemetry.io/contrib/propagators/autoprop"
	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/internal/regular"
)

// scope is the instrumentation scope of all spans.
const scope = "github.com/weirproxy/weir"

// The protocols, with the default of OpenTelemetry.
const (
	ProtocolGRPC     = "grpc"
	ProtocolProtobuf = "http/protobuf"
	DefaultProtocol  = ProtocolProtobuf

	protocolJSON = "http/json" // only by the environment
)

// Options is the options of New. The environment wins over them. Service and Logger must be set.
type Options struct {
	Service    string            // service.name
	Attributes map[string]string // further attributes of the resource
	Protocol   string            // "" means DefaultProtocol
	// Ratio is the part of the traces beginning here that are sampled, 0 to 1. A trace from elsewhere
	// keeps the decision made there.
	Ratio  float64
	Logger *slog.Logger
}

// Tracing makes spans and sends them. All methods are safe for concurrent use. A nil Tracing is
// valid, and makes no spans.
type Tracing struct {
	provider   *sdk.TracerProvider
	queue      sdk.SpanProcessor // of ended spans
	exporter   *exporter
	propagator propagation.TextMapPropagator
}

// Configured reports whether the environment asks for spans: it names a collector, or the exporter
// otlp.
func Configured() bool {
	if os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return false
	}
	return os.Getenv("OTEL_TRACES_EXPORTER") == "otlp" ||
		cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")) != ""
}

// New begins to send spans, and does not wait for a collector. With OTEL_TRACES_EXPORTER=none the
// result is nil. The error lists the mistakes in the options and in the environment, as far as the
// SDK reports them.
//
// The SDK has one error handler and one logger per process, which log to the logger of the latest
// New: a program calls New once.
func New(ctx context.Context, o Options) (*Tracing, error) {
	switch kind := os.Getenv("OTEL_TRACES_EXPORTER"); kind {
	case "none":
		return nil, nil //nolint:nilnil // a nil Tracing is one that makes no spans
	case "", "otlp":
	default:
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER: %q: must be otlp or none", kind)
	}
	reports := collectReports(o.Logger)
	t := &Tracing{propagator: autoprop.NewTextMapPropagator(
		// The later wins. Baggage is not read.
		b3.New(), propagation.TraceContext{},
	)}
	err := t.export(ctx, o)
	if err = errors.Join(append([]error{err}, reports.logFromNow()...)...); err != nil {
		if t.provider != nil {
			canceled, cancel := context.WithCancel(ctx)
			cancel()
			t.Close(canceled)
		}
		return nil, fmt.Errorf("tracing: %w", err)
	}
	return t, nil
}

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
	if os.Getenv("OTEL_TRACES_SAMPLER") == "" { // an option would override the variable
		options = append(options, sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(o.Ratio))))
	}
	t.provider = sdk.NewTracerProvider(options...)
	return nil
}

// newExporter returns an exporter of the protocol that the environment names, else of the given
// one.
func newExporter(ctx context.Context, protocol string) (sdk.SpanExporter, error) {
	if err := checkFiles(); err != nil {
		return nil, err
	}
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

// maxFile bounds a file of a certificate or a key.
const maxFile = 1 << 20

// checkFiles reads the files of TLS that the environment names, before the SDK does. The SDK would
// wait for a pipe, and read a file of any size.
func checkFiles() error {
	var errs []error
	for _, kind := range []string{"CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"} {
		for _, prefix := range []string{"OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"} {
			if path := os.Getenv(prefix + kind); path != "" {
				if _, err := regular.Read(path, maxFile); err != nil {
					errs = append(errs, fmt.Errorf("%s%s: %w", prefix, kind, err))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// Tracer returns the tracer of spans; nil for a nil Tracing.
func (t *Tracing) Tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer(scope)
}

// Propagator returns the reader of the parent span in a request; nil for a nil Tracing. Without
// OTEL_PROPAGATORS it reads traceparent and the two forms of B3, which Envoy's tracers send.
func (t *Tracing) Propagator() propagation.TextMapPropagator {
	if t == nil {
		return nil
	}
	return t.propagator
}

// Close sends the queued spans until ctx ends, drops the rest, and returns when no goroutine runs
// any more. A second Close does nothing.
func (t *Tracing) Close(ctx context.Context) {
	if t == nil {
		return
	}
	// The provider's Shutdown would stop nothing after the end of ctx.
	if t.queue.Shutdown(ctx) != nil {
		canceled, cancel := context.WithCancel(ctx)
		cancel()
		_ = t.exporter.SpanExporter.Shutdown(canceled) // cancels the call in flight
	}
	<-t.exporter.ended
}

// exporter logs the first failure to send spans, and the first success after a failure.
type exporter struct {
	sdk.SpanExporter

	logger *slog.Logger
	mu     sync.Mutex // guards losing
	losing bool
	logged loglimit.Limiter

	end   sync.Once
	ended chan struct{} // closed when the SDK has sent or dropped all spans
}

// A collector that refuses each second batch causes two lines for them.
const (
	spansAtOnce = 10
	spansEvery  = time.Minute
)

// ExportSpans implements [sdk.SpanExporter].
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch lost := err != nil; {
	case lost && !e.losing:
		missed, due := e.logged.DueOf(spansAtOnce, spansEvery)
		if !due {
			return nil // an end without a beginning would confuse
		}
		e.logger.LogAttrs(ctx, slog.LevelWarn, "spans are lost", slog.String("error", err.Error()), slog.Uint64("not_logged", missed))
	case !lost && e.losing:
		e.logger.LogAttrs(ctx, slog.LevelInfo, "spans arrive again")
	}
	e.losing = err != nil
	return nil // the SDK would log every error
}

// Shutdown implements [sdk.SpanExporter].
func (e *exporter) Shutdown(ctx context.Context) error {
	err := e.SpanExporter.Shutdown(ctx)
	e.end.Do(func() { close(e.ended) })
	return err
}

// Asked returns a function that begins a span of this name for each transaction of a remote store;
// nil when t is nil. The function returns the context of the span, and a function that ends the
// span with the error of the transaction. A store in memory needs no spans: it answers in less time
// than a span takes.
func (t *Tracing) Asked(name string) func(ctx context.Context, charges int) (context.Context, func(error)) {
	if t == nil {
		return nil
	}
	tracer := t.Tracer()
	return func(ctx context.Context, charges int) (context.Context, func(error)) {
		ctx, span := tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient),
			trace.WithAttributes(attribute.Int("weir.charges", charges)))
		return ctx, func(err error) {
			if err != nil {
				span.SetStatus(codes.Error, err.Error())
			}
			span.End()
		}
	}
}

// sdkReports takes the errors of the SDK, which has one error handler and one logger per process
// instead of returned errors.
type sdkReports struct {
	logger *slog.Logger
	logged loglimit.Limiter // the collector can cause errors

	mu       sync.Mutex // guards the rest
	starting bool       // errors are mistakes in the environment: keep them
	mistakes []error
}

// collectReports takes the errors of the SDK from now on.
func collectReports(logger *slog.Logger) *sdkReports {
	r := &sdkReports{logger: logger, starting: true}
	otel.SetErrorHandler(r)
	// At this verbosity the SDK logs errors only.
	otel.SetLogger(funcr.New(func(_, args string) { r.Handle(errors.New(args)) }, funcr.Options{}))
	return r
}

// logFromNow returns the errors so far, and logs later ones.
func (r *sdkReports) logFromNow() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting = false
	return r.mistakes
}

// Handle implements [otel.ErrorHandler].
func (r *sdkReports) Handle(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.starting {
		r.mistakes = append(r.mistakes, err)
		return
	}
	if missed, due := r.logged.Due(time.Second); due {
		r.logger.LogAttrs(context.Background(), slog.LevelWarn, "OpenTelemetry", slog.String("error", err.Error()), slog.Uint64("not_logged", missed))
	}
}
