package server

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/admin/watch"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

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
			s := benchServer(b)
			var reading sync.WaitGroup
			defer reading.Wait()
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			if c.filter != nil {
				hub, err := watch.New(watch.Options{Rules: s.options.Limiter.Rules, Observe: s.Observe})
				if err != nil {
					b.Fatal(err)
				}
				w, err := hub.Subscribe(c.filter)
				if err != nil {
					b.Fatal(err)
				}
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
