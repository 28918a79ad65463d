package server

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/mem"

	"github.com/weirproxy/weir/internal/admin/watch"
	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store/memstore"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
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

func benchServer(b *testing.B, change func(*Options)) *Server {
	b.Helper()
	s := must.Get(memstore.New(memstore.Options{}))(b)
	b.Cleanup(s.Close)
	l := must.Get(limiter.New(s, limiter.Options{}))(b)
	l.SetRules(load(b, benchRules))
	o := Options{Limiter: l, Logger: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()}
	if change != nil {
		change(&o)
	}
	server := must.Get(New(o))(b)
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
	s := benchServer(b, nil)
	c := new(call)
	c.decode(benchMessage(), time.Now())
	c.ctx = b.Context()
	if err := s.service.answer(c); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		c.answer = form{}.appendResponse(c.answer[:0], &c.verdict)
	}
}

// BenchmarkShouldRateLimit is all that is ours of a call: from gRPC's bytes to gRPC's bytes.
func BenchmarkShouldRateLimit(b *testing.B) {
	s := benchServer(b, nil)
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

// BenchmarkAnswer is a decision of the lane, from bytes to bytes, with more in its answer.
func BenchmarkAnswer(b *testing.B) {
	for _, c := range []struct {
		name   string
		change func(*Options)
	}{
		{"plain", nil},
		{"metadata", func(o *Options) { o.DynamicMetadata = true }},
		{"ratelimit", func(o *Options) { o.Headers.RateLimit = true }},
		{"ietf", func(o *Options) { o.Headers.IETF = true }},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := benchServer(b, c.change)
			message := benchMessage()
			var dst []byte
			b.ReportAllocs()
			for b.Loop() {
				c := s.service.newCall()
				c.ctx, c.begun = b.Context(), time.Now()
				var err error
				if dst, _, err = s.service.inPlace(c, message, dst[:0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWatch is a decision of the lane, from bytes to bytes, while nobody watches, and while
// somebody does. The work of the watcher's own goroutine counts, up to the bytes of its messages.
func BenchmarkWatch(b *testing.B) {
	for _, c := range []struct {
		name   string
		filter *adminv1.WatchRequest // nil: nobody
		reads  bool
	}{
		{"nobody", nil, false},
		{"chooses-none", &adminv1.WatchRequest{Domain: "edge", Outcomes: []adminv1.Outcome{adminv1.Outcome_OUTCOME_UNMATCHED}}, true},
		{"1000-a-second", &adminv1.WatchRequest{}, true},
		{"10000-a-second", &adminv1.WatchRequest{MaxPerSecond: 10_000}, true},
		{"never-reads", &adminv1.WatchRequest{MaxPerSecond: 100_000}, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := benchServer(b, nil)
			var reading sync.WaitGroup
			defer reading.Wait()
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			if c.filter != nil {
				hub := must.Get(watch.New(watch.Options{Rules: s.options.Limiter.Rules, Observe: s.Observe}))(b)
				w := must.Get(hub.Subscribe(c.filter))(b)
				defer w.Close()
				if c.reads {
					reading.Go(func() {
						for {
							if _, err := w.Next(ctx); err != nil {
								return
							}
						}
					})
				}
			}
			message := benchMessage()
			var dst []byte
			var slow time.Duration
			b.ReportAllocs()
			for b.Loop() {
				begun := time.Now()
				var err error
				c := s.service.newCall()
				c.ctx, c.begun = ctx, begun
				if dst, _, err = s.service.inPlace(c, message, dst[:0]); err != nil {
					b.Fatal(err)
				}
				slow = max(slow, time.Since(begun))
			}
			b.ReportMetric(float64(slow.Microseconds()), "slowest-µs")
		})
	}
}
