package fallback

import (
	"context"
	"fmt"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// takeWithout decides a request by the policies of its charges. cause is the error with which the primary failed the request; nil if
// the primary was not asked. ctx may have ended.
func (s *Store) takeWithout(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision, cause error) (bool, error) {
	n := countByPolicy(charges)
	s.metrics.add(n)
	if len(charges) > 0 {
		s.metrics.without.Add(1)
	}
	for i := range charges {
		if left := charges[i].Left; left != nil {
			*left = store.State{Source: store.Without}
		}
	}
	if n.Allow+n.Deny > 0 && n.Local == 0 {
		s.patch(charges, decisions, 1)
		return store.Admitted(charges, decisions), nil
	}
	fleet := s.fleetSize()
	all, scratch := s.substitute(charges, n, fleet)
	defer s.put(scratch)
	admitted, err := s.local.Take(context.WithoutCancel(ctx), all, decisions)
	if err != nil {
		return false, fmt.Errorf("take from the local store: %w", err)
	}
	s.patch(charges, decisions, fleet)
	s.carryBack(charges, decisions, admitted, cause)
	return admitted, nil
}

// peekWithout decides each charge alone by its policy. ctx may have ended.
func (s *Store) peekWithout(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	fleet := s.fleetSize()
	if n := countByPolicy(charges); n.Local > 0 {
		all, scratch := s.substitute(charges, n, fleet)
		defer s.put(scratch)
		if err := s.local.Peek(context.WithoutCancel(ctx), all, decisions); err != nil {
			return fmt.Errorf("peek into the local store: %w", err)
		}
	}
	s.patch(charges, decisions, fleet)
	return nil
}

// countByPolicy returns the number of charges of each policy.
func countByPolicy(charges []store.Charge) (n Decided) {
	for i := range charges {
		switch charges[i].OnError {
		case store.Allow:
			n.Allow++
		case store.Deny:
			n.Deny++
		default:
			n.Local++
		}
	}
	return n
}

// substitute returns charges with which the local store gives the verdict on the whole request. Hits cost as many as there are processes
// in the fleet. A charge that the local store must not decide is replaced: the substitute is always allowed or always denied, and leaves
// no state. Call put with scratch after.
func (s *Store) substitute(charges []store.Charge, n Decided, fleet int) (all []store.Charge, scratch *[]store.Charge) {
	if n.Allow+n.Deny == 0 && fleet == 1 {
		return charges, nil
	}
	scratch, _ = s.scratch.Get().(*[]store.Charge)
	*scratch = append((*scratch)[:0], charges...)
	for i := range *scratch {
		c := &(*scratch)[i]
		if isLocal(c) {
			c.Hits = cost(c, fleet)
			continue
		}
		// The same key, so that substitutes spread over the shards, but a period that no rule has.
		requests, hits := uint32(algorithms.MaxHits), int64(0)
		if refused(c) {
			requests, hits = 0, 1
		}
		c.Limit = algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: requests, Period: s.unused}
		c.Hits, c.CountRejected = hits, false
	}
	return *scratch, scratch
}

// put returns the scratch memory of substitute, which may be nil.
func (s *Store) put(scratch *[]store.Charge) {
	if scratch != nil {
		clear(*scratch) // releases the keys
		s.scratch.Put(scratch)
	}
}

// refused reports whether a charge is denied: by its policy, or by a limit of 0, for which no store is needed. A refund and a probe
// are never denied.
func refused(c *store.Charge) bool {
	return c.Hits > 0 && (c.OnError == store.Deny || c.OnError == store.Allow && c.Limit.Requests == 0)
}

// patch writes the decisions of the charges that the local store does not decide, and the share of this process into the others.
func (s *Store) patch(charges []store.Charge, decisions []algorithms.Decision, fleet int) {
	var wait time.Duration
	for i := range charges {
		c := &charges[i]
		if c.OnError == store.Deny && wait == 0 {
			wait = s.untilAsked()
		}
		switch {
		case isLocal(c):
			decisions[i].Remaining /= uint32(sharers(c, fleet))
		case c.OnError == store.Allow && refused(c):
			decisions[i] = algorithms.Decision{RetryAfter: c.Limit.Period, ResetAfter: c.Limit.Period}
		case c.OnError == store.Allow:
			decisions[i] = algorithms.Decision{Allowed: true, Remaining: c.Limit.Capacity()}
		case refused(c):
			decisions[i] = algorithms.Decision{RetryAfter: wait, ResetAfter: wait}
		case c.OnError == store.Deny:
			decisions[i] = algorithms.Decision{Allowed: true, ResetAfter: wait}
		}
	}
}

// untilAsked returns the wait until the primary may be asked again, in whole seconds, at least one.
func (s *Store) untilAsked() time.Duration {
	wait := time.Second
	if p := s.phase.Load(); p.state == Open {
		wait = max(wait, time.Until(p.next))
	}
	return (wait + time.Second - 1).Truncate(time.Second)
}
