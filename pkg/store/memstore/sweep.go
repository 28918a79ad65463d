package memstore

import (
	"context"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// sweep visits every shard once in an interval, a few at a time, until ctx ends.
func (s *Store) sweep(ctx context.Context, interval time.Duration) {
	const most = 100 // ticks in an interval
	ticks := min(most, len(s.shards))
	tick := time.NewTicker(max(interval/time.Duration(ticks), 1))
	defer tick.Stop()
	next := 0
	for turn := 1; ; turn++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for end := (turn%ticks + 1) * len(s.shards) / ticks; next < end; next++ {
			s.sweepShard(&s.shards[next])
		}
		if next == len(s.shards) {
			next = 0
		}
	}
}

// sweepShard frees the shard's states that are as if never used. While the store is about full it also ranks the others, so
// that a request which needs room finds that done.
func (s *Store) sweepShard(sh *shard) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := sh.instantLocked(s.now())
	if freed := sh.sweepLocked(now); freed > 0 {
		s.counts.keys.Add(-int64(freed))
		s.counts.swept.Add(uint64(freed))
	}
	if s.counts.keys.Load() >= s.maxKeys-s.maxKeys/8 {
		sh.rankLocked(now)
		return
	}
	sh.nearest = nearest{}
	sh.publishLocked()
}

// sweepLocked frees the states that are as if never used and returns how many. mu must be held.
func (sh *shard) sweepLocked(now algorithms.Instant) int {
	before := int(sh.table.count) + len(sh.logs)
	t := &sh.table
	t.sweep(func(s *slot) bool {
		fresh := algorithms.FreshAt(*sh.limits.of(s.limit()), s.state) <= now
		if fresh {
			sh.limits.release(s.limit())
		}
		return fresh
	})
	if t.homes > 4*minHomes && t.count < t.homes/2 {
		t.resize(t.count + t.count/4)
	}
	if renumbered := sh.limits.shrink(); renumbered != nil {
		t.renumber(renumbered)
	}
	for key, state := range sh.logs {
		if state.log.FreshAt(state.limit) <= now {
			delete(sh.logs, key)
		}
	}
	if len(sh.logs) == 0 {
		sh.logs = nil // an emptied map keeps its room
	}
	return before - int(t.count) - len(sh.logs)
}
