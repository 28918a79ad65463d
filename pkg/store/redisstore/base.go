package redisstore

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// Granularity is Redis's unit of time. A limit's period must be a whole multiple.
const Granularity = owed.Granularity

// base has the fields that all parts of a store share.
type base struct {
	timeout     time.Duration
	script      string
	sha         string // of script: its name in Redis
	seedScript  *rueidis.Lua
	logger      *slog.Logger
	metrics     metrics
	started     time.Time
	misses      atomic.Int64                // when a caller last stopped to wait for an answer, see pulse; 0: never
	name        [8]byte                     // of this process, for the others that share the main server
	former      atomic.Pointer[[8]byte]     // the name of the process before, see Succeed; nil: not known
	share       atomic.Uint64               // of this process, as Redis has told it: From and To
	told        atomic.Bool                 // see store.Health
	regained    atomic.Pointer[owed.Clocks] // when Redis was last found back; nil: it may be away
	processes   atomic.Int64                // that share the main server, as Redis has counted them; 0: it has not
	assumed     atomic.Int64                // the least number of these until all of them are counted; 0: not known
	hasCounters bool                        // there may be counters
	given       func() algorithms.Instant   // the instant, in tests; nil: Redis's time
	silences    chan struct{}               // holds a value when a shard has been silent since the last look
}

// here returns the instant by this process's clock, or 0 without counters, which alone need the
// instant.
func (b *base) here() algorithms.Instant {
	switch {
	case !b.hasCounters:
		return 0
	case b.given != nil:
		return b.given()
	}
	return algorithms.Instant(time.Now().UnixNano())
}

// givenNow returns the instant that a test gives, in microseconds; 0: Redis's time counts.
func (b *base) givenNow() int64 {
	if b.given == nil {
		return 0
	}
	return int64(b.given()) / int64(Granularity)
}

// fleetSize returns the number of processes that share the main server; 0: not known.
func (b *base) fleetSize() int { return int(max(b.processes.Load(), b.assumed.Load())) }
