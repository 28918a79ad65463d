package memstore

import (
	"math"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// room is the places that a transaction has claimed for new keys.
type room struct {
	held int  // claimed and not yet taken
	full bool // nothing could be forgotten: the keys that are new are not remembered
}

// claim makes sure that r holds n places, or reports false when the store has not got them. A full r needs none.
func (s *Store) claim(r *room, n int) bool {
	if r.full || r.held >= n {
		return true
	}
	want := int64(n - r.held)
	for {
		keys := s.counts.keys.Load()
		if keys+want > s.maxKeys {
			return false
		}
		if s.counts.keys.CompareAndSwap(keys, keys+want) {
			r.held = n
			return true
		}
	}
}

// giveBack returns the places that were not taken.
func (s *Store) giveBack(r *room) {
	if r.held > 0 {
		s.counts.keys.Add(-int64(r.held))
		r.held = 0
	}
}

// makeRoom gets r the n places it lacks, by forgetting the keys nearest to as if never used; when too few can be forgotten
// it makes r full. No shard may be locked.
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
		s.counts.allowed.Add(1)
		return
	}
	s.counts.deniedNew.Add(1)
	opens := algorithms.Instant(math.MaxInt64)
	for i := range s.offers {
		opens = min(opens, algorithms.Instant(s.offers[i].opens.Load()))
	}
	wait := max(opens.Sub(now), time.Nanosecond)
	*d = algorithms.Decision{RetryAfter: wait, ResetAfter: wait}
}

// evict forgets the key nearest to as if never used among those that are not denied now, and reports whether there was one.
// It leaves the key's place claimed.
func (s *Store) evict() bool {
	for range 4*len(s.shards) + 1024 { // a bound; a few are enough unless others evict at once
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
			s.counts.evicted.Add(1)
			return true
		}
	}
	return false
}
