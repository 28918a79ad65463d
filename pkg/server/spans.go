package server

import (
	"context"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
)

// maxSpanText bounds texts in a span, in bytes: thousands of spans may wait for a collector.
const maxSpanText = 255

// spanName is the name of every request, as OpenTelemetry names calls of gRPC; requests by /json
// have it too.
const spanName = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

func (s *service) withParent(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	if s.options.Propagator == nil {
		return ctx
	}
	return s.options.Propagator.Extract(ctx, carrier)
}

func (s *service) beginSpan(c *call) {
	c.ctx, c.span = s.options.Tracer.Start(c.ctx, spanName, trace.WithTimestamp(c.begun), trace.WithSpanKind(trace.SpanKindServer))
}

// endSpan fills in the span of a call that is over. The caller ends the span.
func endSpan(span trace.Span, c *call, err error) {
	if !span.IsRecording() {
		return
	}
	code := "ok"
	switch {
	case err != nil:
		code = "error"
		span.SetStatus(codes.Error, clip(err.Error()))
	case c.verdict.OverLimit:
		code = "over_limit"
	}
	span.SetAttributes( // not descriptors: the values may be personal, such as addresses and accounts
		attribute.String("weir.domain", clip(c.request.Domain)),
		attribute.Int("weir.descriptors", len(c.request.Descriptors)),
		attribute.String("weir.code", code), // as in weir_requests_total
	)
}

// clip returns a copy of the beginning of a text. A copy does not keep a large message in memory.
func clip(text string) string {
	if len(text) > maxSpanText {
		end := maxSpanText
		for !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end]
	}
	return strings.Clone(text)
}

type incoming struct{ ctx context.Context } //nolint:containedctx // to copy no more of it than is asked for

func (c incoming) Get(key string) string {
	if all := metadata.ValueFromIncomingContext(c.ctx, key); len(all) > 0 {
		return all[0]
	}
	return ""
}

func (c incoming) Set(string, string) {}

func (c incoming) Keys() []string {
	md, _ := metadata.FromIncomingContext(c.ctx)
	return slices.Collect(maps.Keys(md))
}
