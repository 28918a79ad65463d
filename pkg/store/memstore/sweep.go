package memstore

import (
	"context"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// sweep visits every shard once in an interval, a few at a time, until ctx ends. Each time it also
// looks at the wall clock.
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
		s.followWallClock()
		for end := (turn%ticks + 1) * len(s.shards) / ticks; next < end; next++ {
			s.sweepShard(&s.shards[next])
			s.sweepHolders(&s.shards[next])
		}
		if next == len(s.shards) {
			s.blocks.sweep(s)
			next = 0
		}
	}
}

// Sweep frees all idle states and all holders that have run out. A store in real time does so by
// itself; in Options.Virtual time may pass faster than the sweep goes round.
func (s *Store) Sweep() {
	s.blocks.sweep(s)
	for i := range s.shards {
		s.sweepShard(&s.shards[i])
		s.sweepHolders(&s.shards[i])
	}
}

// sweepShard frees the idle states of a shard. The shard then looks for keys to forget anew, as
// buckets have filled since.
func (s *Store) sweepShard(sh *shard) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s.metrics.free(sh.sweepLocked(sh.instantLocked(s)))
	sh.candidates.reset()
}

// sweepHolders frees the holders of a shard that have run out, some under each lock.
func (s *Store) sweepHolders(sh *shard) {
	for from := 0; ; {
		sh.mu.Lock()
		from = sh.holders.sweep(from, sh.instantLocked(s))
		if from == 0 {
			sh.holders.shrink()
		}
		sh.mu.Unlock()
		if from == 0 {
			return
		}
	}
}

// free counts keys that were idle and are forgotten, and gives their places back.
func (m *metrics) free(keys, places int) {
	if keys > 0 {
		m.places.Add(-int64(places))
		m.swept.Add(uint64(keys))
	}
}

// sweepLocked frees the idle states and returns their number and the places that they took. mu must
// be held.
func (sh *shard) sweepLocked(now algorithms.Instant) (keys, places int) {
	t := &sh.table
	before := t.count
	t.sweep(func(s *slot) bool {
		idle := sh.idleLocked(s, now)
		if idle {
			places += sh.releaseLocked(s)
		}
		return idle
	})
	t.shrink()
	if renumbered := sh.limits.shrink(); renumbered != nil {
		for s := range t.each {
			s.setLimit(renumbered[s.limit()])
		}
	}
	if renumbered := sh.logs.shrink(); renumbered != nil {
		for s := range t.each {
			if sh.limits.of(s.limit()).Algorithm == algorithms.SlidingWindowLog {
				l := logStateOf(s.state)
				l.number = renumbered[l.number]
				s.state = l.state()
			}
		}
	}
	return int(before - t.count), places
}

// idleLocked reports whether the key of a slot is idle. Holders of the key that have run out are
// forgotten. mu must be held.
func (sh *shard) idleLocked(s *slot, now algorithms.Instant) bool {
	if sh.limits.of(s.limit()).Algorithm != algorithms.Concurrency {
		return sh.idleAtLocked(s) <= now
	}
	l := lineOf(s.state)
	if sh.holders.expire(&l, now) {
		s.state = l.state()
	}
	return l.count == 0
}

// idleAtLocked returns the instant from which the key of a slot is idle, if no holder of it ends
// sooner. mu must be held.
func (sh *shard) idleAtLocked(s *slot) algorithms.Instant {
	switch l := sh.limits.of(s.limit()); l.Algorithm {
	case algorithms.SlidingWindowLog:
		return logStateOf(s.state).idle
	case algorithms.Concurrency:
		line := lineOf(s.state)
		return sh.holders.slots(&line).Last
	default:
		return algorithms.IdleAt(*l, s.state)
	}
}
