package tracing

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirproxy/weir/pkg/store"
)

// Store returns the store s with a span of this name around each Take; s itself when t is nil. Use
// Store for a remote store: a store in memory answers in less time than a span takes.
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

// TakeAll implements [store.Store]. Each transaction has a span of its own.
func (s *traced) TakeAll(transactions []store.Transaction, decided func(indexes []int)) {
	all, spans := slices.Clone(transactions), make([]trace.Span, len(transactions))
	for i := range all {
		all[i].Ctx, spans[i] = s.start(all[i].Ctx, all[i].Charges)
	}
	defer func() {
		for _, span := range spans {
			span.End() // also after a panic; a second End does nothing
		}
	}()
	s.Store.TakeAll(all, func(indexes []int) {
		for _, i := range indexes {
			transactions[i].Admitted, transactions[i].Err = all[i].Admitted, all[i].Err
			note(spans[i], all[i].Err)
			spans[i].End()
		}
		decided(indexes)
	})
}

// start begins the span of a transaction.
func (s *traced) start(ctx context.Context, charges []store.Charge) (context.Context, trace.Span) {
	return s.tracer.Start(ctx, s.name, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.Int("weir.charges", len(charges))))
}

// note gives a span the error of its transaction.
func note(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
}
