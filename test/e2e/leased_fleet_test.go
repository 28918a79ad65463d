package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/test/parts"
)

// leased returns the arguments of one of two sidecars with leases, and further arguments.
func leased(more ...string) []string {
	return append([]string{"--sharing=leased", "--fleet-size=2"}, more...)
}

// A hotFleet is two sidecars with leases that get bursts of requests for a few hot keys.
type hotFleet struct {
	*fleet
	*ledger

	mu      sync.Mutex // guards clients of fleet, which a restart replaces
	traffic *traffic
}

// Requests come for burst, and then do not come for the same time. In a pause limits fill up, so
// that leases are large at the next burst.
const burst = 350 * time.Millisecond

// startHot starts two sidecars over a Redis, and some 1500 requests a second for them, spread over
// a key of each algorithm. Each limit is 100 per second: less than these requests, and enough for
// leases.
func startHot(t *testing.T, url string, args ...string) *hotFleet {
	t.Helper()
	h := &hotFleet{fleet: &fleet{}, ledger: newLedger(100, time.Second)}
	for range 2 {
		h.start(t, h.rules(), url, leased(args...)...)
	}
	h.awaitState(t, "closed")
	const workers = 5 // of each sidecar
	begun := time.Now()
	h.traffic = newTraffic(t, 2*workers, 6*time.Millisecond, func(ctx context.Context, worker int) string {
		if time.Since(begun)/burst%2 == 1 {
			return "pause"
		}
		return h.ask(ctx, h.client(worker%2), worker/2, "hot")
	})
	return h
}

// client returns the client of a sidecar.
func (h *hotFleet) client(i int) client {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.clients[i]
}

// replace kills a sidecar with SIGKILL, and starts another one in its place.
func (h *hotFleet) replace(t *testing.T, i int, url string, args ...string) {
	t.Helper()
	old := h.sidecars[i]
	old.stopped = true
	old.Kill()
	next := &fleet{}
	next.start(t, h.rules(), url, leased(args...)...)
	next.awaitState(t, "closed")
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sidecars[i], h.clients[i] = next.sidecars[0], next.clients[0]
}

// run lets the traffic flow for some bursts.
func (h *hotFleet) run(bursts int) { <-time.After(time.Duration(bursts) * 2 * burst) }

// awaitLeases waits until leases have decided some requests: else the test proves nothing. On a
// slow machine that takes a while.
func (h *hotFleet) awaitLeases(t *testing.T) {
	t.Helper()
	n := 0
	parts.Eventually(t, func() string {
		for _, s := range h.sidecars {
			n += s.metric(t, "weir_store_leased_decisions_total")
		}
		if n == 0 {
			return "no request was decided from a lease"
		}
		return ""
	})
	t.Logf("%d charges were decided from leases", n)
}
