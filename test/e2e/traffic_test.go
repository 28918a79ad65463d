package e2e

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// traffic is requests that go on in the background while something else happens.
type traffic struct {
	cancel  context.CancelFunc
	workers sync.WaitGroup

	mu      sync.Mutex     // guards the fields below
	seen    map[string]int // how often each outcome was seen: a status code, or an error
	total   int
	slowest time.Duration // longest wait for an outcome
}

// newTraffic has so many workers ask over and over until stop, each at most once in that time. ask
// returns the outcome.
func newTraffic(t *testing.T, workers int, every time.Duration, ask func(ctx context.Context, worker int) string) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	tr := &traffic{cancel: cancel, seen: map[string]int{}}
	for worker := range workers {
		tr.workers.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
				begun := time.Now()
				outcome := ask(ctx, worker)
				if ctx.Err() != nil {
					return
				}
				tr.mu.Lock()
				tr.seen[outcome]++
				tr.total++
				tr.slowest = max(tr.slowest, time.Since(begun))
				tr.mu.Unlock()
			}
		})
	}
	t.Cleanup(func() { tr.stop() })
	return tr
}

// outcomes returns how often each outcome was seen so far.
func (tr *traffic) outcomes() map[string]int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return maps.Clone(tr.seen)
}

// awaitMore waits until n more requests were answered: traffic flows.
func (tr *traffic) awaitMore(t *testing.T, n int) {
	t.Helper()
	target := tr.count() + n
	parts.Eventually(t, func() string {
		if got := tr.count(); got < target {
			return fmt.Sprintf("%d of %d requests answered", got, target)
		}
		return ""
	})
}

// count returns how many requests were answered or failed so far.
func (tr *traffic) count() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.total
}

// stop ends the traffic and returns how often each outcome was seen.
func (tr *traffic) stop() map[string]int {
	tr.cancel()
	tr.workers.Wait()
	return tr.outcomes()
}
