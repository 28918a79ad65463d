package redisstore

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// BenchmarkOwedKeysWhileRedisIsAway is one tick of a full outbox while there is no connection. A
// second has ten ticks.
func BenchmarkOwedKeysWhileRedisIsAway(b *testing.B) {
	for _, a := range []algorithms.Algorithm{algorithms.FixedWindow, algorithms.TokenBucket} {
		b.Run(a.String(), func(b *testing.B) {
			s, err := New(Options{Target: Target{URLs: []string{"redis://127.0.0.1:1"}}, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(s.Close)
			for n := range outboxShards * owed.MostHits {
				c := hit(fmt.Sprint("a key of a usual length ", n), perAge(a, 10))
				s.Later(&c, s.Now(algorithms.Limit{}), store.Part{})
			}
			b.ReportAllocs()
			for b.Loop() {
				s.sendSome(time.Now(), outboxPerTick, false)
			}
			b.ReportMetric(float64(s.Stats().OwedKeys), "keys")
		})
	}
}
