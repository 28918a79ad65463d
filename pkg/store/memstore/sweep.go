package memstore

import (
	"context"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// sweep visits every shard once in an interval, a few at a time, until ctx ends.
func (s *Store) sweep(ctx context.Context, interval time.Duration) {
	const maxTicks = 100 // in an interval
	ticks := min(maxTicks, len(s.shards))
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

// sweepShard frees the idle states of a shard. While the store is about full sweepShard also ranks the others, so that a request that
// needs room does not have to.
func (s *Store) sweepShard(sh *shard) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := sh.instantLocked(s.now())
	if freed := sh.sweepLocked(now); freed > 0 {
		s.metrics.keys.Add(-int64(freed))
		s.metrics.swept.Add(uint64(freed))
	}
	if s.metrics.keys.Load() >= s.maxKeys-s.maxKeys/8 {
		sh.rankLocked(now)
		return
	}
	sh.nearest = nearest{}
	sh.publishLocked()
}

// sweepLocked frees the idle states and returns their number. mu must be held.
func (sh *shard) sweepLocked(now algorithms.Instant) int {
	before := int(sh.table.count) + len(sh.logs)
	t := &sh.table
	t.sweep(func(s *slot) bool {
		idle := algorithms.IdleAt(*sh.limits.of(s.limit()), s.state) <= now
		if idle {
			sh.limits.release(s.limit())
		}
		return idle
	})
	if t.homes > 4*minHomes && t.count < t.homes/2 {
		t.resize(t.count + t.count/4)
	}
	if renumbered := sh.limits.shrink(); renumbered != nil {
		t.renumber(renumbered)
	}
	for key, state := range sh.logs {
		if state.log.IdleAt(state.limit) <= now {
			delete(sh.logs, key)
		}
	}
	if len(sh.logs) == 0 {
		sh.logs = nil // an emptied map keeps its room
	}
	return before - int(t.count) - len(sh.logs)
}
