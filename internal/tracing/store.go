package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Store returns the store s with a span of this name around each Take; s itself when t is nil. Use Store for a remote store: a store
// in memory answers in less time than a span takes.
func (t *Tracing) Store(s store.Store, name string) store.Store {
	if t == nil {
		return s
	}
	return &traced{Store: s, name: name, tracer: t.Tracer()}
}

// traced is a store with spans.
type traced struct {
	store.Store

	name   string
	tracer trace.Tracer
}

// Take implements [store.Store].
func (s *traced) Take(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	ctx, span := s.tracer.Start(ctx, s.name, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.Int("weir.charges", len(charges))))
	defer span.End()
	admitted, err := s.Store.Take(ctx, charges, decisions)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return admitted, err
}
