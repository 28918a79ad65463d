package fallback

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// State is what the breaker does with requests.
type State uint8

// The states.
const (
	Closed   State = iota // the primary is asked
	Open                  // it is not
	HalfOpen              // it is, by one request at a time
)

// String returns the state as it stands in metrics: closed, open or half_open.
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case Open:
		return "open"
	case HalfOpen:
		return "half_open"
	default:
		return fmt.Sprintf("state(%d)", uint8(s))
	}
}

// Stats is the store's figures at one moment.
type Stats struct {
	State    State
	Since    time.Time // of the last change of state
	Opened   uint64    // times that the breaker opened, a first probe that failed included
	Failures Failures
	Decided  Decided
	Without  uint64 // requests of which charges were decided without the primary
}

// Failures counts requests that the primary failed, by why. Probes do not count.
type Failures struct {
	Timeout     uint64 // no answer in time
	Unavailable uint64 // errors that wrap Options.Unavailable
	Other       uint64
}

// Decided counts charges that were decided without the primary, by their policy. Those of Peek do not count.
type Decided struct{ Local, Allow, Deny uint64 }

// counts are the store's figures, all of what goes wrong, so that a healthy store never writes them.
type counts struct {
	timeout, unavailable, other atomic.Uint64
	local, allow, deny          atomic.Uint64
	without                     atomic.Uint64
}

func (c *counts) add(n Decided) {
	for _, each := range [...]struct {
		total *atomic.Uint64
		more  uint64
	}{{&c.local, n.Local}, {&c.allow, n.Allow}, {&c.deny, n.Deny}} {
		if each.more > 0 {
			each.total.Add(each.more)
		}
	}
}

// decided returns how many charges were decided without the primary.
func (c *counts) decided() uint64 { return c.local.Load() + c.allow.Load() + c.deny.Load() }

// countFailure counts a failure of the primary.
func (s *Store) countFailure(err error) {
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	switch {
	case s.unavailable != nil && errors.Is(err, s.unavailable):
		s.counts.unavailable.Add(1)
	case errors.Is(err, context.DeadlineExceeded), ok && timeout.Timeout():
		s.counts.timeout.Add(1)
	default:
		s.counts.other.Add(1)
	}
}

// State returns the breaker's state.
func (s *Store) State() State { return s.phase.Load().state }

// Stats returns the store's figures.
func (s *Store) Stats() Stats {
	p := s.phase.Load()
	return Stats{
		State:  p.state,
		Since:  p.since,
		Opened: p.opened,
		Failures: Failures{
			Timeout:     s.counts.timeout.Load(),
			Unavailable: s.counts.unavailable.Load(),
			Other:       s.counts.other.Load(),
		},
		Decided: Decided{Local: s.counts.local.Load(), Allow: s.counts.allow.Load(), Deny: s.counts.deny.Load()},
		Without: s.counts.without.Load(),
	}
}

// Ready returns nil when requests may ask the primary, all or single ones; else an error that says since when they may not
// and wraps the last reason.
func (s *Store) Ready() error {
	p := s.phase.Load()
	if p.state != Open {
		return nil
	}
	return fmt.Errorf("the store is away since %s: %w", p.since.UTC().Format(time.RFC3339), p.reason)
}
