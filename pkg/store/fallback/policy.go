package fallback

import (
	"context"
	"fmt"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// takeWithout decides a request by its charges' policies. ctx may have ended.
func (s *Store) takeWithout(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	n := census(charges)
	s.counts.add(n)
	if len(charges) > 0 {
		s.counts.without.Add(1)
	}
	if n.Allow+n.Deny > 0 && n.Local == 0 {
		s.patch(charges, decisions)
		return store.Admitted(charges, decisions), nil
	}
	all, scratch := s.stand(charges, n)
	defer s.put(scratch)
	admitted, err := s.local.Take(context.WithoutCancel(ctx), all, decisions)
	if err != nil {
		return false, fmt.Errorf("take from the local store: %w", err)
	}
	s.patch(charges, decisions)
	return admitted, nil
}

// peekWithout writes what each charge would find by its policy. ctx may have ended.
func (s *Store) peekWithout(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	if n := census(charges); n.Local > 0 {
		all, scratch := s.stand(charges, n)
		defer s.put(scratch)
		if err := s.local.Peek(context.WithoutCancel(ctx), all, decisions); err != nil {
			return fmt.Errorf("peek into the local store: %w", err)
		}
	}
	s.patch(charges, decisions)
	return nil
}

// census returns how many charges go by each policy.
func census(charges []store.Charge) (n Decided) {
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

// stand returns charges that make the local store give the request's verdict and charge what is its own: in the place of
// each charge that it does not decide stands one that it allows or denies whatever it remembers, and that leaves no trace.
// put must be called with the scratch memory after.
func (s *Store) stand(charges []store.Charge, n Decided) (all []store.Charge, scratch *[]store.Charge) {
	if n.Allow+n.Deny == 0 {
		return charges, nil
	}
	scratch, _ = s.scratch.Get().(*[]store.Charge)
	*scratch = append((*scratch)[:0], charges...)
	for i := range *scratch {
		c := &(*scratch)[i]
		if c.OnError != store.Allow && c.OnError != store.Deny {
			continue
		}
		// Its own key, so that these spread over the store as keys do, but in a state that no rule has.
		no := refused(c)
		c.Limit = algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: algorithms.MaxHits, Period: s.unused}
		c.CountRejected = false
		if no {
			c.Limit.Requests, c.Hits = 0, 1
		} else {
			c.Hits = 0
		}
	}
	return *scratch, scratch
}

// put gives back what stand took, if anything.
func (s *Store) put(scratch *[]store.Charge) {
	if scratch != nil {
		clear(*scratch) // let go of the keys
		s.scratch.Put(scratch)
	}
}

// refused reports whether the charge's policy denies it, or allows it though its limit is a ban, which needs no store to be
// kept. A refund and a probe are nothing to deny.
func refused(c *store.Charge) bool {
	return c.Hits > 0 && (c.OnError == store.Deny || c.OnError == store.Allow && c.Limit.Requests == 0)
}

// patch writes the decisions of the charges that the local store does not decide.
func (s *Store) patch(charges []store.Charge, decisions []algorithms.Decision) {
	var wait time.Duration
	for i := range charges {
		c := &charges[i]
		if c.OnError == store.Deny && wait == 0 {
			wait = s.untilAsked()
		}
		switch {
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
