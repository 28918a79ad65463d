package drive

import (
	"context"
	"iter"
	"math/rand/v2"
	"time"
)

// Arrivals yields random instants until span has passed or ctx ends: the first at once, and then
// perSecond in a second on average. Arrivals waits until each instant has come. A loop body that
// takes longer moves no later instant, so an instant may lie in the past.
func Arrivals(ctx context.Context, perSecond int, span time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		start := time.Now()
		for after := time.Duration(0); after < span; after += time.Duration(rand.ExpFloat64() / float64(perSecond) * float64(time.Second)) {
			due := start.Add(after)
			if wait := time.Until(due); wait > 0 {
				select {
				case <-time.After(wait):
				case <-ctx.Done():
				}
			}
			if ctx.Err() != nil || !yield(due) {
				return
			}
		}
	}
}
