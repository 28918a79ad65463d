package redisstore

import (
	"sync/atomic"

	"github.com/weirproxy/weir/internal/durations"
)

// counts are the store's figures.
type counts struct {
	calls, transactions    atomic.Uint64
	deniedHere, deniedHits atomic.Uint64
	deferredHits, lostHits atomic.Uint64
	roundTrip              durations.Histogram
}

// Stats is the store's figures at one moment.
type Stats struct {
	RoundTrips   uint64             // calls of the script
	Transactions uint64             // requests, or the parts of them in one slot, in those calls
	RoundTrip    durations.Snapshot // of the calls
	DeniedHere   uint64             // requests denied from memory, without asking Redis
	DeniedHits   uint64             // hits of those of their charges that were denied
	Denials      int                // keys whose denial is remembered now
	DeferredHits uint64             // hits of requests denied from memory that Redis was told of later
	LostHits     uint64             // those that it could not be told of
}

// Stats returns the store's figures.
func (s *Store) Stats() Stats {
	return Stats{
		RoundTrips:   s.counts.calls.Load(),
		Transactions: s.counts.transactions.Load(),
		RoundTrip:    s.counts.roundTrip.Snapshot(),
		DeniedHere:   s.counts.deniedHere.Load(),
		DeniedHits:   s.counts.deniedHits.Load(),
		Denials:      int(s.denials.keys.Load()),
		DeferredHits: s.counts.deferredHits.Load(),
		LostHits:     s.counts.lostHits.Load(),
	}
}
