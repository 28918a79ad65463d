package memstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/linear"
)

// Random histories are linearizable: on one key, and over keys of several shards.
func TestRandomHistoriesAreLinearizable(t *testing.T) {
	for name, p := range map[string]linear.Plan{"one_key": linear.OneKey(), "crossing": linear.Crossing(), "holding": linear.Holding()} {
		t.Run(name, func(t *testing.T) {
			const batch = 50_000 // calls in a bubble: a new store for each
			calls, all := 0, linear.Operations(t, 350_000)
			for seed := linear.Seed(t); calls < all && !t.Failed(); seed += batch {
				inBubble(t, Options{MaxKeys: 16_384, SweepInterval: time.Second}, func(t *testing.T, s *Store) {
					calls += linear.Check(t, linear.Env{Store: s, Sleep: time.Sleep, Now: s.now}, p, seed, min(batch, all-calls))
					synctest.Wait()
					if err := s.checkPlaces(); err != nil {
						t.Error(err)
					}
				})
			}
			t.Logf("%d calls", calls)
		})
	}
}
