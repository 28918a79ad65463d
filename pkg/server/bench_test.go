package server

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/mem"

	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

const benchRules = `
domain: edge
descriptors:
  - key: path
    value: /search
    descriptors:
      - {key: client_id, rate_limit: {unit: second, requests_per_unit: 4294967295}}
`

// benchMessage is a request of one descriptor, nested two deep.
func benchMessage() []byte {
	entry := func(key, value string) []byte {
		return bytesField(1, bytesField(1, []byte(key)), bytesField(2, []byte(value)))
	}
	return join(bytesField(1, []byte("edge")), bytesField(2, entry("path", "/search"), entry("client_id", "c-4711")))
}

func benchServer(b *testing.B) *Server {
	b.Helper()
	s, err := memstore.New(memstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	l, err := limiter.New(s, limiter.Options{})
	if err != nil {
		b.Fatal(err)
	}
	l.SetRules(load(b, benchRules))
	server, err := New(Options{Limiter: l, Logger: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(server.Close)
	return server
}

func BenchmarkDecode(b *testing.B) {
	data := benchMessage()
	var r limiter.Request
	b.ReportAllocs()
	for b.Loop() {
		r.Reset()
		if err := decode(data, string(data), &r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	s := benchServer(b)
	c := new(call)
	c.decode(benchMessage(), time.Now())
	c.ctx = b.Context()
	if err := s.service.answer(c); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		c.answer = appendResponse(c.answer[:0], &c.verdict)
	}
}

// BenchmarkShouldRateLimit is all that is ours of a call: from gRPC's bytes to gRPC's bytes.
func BenchmarkShouldRateLimit(b *testing.B) {
	s := benchServer(b)
	codec := newCodec()
	data := mem.BufferSlice{mem.SliceBuffer(benchMessage())}
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		reply, err := s.service.shouldRateLimit(ctx, func(c any) error { return codec.Unmarshal(data, c) })
		if err != nil {
			b.Fatal(err)
		}
		if _, err := codec.Marshal(reply); err != nil {
			b.Fatal(err)
		}
	}
}
