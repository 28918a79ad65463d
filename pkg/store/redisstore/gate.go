package redisstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// gate keeps resets of this process apart from its requests over several slots. The gate is not the
// breaker, which says whether Redis is asked. A reset between the two round trips of a request
// would forget the reserved hits, and the settlement would give back hits of others. So a reset
// waits for the requests under way that reserve its keys, and later requests for these keys wait
// for the reset.
//
// Keys are told apart by hash: two keys with one number only wait for each other.
type gate struct {
	mu      sync.Mutex // guards the fields below
	inside  [2][1024]int32
	changed chan struct{} // closed when somebody leaves; nil: nobody waits
}

// Requests and resets wait for each other.
const (
	aRequest = 0
	aReset   = 1
)

// pass waits until nobody of the other kind is inside with one of the keys, at most until a time. A
// reset is inside from the call on, also after an error. A request is inside after a success only.
// Then call leave.
func (g *gate) pass(ctx context.Context, until time.Time, who int, charges []store.Charge) error {
	if who == aReset {
		g.mu.Lock()
		g.addLocked(who, charges, 1)
		g.mu.Unlock()
	}
	changed := g.look(who, charges)
	if changed == nil {
		return nil
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for ; changed != nil; changed = g.look(who, charges) {
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("a reset and requests over several slots wait for each other: %w", ctx.Err())
		}
	}
	return nil
}

// look returns nil if the charges may pass, else a channel that closes when somebody leaves. A
// request is then inside.
func (g *gate) look(who int, charges []store.Charge) (changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range charges {
		if *g.countLocked(1-who, &charges[i]) > 0 {
			if g.changed == nil {
				g.changed = make(chan struct{})
			}
			return g.changed
		}
	}
	if who == aRequest {
		g.addLocked(who, charges, 1)
	}
	return nil
}

func (g *gate) leave(who int, charges []store.Charge) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.addLocked(who, charges, -1)
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

func (g *gate) addLocked(who int, charges []store.Charge, n int32) {
	for i := range charges {
		*g.countLocked(who, &charges[i]) += n
	}
}

func (g *gate) countLocked(who int, c *store.Charge) *int32 {
	return &g.inside[who][c.KeyHash()%uint64(len(g.inside[who]))]
}
