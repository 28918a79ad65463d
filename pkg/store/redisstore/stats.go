package redisstore

import (
	"sync/atomic"

	"github.com/weirproxy/weir/internal/durations"
	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/pkg/store"
)

type metrics struct {
	calls, transactions    atomic.Uint64
	deferredHits, lostHits atomic.Uint64
	unknownHits            atomic.Uint64
	expiredHits            atomic.Uint64
	toldHolds, lostHolds   atomic.Uint64
	expiredHolds           atomic.Uint64
	disagreements          atomic.Uint64
	disagreementLogged     loglimit.Limiter
	seeded                 atomic.Uint64
	roundTrip              durations.Histogram
}

// Stats is the store's metrics at one moment.
type Stats struct {
	RoundTrips   uint64          // calls of the script
	Transactions uint64          // in these calls: requests, or the parts of requests in one slot
	RoundTrip    store.Durations // of each call
	DeferredHits uint64          // hits that were sent later, see [Store.Later]: charged or given back
	LostHits     uint64          // hits that should have been charged, and were not for certain: limits may admit as many too many
	UnknownHits  uint64          // at most so many were charged too often: for each call without a known outcome, or not given back
	ExpiredHits  uint64          // hits that came to matter to no decision before Redis could be told
	OwedKeys     int             // keys with hits that Redis does not know of, now, counted once for each window

	ToldHolds    uint64 // begins and ends of holders that were sent later, see [Store.HoldLater]
	LostHolds    uint64 // begins and ends that should have been
	ExpiredHolds uint64 // begins and ends that came to matter to nothing before Redis could be told
	OwedHolders  int    // holders with begins or ends that Redis does not know of, now

	Fleet        int  // see [store.Health]
	FleetCounted bool // Redis has counted the processes, see [Store.Assume]
	OtherZones   int  // releases of time zones that other processes have, see [Store.CompareZones]

	Disagreements uint64 // transactions of which the script and package algorithms gave different verdicts; the script's counts

	InvalidReplies uint64 // connections that ended because Redis sent a reply that cannot be one
	SeededKeys     uint64 // keys whose states Redis had lost, and got back from this process
	EvictedKeys    uint64 // that the servers have evicted since their starts, as last asked: once a minute
}
