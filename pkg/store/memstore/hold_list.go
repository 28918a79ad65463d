package memstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Holders implements [store.Store], for every algorithm. For a rate limit it looks at all holders
// of the key's shard. Holders fails only when ctx has ended.
func (s *Store) Holders(ctx context.Context, charge *store.Charge, most int) (held []store.Held, all int, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	key := s.digest(charge)
	sh := s.shardOf(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := sh.instantLocked(s)
	if charge.Limit.Algorithm != algorithms.Concurrency {
		held, all = sh.holders.list(key.tag(), most, now)
		return held, all, nil
	}
	place, found := sh.table.find(key)
	if !found {
		return nil, 0, nil
	}
	l := sh.expireLocked(place, now)
	for n := l.first; n != 0 && len(held) < most; n = sh.holders.of(n).after {
		held = append(held, sh.holders.of(n).held())
	}
	return held, int(l.count), nil
}

func (r *holderRecord) held() store.Held {
	return store.Held{Holder: r.holder, Hits: r.hits, At: r.at, Until: r.until}
}

// list returns the holders of a rate limit's state that hold at now, the next one to run out first.
// There are at most that many; all is the number without that bound.
func (h *holders) list(t stateTag, most int, now algorithms.Instant) (held []store.Held, all int) {
	trim := func() {
		slices.SortFunc(held, func(a, b store.Held) int {
			return cmp.Or(cmp.Compare(a.Until, b.Until), slices.Compare(a.Holder[:], b.Holder[:]))
		})
		held = held[:min(len(held), max(most, 0))]
	}
	for n := range h.rates(0, len(h.chunks)) {
		r := h.of(n)
		if r.tag() != t || r.kind() != kindHeld || r.until <= now {
			continue
		}
		all++
		if most <= 0 {
			continue
		}
		if len(held) >= 2*most+1024 {
			trim()
		}
		held = append(held, r.held())
	}
	trim()
	return held, all
}
