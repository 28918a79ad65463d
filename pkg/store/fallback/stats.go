package fallback

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// State is a state of the breaker.
type State uint8

// The states.
const (
	Closed   State = iota // the primary is asked
	Open                  // the primary is not asked
	HalfOpen              // one request at a time asks the primary
)

// String returns the name in metrics: closed, open or half_open.
func (s State) String() string {
	if names := [...]string{"closed", "open", "half_open"}; int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Stats is the store's metrics at one moment.
type Stats struct {
	State    State
	Since    time.Time // of the last change of state
	Opened   uint64    // times that the breaker opened, also after a first probe that failed
	Failures Failures
	Decided  Decided
	Without  uint64 // requests with charges that were decided without the primary
	Carried  uint64 // hits that the local store applied and the primary is charged with later; without refunds
	Holders  uint64 // begins and ends of holders that the primary is told of later
	Fleet    int    // processes that share the primary, see Options.Fleet
}

// Failures counts requests that the primary failed, by cause. Probes do not count.
type Failures struct {
	Timeout     uint64 // no answer in time
	Unavailable uint64 // errors that wrap Options.Unavailable
	Other       uint64
}

// Decided counts charges that were decided without the primary, by policy. Peek does not count.
type Decided struct{ Local, Allow, Deny uint64 }

// metrics counts for Stats. While the primary serves nobody writes here.
type metrics struct {
	timeout, unavailable, other atomic.Uint64
	local, allow, deny          atomic.Uint64
	without, carried, holders   atomic.Uint64
}

func (m *metrics) add(n Decided) {
	m.local.Add(n.Local)
	m.allow.Add(n.Allow)
	m.deny.Add(n.Deny)
}

// decided returns how many charges were decided without the primary.
func (m *metrics) decided() uint64 { return m.local.Load() + m.allow.Load() + m.deny.Load() }

// countFailure counts a failure of the primary. See Options.Unavailable, which may be nil.
func (m *metrics) countFailure(err, unavailable error) {
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	switch {
	case unavailable != nil && errors.Is(err, unavailable):
		m.unavailable.Add(1)
	case errors.Is(err, context.DeadlineExceeded), ok && timeout.Timeout():
		m.timeout.Add(1)
	default:
		m.other.Add(1)
	}
}

// State returns the breaker's state.
func (s *Store) State() State { return s.phase.Load().state }

// Stats returns the store's metrics.
func (s *Store) Stats() Stats {
	p := s.phase.Load()
	m := &s.metrics
	return Stats{
		State:    p.state,
		Since:    p.since,
		Opened:   p.opened,
		Failures: Failures{Timeout: m.timeout.Load(), Unavailable: m.unavailable.Load(), Other: m.other.Load()},
		Decided:  Decided{Local: m.local.Load(), Allow: m.allow.Load(), Deny: m.deny.Load()},
		Without:  m.without.Load(),
		Carried:  m.carried.Load(),
		Holders:  m.holders.Load(),
		Fleet:    s.fleetSize(),
	}
}

// Ready returns nil when the breaker is closed or half-open. When it is open the error says since
// when and wraps the last reason.
func (s *Store) Ready() error {
	p := s.phase.Load()
	if p.state != Open {
		return nil
	}
	return fmt.Errorf("the store is away since %s: %w", p.since.UTC().Format(time.RFC3339), p.reason)
}
