package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

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
