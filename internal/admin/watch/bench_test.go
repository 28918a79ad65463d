package watch

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weirproxy/weir/pkg/limiter"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// BenchmarkEvent is the work for one request that is shown: the copy, on the goroutine that
// answers, and the message, on the watcher's.
func BenchmarkEvent(b *testing.B) {
	f := newFixture(b)
	f.watch(&adminv1.WatchRequest{})
	f.ask("edge", "path=/cart")
	o := limiter.Observed{Begun: time.Now(), Took: 1500, Request: &f.request, Verdict: &f.verdict}
	b.Run("copy", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = newEvent(&o, sizeOf(&o))
		}
	})
	events := make([]*event, 100)
	for i := range events {
		events[i] = newEvent(&o, sizeOf(&o))
	}
	b.Run("message", func(b *testing.B) { // of a hundred; the time is of one
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			if n%len(events) != 0 {
				continue
			}
			if _, err := proto.Marshal(message(f.limiter.Rules, events, 0, 0)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
