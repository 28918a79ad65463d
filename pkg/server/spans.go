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

// What the span of a request says. It carries no descriptors: their values are about people, such as addresses and accounts.
const (
	attributeDomain      = "weir.domain"
	attributeDescriptors = "weir.descriptors" // how many
	attributeCode        = "weir.code"        // as in weir_requests_total: ok, over_limit, error
)

// maxSpanText bounds texts in a span, in bytes: thousands of spans may wait for a collector.
const maxSpanText = 255

// spanName is what the request is called, as OpenTelemetry names calls of gRPC; one by /json is the same request.
const spanName = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// withParent returns ctx with the span that the request belongs to.
func (s *service) withParent(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	if s.options.Propagator == nil {
		return ctx
	}
	return s.options.Propagator.Extract(ctx, carrier)
}

// answerInSpan is answer in a span, which lasts from when the request had come.
func (s *service) answerInSpan(ctx context.Context, c *call) error {
	ctx, span := s.options.Tracer.Start(ctx, spanName, trace.WithTimestamp(c.begun), trace.WithSpanKind(trace.SpanKindServer))
	defer span.End() // also of a panic, which goes on
	err := s.decide(ctx, c)
	if !span.IsRecording() {
		return err
	}
	code := "ok"
	switch {
	case err != nil:
		code = "error"
		span.SetStatus(codes.Error, clip(err.Error()))
	case c.verdict.OverLimit:
		code = "over_limit"
	}
	span.SetAttributes(
		attribute.String(attributeDomain, clip(c.request.Domain)),
		attribute.Int(attributeDescriptors, len(c.request.Descriptors)),
		attribute.String(attributeCode, code),
	)
	return err
}

// clip returns a copy of the beginning of a text, which may be a piece of a large message.
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

// incoming is the metadata that came with the call of ctx, for a propagator.
type incoming struct{ ctx context.Context } //nolint:containedctx // to copy no more of it than is asked for

// Get implements [propagation.TextMapCarrier].
func (c incoming) Get(key string) string {
	if all := metadata.ValueFromIncomingContext(c.ctx, key); len(all) > 0 {
		return all[0]
	}
	return ""
}

// Set implements [propagation.TextMapCarrier]. Nothing is put into what came.
func (c incoming) Set(string, string) {}

// Keys implements [propagation.TextMapCarrier].
func (c incoming) Keys() []string {
	md, _ := metadata.FromIncomingContext(c.ctx)
	return slices.Collect(maps.Keys(md))
}
