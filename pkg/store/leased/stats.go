package leased

import "sync/atomic"

// Stats is the store's metrics at one moment.
type Stats struct {
	Keys    int    // tracked, with a lease or without
	Leases  int    // keys that hold hits now
	Held    uint64 // hits that can be spent here now
	Parked  uint64 // hits that the buckets of these keys must lack beside: see Stranded
	Decided uint64 // charges decided from a lease
	Granted uint64 // hits
	Back    uint64 // hits given back
	Expired uint64 // hits that ended with their window
	Refused uint64 // grants that the shared store denied
	Failed  uint64 // grants without an answer
	Without uint64 // requests decided without the shared store, as a grant had no answer
}

// Stranded returns how many hits lie here at most that no other process can use.
func (s *Stats) Stranded() uint64 { return s.Held + s.Parked }

// metrics counts for Stats, beside the shards.
type metrics struct{ refused, failed, without atomic.Uint64 }

// Stats returns the store's metrics.
func (s *Store) Stats() Stats {
	all := Stats{
		Keys: int(s.keys.Load()), Refused: s.metrics.refused.Load(), Failed: s.metrics.failed.Load(), Without: s.metrics.without.Load(),
	}
	now := s.now()
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		all.Decided += sh.leased
		all.Granted += sh.granted
		all.Back += sh.back
		all.Expired += sh.expired
		for _, k := range sh.keys {
			if held := k.held(now); held > 0 {
				all.Leases++
				all.Held += uint64(held)
				all.Parked += uint64(k.bounds.park)
			}
		}
		sh.mu.Unlock()
	}
	return all
}
