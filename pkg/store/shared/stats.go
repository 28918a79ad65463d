package shared

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Stats is the store's metrics at one moment.
type Stats struct {
	State    State     // of the shard that answers worst
	Since    time.Time // of its last change of state
	Shards   []Shard
	Opened   uint64        // times that a circuit of the breaker opened, also after a first call of Await that failed
	Released uint64        // requests that waited no longer for a shard, when its circuit opened
	Silent   time.Duration // sum of the times for which shards were silent before their circuits opened
	Failures Failures
	Decided  Decided
	Without  uint64  // requests with charges that were decided without the remote store
	Divided  uint64  // charges that were denied without the remote store as their hits were left, but not in the part of this process
	Carried  uint64  // hits that the local store applied and the remote store is charged with later; without refunds
	Holders  uint64  // begins and ends of holders that the remote store is told of later
	Fleet    int     // processes that share the remote store, at least 1
	Share    float64 // part of the hits left that this process admits without the remote store

	Denials Denials
	Leases  Leases
}

// Shard is the state of the circuit of one shard of the remote store.
type Shard struct {
	Name  string
	State State
	Since time.Time // of the last change of state
}

// Failures counts requests that the remote store failed, by cause. Calls of Await do not count.
type Failures struct {
	Timeout     uint64 // no answer in time
	Unavailable uint64 // errors that wrap Options.Unavailable
	Other       uint64
}

// Decided counts charges that were decided without the remote store, by policy. Peek does not
// count.
type Decided struct{ Local, Allow, Deny uint64 }

// Denials is the metrics of remembered denials.
type Denials struct {
	Requests uint64 // denied from memory
	Keys     int    // remembered now
}

// Leases is the metrics of leases.
type Leases struct {
	Keys    int    // tracked, with a lease or without
	Leases  int    // keys that hold hits now
	Held    uint64 // hits that can be spent here now
	Parked  uint64 // hits that the buckets of these keys must lack beside: see Stranded
	Decided uint64 // charges decided from a lease
	Charged uint64 // hits
	Back    uint64 // hits given back
	Expired uint64 // hits that ended with their window
	Refused uint64 // calls for hits that the remote store denied
	Failed  uint64 // the same, without an answer
}

// Stranded returns how many hits lie here at most that no other process can use.
func (l *Leases) Stranded() uint64 { return l.Held + l.Parked }

// metrics counts for Stats, beside the shards. While the remote store serves, only denials from
// memory and failures are written here.
type metrics struct {
	timeout, unavailable, other atomic.Uint64
	local, allow, deny          atomic.Uint64
	without, carried, holders   atomic.Uint64
	divided, denied             atomic.Uint64
	refused, failed             atomic.Uint64
	released                    atomic.Uint64
	silent                      atomic.Int64 // nanoseconds
}

func (m *metrics) add(n Decided) {
	m.local.Add(n.Local)
	m.allow.Add(n.Allow)
	m.deny.Add(n.Deny)
}

func (m *metrics) decided() uint64 { return m.local.Load() + m.allow.Load() + m.deny.Load() }

// countFailure counts a failure of the remote store. See Options.Unavailable, which may be nil.
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

// State returns the state of the shard that answers worst.
func (s *Store) State() State { return s.breaker.worst().state }

// Stats returns the store's metrics.
func (s *Store) Stats() Stats {
	p, m := s.breaker.worst(), &s.metrics
	return Stats{
		State:    p.state,
		Since:    p.since,
		Shards:   s.breaker.shards(),
		Opened:   s.breaker.opened(),
		Released: m.released.Load(),
		Silent:   time.Duration(m.silent.Load()),
		Failures: Failures{Timeout: m.timeout.Load(), Unavailable: m.unavailable.Load(), Other: m.other.Load()},
		Decided:  Decided{Local: m.local.Load(), Allow: m.allow.Load(), Deny: m.deny.Load()},
		Without:  m.without.Load(),
		Divided:  m.divided.Load(),
		Carried:  m.carried.Load(),
		Holders:  m.holders.Load(),
		Fleet:    s.breaker.fleet(),
		Share:    s.breaker.share().Part(),
		Denials:  Denials{Requests: m.denied.Load(), Keys: int(s.table.denials.Load())},
		Leases:   s.leases(),
	}
}

func (s *Store) leases() Leases {
	m := &s.metrics
	all := Leases{
		Keys: int(s.table.tracked.Load()), Refused: m.refused.Load(), Failed: m.failed.Load(),
	}
	now := s.now()
	for i := range s.table.shards {
		sh := &s.table.shards[i]
		sh.mu.Lock()
		all.Decided += sh.leased
		all.Charged += sh.charged
		all.Back += sh.back
		all.Expired += sh.expired
		for _, a := range sh.allotments {
			if k := a.yes; k != nil {
				if held := k.held(now); held > 0 {
					all.Leases++
					all.Held += uint64(held)
					all.Parked += uint64(k.bounds.park)
				}
			}
		}
		sh.mu.Unlock()
	}
	return all
}

// Ready returns nil when a shard's circuit is closed or half-open, and each shard of the beginning
// has answered once or has failed. When all are open the error says since when, and wraps the last
// reason.
func (s *Store) Ready() error {
	p := s.breaker.unasked()
	if p == nil {
		p = s.breaker.best()
	}
	if p.state == Open {
		return fmt.Errorf("the store is %w", p.awaySince())
	}
	return nil
}

// Away returns nil when no shard's circuit is open. Else the error has each shard that is away, and
// why.
func (s *Store) Away() error {
	if err := s.Ready(); err != nil {
		return err
	}
	var all []error
	names := s.remote.Shards()
	for shard, p := range s.breaker.phases() {
		if p.state == Open && shard < len(names) {
			all = append(all, fmt.Errorf("%s of %d shards is %w", names[shard], len(names), p.awaySince()))
		}
	}
	return errors.Join(all...)
}

func (p *phase) awaySince() error {
	return fmt.Errorf("away since %s: %w", p.since.UTC().Format(time.RFC3339), p.reason)
}
