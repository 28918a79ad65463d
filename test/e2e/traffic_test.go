package e2e

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
)

// traffic is requests that go on in the background while something else happens.
type traffic struct {
	cancel  context.CancelFunc
	workers sync.WaitGroup

	mu    sync.Mutex     // guards what follows
	seen  map[string]int // how often each outcome was seen: a status code, or an error
	total int
}

// startTraffic sends the same request over and over from so many workers, each as fast as it gets answers, until stop.
func (e *envoy) startTraffic(t *testing.T, workers int, path string, headers ...string) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	tr := &traffic{cancel: cancel, seen: map[string]int{}}
	for range workers {
		tr.workers.Go(func() {
			for {
				a, err := e.try(ctx, path, headers...)
				if ctx.Err() != nil {
					return
				}
				outcome := fmt.Sprint(a.code)
				if err != nil {
					outcome = err.Error()
				}
				tr.mu.Lock()
				tr.seen[outcome]++
				tr.total++
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
	eventually(t, func() string {
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
