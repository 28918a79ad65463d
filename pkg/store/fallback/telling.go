package fallback

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

const (
	// tellingSlack is the time in which a process tells its hits after it has found out that the
	// primary is back.
	tellingSlack = time.Second
	// tellingPeriod is the shortest period of limits that wait for the hits of other processes. In a
	// shorter one few of these hits matter.
	tellingPeriod = time.Minute
)

// isTelling reports whether other processes may still have hits of an outage that the primary does
// not know of.
func (p *phase) isTelling() bool {
	if p.state == HalfOpen || time.Now().Before(p.told) {
		return true
	}
	p.telling.Store(false)
	return false
}

// isShared reports whether there are other processes, and hits to tell.
func (s *Store) isShared() bool { return s.outbox != nil && s.fleetSize() > 1 }

// outlast reports whether hits of an outage matter to all charges of a request long after the
// outage. The local store then decides them. Holders of slots matter until their end. The end of a
// holder is for the primary.
func outlast(charges []store.Charge) bool {
	for i := range charges {
		c := &charges[i]
		if !isLocal(c) || isEnd(c) || c.Limit.Period < tellingPeriod && c.Limit.Algorithm != algorithms.Concurrency {
			return false
		}
	}
	return len(charges) > 0
}

// Settled reports whether the primary decides all requests: the breaker is closed, and all
// processes have told their hits of the last outage.
func (s *Store) Settled() bool {
	p := s.phase.Load()
	return p.state == Closed && !(p.telling.Load() && p.isTelling())
}
