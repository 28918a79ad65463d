package memstore

import (
	"sync/atomic"
)

// metrics counts for Stats, on cache lines that a request without a new key does not touch.
type metrics struct {
	places                             atomic.Int64 // of remembered keys, and claimed for others
	holds                              atomic.Int64 // remembered holders, and places claimed for others
	evicted, swept, allowed, deniedNew atomic.Uint64
	joined                             atomic.Uint64
	holdsAllowed, holdsDenied          atomic.Uint64
	clockSteps                         atomic.Uint64
}

// Stats is the store's metrics at one moment.
type Stats struct {
	Keys        int    // remembered now
	Places      int    // that these keys take, at most MaxKeys: one for a key, and three or more for a key of sliding_window_log
	MaxKeys     int    // the bound
	Evicted     uint64 // forgotten to make room
	Swept       uint64 // freed because they were idle
	FullAllowed uint64 // new keys that were decided but not remembered
	FullDenied  uint64 // new keys that were denied
	FullJoined  uint64 // charges of known logs that joined the newest hits, as the log found no place to grow
	ClockSteps  uint64 // steps of the wall clock that the store has followed

	HoldersHeld        int    // holders that hold hits now; until a sweep also holders that have run out
	HoldersDenied      int    // denied ones that are remembered
	HoldersEnded       int    // ended ones that are remembered
	MaxHolds           int    // the bound of the three together
	HoldersRanOut      uint64 // that held hits until they ran out
	HoldersDropped     uint64 // denied and ended ones that were forgotten to make room
	FullHoldersAllowed uint64 // begins that were decided but not remembered
	FullHoldersDenied  uint64 // begins that were denied
}

// Stats returns the store's metrics.
func (s *Store) Stats() Stats {
	st := Stats{
		Places:      int(s.metrics.places.Load()),
		MaxKeys:     int(s.maxKeys),
		Evicted:     s.metrics.evicted.Load(),
		Swept:       s.metrics.swept.Load(),
		FullAllowed: s.metrics.allowed.Load(),
		FullDenied:  s.metrics.deniedNew.Load(),
		FullJoined:  s.metrics.joined.Load(),
		ClockSteps:  s.metrics.clockSteps.Load(),

		MaxHolds:           int(s.maxHolds),
		FullHoldersAllowed: s.metrics.holdsAllowed.Load(),
		FullHoldersDenied:  s.metrics.holdsDenied.Load(),
	}
	for i := range s.shards { // one after the other
		sh := &s.shards[i]
		sh.mu.Lock()
		st.Keys += int(sh.table.count)
		h := &sh.holders
		st.HoldersHeld += h.kinds[kindSlots] + h.kinds[kindHeld]
		st.HoldersDenied += h.kinds[kindDenied]
		st.HoldersEnded += h.kinds[kindEnded]
		st.HoldersRanOut += h.ranOut
		st.HoldersDropped += h.dropped
		sh.mu.Unlock()
	}
	return st
}
