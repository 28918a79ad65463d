package redisstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// gate keeps resets of this process apart from its requests over several slots. A reset
// between the two round trips of a request would forget the reserved hits, and the settlement would
// give back hits of others. So a reset waits for the requests under way that reserve its keys, and
// later requests for these keys wait for the reset.
//
// Keys are told apart by hash: two keys with one number only wait for each other.
type gate struct {
	seed maphash.Seed // of keys

	mu       sync.Mutex // guards the fields below
	requests [gateNumbers]int32
	resets   [gateNumbers]int32
	changed  chan struct{} // closed when a request or a reset ends; nil: nobody waits
}

const gateNumbers = 1024

// begin begins a request of charges, after the resets of their keys. begin fails when ctx ends, or
// at a time. Otherwise call end.
func (g *gate) begin(ctx context.Context, until time.Time, charges []store.Charge) error {
	return g.await(ctx, until, func() bool {
		free := g.none(&g.resets, charges)
		if free {
			g.add(&g.requests, charges, 1)
		}
		return free
	})
}

// end ends a request.
func (g *gate) end(charges []store.Charge) {
	g.remove(&g.requests, charges)
}

// beginReset begins a reset, and waits for the requests under way. beginReset fails when ctx ends,
// or at a time. Call endReset in any case.
func (g *gate) beginReset(ctx context.Context, until time.Time, charges []store.Charge) error {
	g.mu.Lock()
	g.add(&g.resets, charges, 1)
	g.mu.Unlock()
	return g.await(ctx, until, func() bool { return g.none(&g.requests, charges) })
}

// endReset ends a reset.
func (g *gate) endReset(charges []store.Charge) {
	g.remove(&g.resets, charges)
}

// await waits until ready, which runs with mu locked, returns true.
func (g *gate) await(ctx context.Context, until time.Time, ready func() bool) error {
	for {
		g.mu.Lock()
		if ready() {
			g.mu.Unlock()
			return nil
		}
		if g.changed == nil {
			g.changed = make(chan struct{})
		}
		changed := g.changed
		g.mu.Unlock()
		timer := time.NewTimer(time.Until(until))
		var over error
		select {
		case <-changed:
		case <-timer.C:
			over = context.DeadlineExceeded
		case <-ctx.Done():
			over = ctx.Err()
		}
		timer.Stop()
		if over != nil {
			return fmt.Errorf("a reset and requests over several slots wait for each other: %w", over)
		}
	}
}

// none reports whether counts has no key of the charges.
func (g *gate) none(counts *[gateNumbers]int32, charges []store.Charge) bool {
	for i := range charges {
		if counts[g.number(&charges[i])] > 0 {
			return false
		}
	}
	return true
}

// remove takes the charges from counts, and wakes all that wait.
func (g *gate) remove(counts *[gateNumbers]int32, charges []store.Charge) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.add(counts, charges, -1)
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

func (g *gate) add(counts *[gateNumbers]int32, charges []store.Charge, n int32) {
	for i := range charges {
		counts[g.number(&charges[i])] += n
	}
}

func (g *gate) number(c *store.Charge) uint64 {
	return maphash.Bytes(g.seed, c.Key) % gateNumbers
}
