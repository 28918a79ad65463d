package shared

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// without decides a request by the policies of its charges. The local store decides a charge with
// Local, where its hits cost more by the share of this process. decideByPolicy decides charges with
// Allow and Deny. The request stays one transaction, also with charges of several policies. cause
// is the error with which the remote store failed the request; nil if it was not asked.
func (s *Store) without(charges []store.Charge, decisions []algorithms.Decision, cause error) (bool, error) {
	n := countByPolicy(charges)
	s.metrics.add(n)
	if len(charges) > 0 {
		s.metrics.without.Add(1)
	}
	for i := range charges {
		charges[i].TellSource(store.Without)
		s.forgetIfBack(&charges[i])
	}
	holds := store.Holds(charges)
	if n.Allow+n.Deny > 0 && n.Local == 0 && !holds && !guards(charges) {
		s.decideByPolicy(charges, decisions, store.Share{}) // not one charge is local: the share does not matter
		return store.Admitted(charges, decisions), nil
	}
	share := s.breaker.share()
	w := s.substitute(charges, share)
	defer s.put(w)
	admitted, err := store.Take(context.Background(), s.local, w.charges, decisions)
	if err != nil {
		return false, fmt.Errorf("take from the local store: %w", err)
	}
	s.countDivided(charges, decisions)
	s.decideByPolicy(charges, decisions, share)
	carried := s.carryBack(charges, decisions, admitted, cause, share)
	if holds {
		w.part(charges, share)
		carried += s.tellHolders(w, charges, decisions, admitted, cause)
	}
	s.metrics.carried.Add(carried)
	return admitted, nil
}

// divided reports whether others may still use their parts of the limits alone, after an outage.
// The processes learn one after the other that all have told their hits. The first ones then use
// the whole limit, and the last one still has its part. So until then both stores must admit a
// request: the local store by the share of this process, and the remote store by all hits.
func (q *question) divided() bool {
	return !q.holds && slices.ContainsFunc(q.phases, (*phase).tells) && outlast(q.rest)
}

// fits reports whether the share of this process admits a question, if that has to admit it.
func (s *Store) fits(q *question) bool {
	if !q.divided() {
		return true
	}
	w := s.substitute(q.rest, s.breaker.share())
	defer s.put(w)
	err := s.local.Peek(context.Background(), w.charges, q.decisions)
	return err == nil && store.Admitted(w.charges, q.decisions)
}

// keepShare has the local store count an answer about a divided question. The states of the answer
// lack hits that others have yet to tell. So the local store goes on from those states only which
// have fewer hits left than the local ones.
func (s *Store) keepShare(q *question, admitted bool) {
	w := s.substitute(q.rest, s.breaker.share())
	defer s.put(w)
	here := make([]algorithms.Decision, len(q.rest))
	if !admitted {
		for n := range w.charges {
			w.charges[n].Hits = 0
		}
	}
	_, err := store.Take(context.Background(), s.local, w.charges, here)
	for n := range q.rest {
		if by := uint64(units(q.rest[n].Limit)); err != nil || here[n].Remaining <= q.decisions[n].Remaining*by {
			q.states[n].Now = 0
		}
	}
}

// countDivided counts the charges that the local store has denied although their hits are left: the
// part of this process does not have them.
func (s *Store) countDivided(charges []store.Charge, decisions []algorithms.Decision) {
	for i := range charges {
		c, d := &charges[i], &decisions[i]
		if isLocal(c) && !c.IsEnd() && !d.Allowed && c.Hits <= int64(d.Remaining/uint64(units(c.Limit))) {
			s.metrics.divided.Add(1)
		}
	}
}

// peekWithout decides each charge alone by its policy.
func (s *Store) peekWithout(charges []store.Charge, decisions []algorithms.Decision) error {
	share := s.breaker.share()
	if n := countByPolicy(charges); n.Local > 0 || store.Holds(charges) || guards(charges) {
		w := s.substitute(charges, share)
		defer s.put(w)
		if err := s.local.Peek(context.Background(), w.charges, decisions); err != nil {
			return fmt.Errorf("peek into the local store: %w", err)
		}
		w.part(charges, share)
	}
	for i := range charges {
		charges[i].TellSource(store.Without)
	}
	s.decideByPolicy(charges, decisions, share)
	return nil
}

// countByPolicy returns the number of charges of each policy. A key that learns, or counts
// offenses, has nothing to decide.
func countByPolicy(charges []store.Charge) (n Decided) {
	for i := range charges {
		if a := charges[i].Limit.Algorithm; a == algorithms.Learned || a == algorithms.Escalation {
			continue
		}
		switch charges[i].OnError {
		case store.OnErrorAllow:
			n.Allow++
		case store.OnErrorDeny:
			n.Deny++
		default:
			n.Local++
		}
	}
	return n
}

// guards reports whether a charge asks about a block, which the local store then decides.
func guards(charges []store.Charge) bool {
	for i := range charges {
		if charges[i].Limit.Algorithm == algorithms.Escalation && isLocal(&charges[i]) {
			return true
		}
	}
	return false
}

// substitutes is the memory of a request that is decided without the remote store.
type substitutes struct {
	names
	charges []store.Charge    // for the local store
	known   []algorithms.Hold // of charges that end a holder: the holder as this process knows it
	costs   []int64           // of all charges, before a pair begins
	pairs   store.Pairs
	doubt   []bool         // the same: the remote store may have admitted a holder that was denied here
	instead []int64        // see store.Unanswered
	parts   []store.Part   // the same
	before  []store.Former // of all charges
}

// substitute returns charges with which the local store gives the verdict on the whole request. A
// charge that the local store must not decide is replaced: the substitute is always allowed or
// always denied, and leaves no state. The end of a holder that the local store does not hold is
// replaced by a probe. Call put after.
func (s *Store) substitute(charges []store.Charge, share store.Share) *substitutes {
	w, _ := s.substitutes.Get().(*substitutes)
	if store.Holds(charges) {
		w.meet(s, charges)
	}
	w.charges, w.before = append(w.charges[:0], charges...), w.before[:0]
	for i := range w.charges {
		c := &w.charges[i]
		switch {
		case isLocal(c) && c.IsEnd() && w.known[i].Status != algorithms.HoldHeld:
			c.Limit, c.Hits, c.Hold, c.Mode, c.CountRejected, c.Before = inUnits(c.Limit), 0, nil, store.Shadow, false, nil
		case isLocal(c):
			w.formersInUnits(c)
			c.Hits, c.Limit = cost(c, share), inUnits(c.Limit)
			if c.Hits > algorithms.MaxHits && c.Limit.More > 0 { // more than a charge can take
				c.Limit.SetPerPeriod(0)
			}
			if c.Hits = min(c.Hits, algorithms.MaxHits); c.IsPair() {
				c.Hold.Estimate = uint32(c.Hits) // until part
			}
		default:
			// The same key, so that substitutes spread over the shards, but a period that no rule
			// has.
			hits := int64(0)
			if c.Limit = s.unusedLimit(false, algorithms.MaxHits); deniedByPolicy(&charges[i]) {
				c.Limit.Requests, hits = 0, 1
			}
			if c.IsEnd() {
				c.Mode = store.Shadow
			}
			c.Hits, c.CountRejected, c.Hold, c.Before = hits, false, nil, nil
		}
	}
	return w
}

// formersInUnits gives a charge the limits that its limit replaced, in units.
func (w *substitutes) formersInUnits(c *store.Charge) {
	from := len(w.before)
	w.before = append(w.before, c.Before...)
	for n := range c.Before {
		f, taker := &w.before[from+n], c.Limit
		if at := c.Taker(n); at < len(c.Before) {
			taker = c.Before[at].Limit
		}
		f.Parts, f.To = units(f.Limit), units(taker)
		f.Limit = inUnits(f.Limit)
	}
	if len(w.before) > from {
		c.Before = w.before[from:len(w.before):len(w.before)]
	}
}

func (s *Store) put(w *substitutes) {
	clear(w.charges) // releases the keys
	clear(w.before)  // the same
	w.names = names{}
	s.substitutes.Put(w)
}

// deniedByPolicy reports whether a charge is denied: by its policy, or by a limit of 0, for which
// no store is needed. A refund and a probe are never denied, and neither is the end of a holder.
func deniedByPolicy(c *store.Charge) bool {
	return c.Hits > 0 && !c.IsEnd() && (c.OnError == store.OnErrorDeny || c.OnError == store.OnErrorAllow && c.Limit.Requests == 0)
}

// decideByPolicy decides the charges with Allow and Deny. A charge that the local store has decided
// keeps its decision; its Remaining becomes the share of this process.
func (s *Store) decideByPolicy(charges []store.Charge, decisions []algorithms.Decision, share store.Share) {
	const wait = time.Second // the store is asked again before
	for i := range charges {
		c := &charges[i]
		switch {
		case isLocal(c) && c.Limit.Algorithm == algorithms.Escalation: // Remaining says no hits
		case isLocal(c):
			decisions[i].Remaining = priceOf(c, share).buys(decisions[i].Remaining)
			if c.IsEnd() {
				decisions[i].Allowed, decisions[i].RetryAfter = true, 0
			}
		case c.OnError == store.OnErrorAllow && deniedByPolicy(c):
			period := c.Limit.Period
			if c.Hold != nil && period == 0 {
				period = c.Hold.AtMost
			}
			decisions[i] = algorithms.Decision{Allowed: false, RetryAfter: period, ResetAfter: period}
		case c.OnError == store.OnErrorAllow:
			decisions[i] = algorithms.Decision{Allowed: true, Remaining: c.Limit.Capacity()}
		case deniedByPolicy(c):
			decisions[i] = algorithms.Decision{Allowed: false, RetryAfter: wait, ResetAfter: wait}
		case c.OnError == store.OnErrorDeny:
			decisions[i] = algorithms.Decision{Allowed: true, ResetAfter: wait}
		}
	}
}

// carryBack has the remote store charged later with the hits that the local store applied, and
// returns their sum without refunds. Hits of holders are for tellHolders. cause is the remote
// store's error; nil if it was not asked.
func (s *Store) carryBack(charges []store.Charge, decisions []algorithms.Decision, admitted bool, cause error, share store.Share) (carried uint64) {
	at := s.remote.Now(algorithms.Limit{})
	unanswered, asked := errors.AsType[store.Unanswered](cause)
	if !asked {
		for i := range charges {
			if hits := applied(&charges[i], &decisions[i], admitted); hits != 0 && isLocal(&charges[i]) {
				carried += uint64(max(hits, 0))
				s.remote.Later(&charges[i], at, partOf(&charges[i], &decisions[i], at, share))
			}
		}
		return carried
	}
	w, _ := s.substitutes.Get().(*substitutes)
	defer s.substitutes.Put(w)
	w.instead, w.parts = w.instead[:0], w.parts[:0]
	for i := range charges {
		hits := applied(&charges[i], &decisions[i], admitted)
		carried += uint64(max(hits, 0))
		w.instead, w.parts = append(w.instead, hits), append(w.parts, partOf(&charges[i], &decisions[i], at, share))
	}
	unanswered.Instead(w.instead, w.parts)
	return carried
}
