package memstore

import (
	"math"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// room is the places that a transaction has claimed for new keys.
type room struct {
	held int  // claimed and not yet taken
	full bool // no key could be forgotten: new keys are not remembered
}

// claim claims places until r holds n, or reports false if the store has too few. A full r needs no place.
func (s *Store) claim(r *room, n int) bool {
	if r.full || r.held >= n {
		return true
	}
	want := int64(n - r.held)
	for {
		keys := s.metrics.keys.Load()
		if keys+want > s.maxKeys {
			return false
		}
		if s.metrics.keys.CompareAndSwap(keys, keys+want) {
			r.held = n
			return true
		}
	}
}

// giveBack returns the places that were not taken.
func (s *Store) giveBack(r *room) {
	if r.held > 0 {
		s.metrics.keys.Add(-int64(r.held))
		r.held = 0
	}
}

// makeRoom forgets keys until r holds n places: keys that are idle soonest, first. If too few can be forgotten r is full. No shard may
// be locked.
func (s *Store) makeRoom(r *room, n int) {
	for r.held < n {
		if s.claim(r, r.held+1) {
			continue
		}
		if !s.evict() {
			r.full = true
			return
		}
		r.held++ // the place of the forgotten key
	}
}

// full gives the decision for a new key that is not remembered.
func (s *Store) full(d *algorithms.Decision, now algorithms.Instant) {
	if s.onFull == Allow {
		s.metrics.allowed.Add(1)
		return
	}
	s.metrics.deniedNew.Add(1)
	opens := algorithms.Instant(math.MaxInt64)
	for i := range s.offers {
		opens = min(opens, algorithms.Instant(s.offers[i].opens.Load()))
	}
	wait := max(opens.Sub(now), time.Nanosecond)
	*d = algorithms.Decision{RetryAfter: wait, ResetAfter: wait}
}

// evict forgets the key that is idle soonest, of all keys that are not denied now, and reports whether there was one. The key's place
// stays claimed.
func (s *Store) evict() bool {
	for range 4*len(s.shards) + 1024 { // a bound; a few turns suffice unless others evict at once
		now := s.now()
		best, at := -1, int64(math.MaxInt64)
		for i := range s.offers {
			if offered := s.offers[i].at(int64(now)); offered < at {
				best, at = i, offered
			}
		}
		if best < 0 {
			return false
		}
		sh := &s.shards[best]
		sh.mu.Lock()
		evicted := sh.evictLocked(sh.instantLocked(now))
		sh.mu.Unlock()
		if evicted {
			s.metrics.evicted.Add(1)
			return true
		}
	}
	return false
}
