package memstore

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// room is the places that a transaction has claimed for new keys.
type room struct {
	held int  // claimed and not yet taken
	full bool // no key could be forgotten: new keys are not remembered
}

// claim claims places until r holds n, or reports false if the store has too few.
func (s *Store) claim(r *room, n int) bool {
	if r.held >= n {
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

// claimLocked claims a place for one new key of a locked shard. A full store, or a full shard, first forgets a key of that shard.
// claimLocked reports false if another shard must forget a key.
func (s *Store) claimLocked(r *room, sh *shard, now algorithms.Instant) bool {
	full := sh.roomLocked() < 1
	if !full && s.claim(r, 1) {
		return true
	}
	if s.evictLocked(r, sh, now) {
		return true
	}
	r.full = full
	return full
}

// evictLocked forgets a key of a locked shard, so that r holds the key's place, or reports false.
func (s *Store) evictLocked(r *room, sh *shard, now algorithms.Instant) bool {
	if !sh.evictLocked(now) {
		return false
	}
	r.held++
	s.metrics.evicted.Add(1)
	return true
}

// makeRoom forgets keys until r holds a place for a new key in each of the shards, which may repeat. Each shard makes room for its own
// new keys. If each key of a shard is denied now, another shard makes room. If too few keys can be forgotten, r is full. No shard may
// be locked.
func (s *Store) makeRoom(r *room, shards ...int) {
	for r.held < len(shards) {
		if s.claim(r, r.held+1) {
			continue
		}
		if !s.evict(r, shards[r.held]) && !s.evictElsewhere(r) {
			r.full = true
			return
		}
	}
}

// evictElsewhere forgets a key of any shard, or reports false. Each call starts at another shard, so that all shards give alike.
func (s *Store) evictElsewhere(r *room) bool {
	start := int(s.turn.Add(1))
	for i := range s.shards {
		if s.evict(r, (start+i)&(len(s.shards)-1)) {
			return true
		}
	}
	return false
}

// evict forgets a key of a shard, or reports false.
func (s *Store) evict(r *room, shard int) bool {
	if int64(s.now()) < s.opens[shard].Load() {
		return false
	}
	sh := &s.shards[shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return s.evictLocked(r, sh, sh.instantLocked(s))
}

// full gives the decision for a new key that is not remembered.
func (s *Store) full(d *algorithms.Decision, now algorithms.Instant) {
	if s.onFull == Allow {
		s.metrics.allowed.Add(1)
		return
	}
	s.metrics.deniedNew.Add(1)
	opens := algorithms.Instant(never)
	for i := range s.opens {
		opens = min(opens, algorithms.Instant(s.opens[i].Load()))
	}
	wait := max(opens.Sub(now), time.Nanosecond)
	*d = algorithms.Decision{RetryAfter: wait, ResetAfter: wait}
}
