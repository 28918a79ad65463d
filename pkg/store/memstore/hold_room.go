package memstore

import "github.com/weirproxy/weir/pkg/algorithms"

// claimHolds claims places of holders until r has n, or reports false if the store has too few.
func (s *Store) claimHolds(r *room, n int) bool {
	if r.holds >= n {
		return true
	}
	if !reserve(&s.metrics.holds, int64(n-r.holds), s.maxHolds) {
		return false
	}
	r.holds = n
	return true
}

// claimHold claims the place of one holder without a room, or reports false.
func (s *Store) claimHold() bool { return reserve(&s.metrics.holds, 1, s.maxHolds) }

// claimHoldsLocked is claimHolds that forgets holders of a locked shard if the store has too few
// places.
func (s *Store) claimHoldsLocked(r *room, n int, sh *shard, now algorithms.Instant) bool {
	for !s.claimHolds(r, n) {
		if !sh.holders.makeRoom(now) {
			return false
		}
	}
	return true
}

// makeRoomForHolds forgets denied and ended holders of any shard until r has n places of holders.
// If there are too few, r is full for holders. No shard may be locked.
func (s *Store) makeRoomForHolds(r *room, n int) {
	start := int(s.turn.Add(1))
	for i := range s.shards {
		shard := (start + i) & (len(s.shards) - 1)
		if !s.spent[shard].Load() {
			continue
		}
		sh := &s.shards[shard]
		sh.mu.Lock()
		claimed := s.claimHoldsLocked(r, n, sh, sh.instantLocked(s))
		sh.mu.Unlock()
		if claimed {
			return
		}
	}
	r.holdFull = !s.claimHolds(r, n)
}
