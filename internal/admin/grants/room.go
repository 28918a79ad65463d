package grants

import (
	"context"
	"fmt"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// maxBytes bounds the memory of all grants, see sizeOf.
const maxBytes = 64 << 20

// sizeOf is about the memory that a grant takes, in bytes. The limiter has the text of the key too.
func sizeOf(g *limiter.Grant) int {
	key := len(g.Domain) + len(g.Limit)
	for _, e := range g.Entries {
		key += 32 + len(e.Key) + len(e.Value)
	}
	return 500 + 2*key + len(g.Reason) + len(g.By) + len(g.Rule)
}

// full is the error about a grant for which there is no room.
func (k *Keeper) full() error {
	return fmt.Errorf("%w: %d, in %d MiB of memory", limiter.ErrTooManyGrants, k.options.Max, maxBytes>>20)
}

func (k *Keeper) fits(grants, bytes int) bool { return grants <= k.options.Max && bytes <= maxBytes }

// withLocked returns the number and the bytes of the grants with another one in a slot. mu must be
// held.
func (k *Keeper) withLocked(at string, g *limiter.Grant) (grants, bytes int) {
	grants, bytes = len(k.slots)+1, k.bytes+sizeOf(g)
	if was := k.slots[at]; was != nil {
		grants, bytes = grants-1, bytes-sizeOf(was)
	}
	return grants, bytes
}

// makeRoomLocked reports whether there is room for a grant in a slot. If need be, grants that have
// ended make room before their grace time is over, the first one to end first. mu must be held.
func (k *Keeper) makeRoomLocked(ctx context.Context, now time.Time, at string, g *limiter.Grant) bool {
	for {
		if k.fits(k.withLocked(at, g)) {
			return true
		}
		first := ""
		for at, g := range k.slots {
			if !g.Until.After(now) && (first == "" || g.Until.Before(k.slots[first].Until)) {
				first = at
			}
		}
		if first == "" {
			return false
		}
		k.goneLocked(ctx, []string{first})
	}
}
