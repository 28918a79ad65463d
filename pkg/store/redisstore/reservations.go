package redisstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// reservations keeps resets of this process apart from its requests over several slots. A reset between the two round trips of a
// request would forget the reserved hits, and the settlement would give back hits of others. So a reset waits for the requests
// under way that reserve its keys, and later requests for these keys wait for the reset.
//
// Keys are told apart by hash: two keys with one number only wait for each other.
type reservations struct {
	mu       sync.Mutex // guards the fields below
	requests [reservedNumbers]int32
	resets   [reservedNumbers]int32
	changed  chan struct{} // closed when a request or a reset ends; nil: nobody waits
}

const reservedNumbers = 1024

// begin begins a request of charges, after the resets of their keys. begin fails when ctx ends, or at a time. Otherwise call end.
func (r *reservations) begin(ctx context.Context, until time.Time, seed maphash.Seed, charges []store.Charge) error {
	return r.await(ctx, until, func() bool {
		for i := range charges {
			if r.resets[reservedNumber(seed, &charges[i])] > 0 {
				return false
			}
		}
		add(&r.requests, seed, charges, 1)
		return true
	})
}

// end ends a request.
func (r *reservations) end(seed maphash.Seed, charges []store.Charge) {
	r.remove(&r.requests, seed, charges)
}

// beginReset begins a reset, and waits for the requests under way. beginReset fails when ctx ends, or at a time. Call endReset in any
// case.
func (r *reservations) beginReset(ctx context.Context, until time.Time, seed maphash.Seed, charges []store.Charge) error {
	r.mu.Lock()
	add(&r.resets, seed, charges, 1)
	r.mu.Unlock()
	return r.await(ctx, until, func() bool {
		for i := range charges {
			if r.requests[reservedNumber(seed, &charges[i])] > 0 {
				return false
			}
		}
		return true
	})
}

// endReset ends a reset.
func (r *reservations) endReset(seed maphash.Seed, charges []store.Charge) {
	r.remove(&r.resets, seed, charges)
}

// await waits until ready, which runs with mu locked, returns true.
func (r *reservations) await(ctx context.Context, until time.Time, ready func() bool) error {
	for {
		r.mu.Lock()
		if ready() {
			r.mu.Unlock()
			return nil
		}
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
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

// remove takes the charges from counts, and wakes all that wait.
func (r *reservations) remove(counts *[reservedNumbers]int32, seed maphash.Seed, charges []store.Charge) {
	r.mu.Lock()
	defer r.mu.Unlock()
	add(counts, seed, charges, -1)
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

func add(counts *[reservedNumbers]int32, seed maphash.Seed, charges []store.Charge, n int32) {
	for i := range charges {
		counts[reservedNumber(seed, &charges[i])] += n
	}
}

func reservedNumber(seed maphash.Seed, c *store.Charge) uint64 {
	return maphash.Bytes(seed, c.Key) % reservedNumbers
}
