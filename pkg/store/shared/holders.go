package shared

import (
	"context"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// names is the memory of a transaction about one holder in the local store.
type names struct {
	charges   [2]store.Charge
	holds     [2]store.Hold
	decisions [2]algorithms.Decision
}

// set makes charge i one of the holder of c, under a limit.
func (n *names) set(i int, c *store.Charge, l algorithms.Limit, p algorithms.HoldPhase, hits int64) {
	n.holds[i] = store.Hold{Phase: p, Holder: c.Hold.Holder, AtMost: c.Hold.AtMost, Estimate: c.Hold.Estimate}
	n.charges[i] = store.Charge{Key: c.Key, Limit: l, Hits: hits, Hold: &n.holds[i]}
}

// A holder that is denied here must be known until its end, which has no cost then. The local store
// remembers the holder under the limit of its charge, or under a limit of 0 that no rule has. Two
// limits serve for that. The second one has the holders in doubt: the remote store was asked about
// their begin, and may have admitted them.

// unusedLimit returns a limit with a period that no rule has. Under it the local store remembers
// denied holders, with 0 requests, and decides charges that have another policy.
func (s *Store) unusedLimit(doubt bool, requests uint32) algorithms.Limit {
	l := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: requests, Period: s.unused}
	if doubt {
		l.Period -= time.Microsecond
	}
	return l
}

// keepsDenials reports whether the local store remembers the denied holders of a charge under the
// charge's own limit.
func keepsDenials(c *store.Charge) bool {
	return isLocal(c) && c.Limit.Algorithm != algorithms.Concurrency
}

// knowsHolders reports whether the local store may know holders whose begin was decided here.
func (s *Store) knowsHolders() bool {
	until := s.holdersUntil.Load()
	return until > 0 && int64(time.Since(s.started)) < until
}

// noteHolder notes that the local store knows a holder for a time.
func (s *Store) noteHolder(atMost time.Duration) {
	until := int64(time.Since(s.started) + atMost)
	for {
		was := s.holdersUntil.Load()
		if was >= until || s.holdersUntil.CompareAndSwap(was, until) {
			return
		}
	}
}

// known returns the holder of a charge as the local store knows it. doubt says that the holder was
// denied here, and that the remote store may have admitted it.
func (s *Store) known(n *names, c *store.Charge) (h algorithms.Hold, doubt bool) {
	if c.Hold.Holder == (store.Holder{}) || !s.knowsHolders() { // has the slots that the remote store told of, which an end must not free
		return h, false
	}
	if isLocal(c) {
		if h = s.peek(n, c, inUnits(c.Limit)); h.Status == algorithms.HoldHeld || h.Status == algorithms.HoldEnded {
			return h, false
		}
	}
	if in := s.peek(n, c, s.unusedLimit(true, 0)); in.Status == algorithms.HoldDenied {
		return in, true
	}
	if !keepsDenials(c) {
		if h = s.peek(n, c, s.unusedLimit(false, 0)); h.Status != algorithms.HoldDenied {
			h = algorithms.Hold{}
		}
	}
	return h, false
}

// peek returns the holder of a charge as the local store knows it under a limit.
func (s *Store) peek(n *names, c *store.Charge, l algorithms.Limit) algorithms.Hold {
	n.set(0, c, l, algorithms.HoldEnd, 0)
	_ = s.local.Peek(context.Background(), n.charges[:1], n.decisions[:1]) // never fails
	return n.holds[0].Was
}

func (s *Store) take(n *names, count int) {
	s.local.TakeNow(n.charges[:count], n.decisions[:count]) // never fails
}

func (s *Store) deny(n *names, c *store.Charge, doubt bool) {
	if doubt || !keepsDenials(c) {
		n.set(0, c, s.unusedLimit(doubt, 0), algorithms.HoldBegin, 1)
		s.take(n, 1)
	}
}

func (s *Store) admit(n *names, c *store.Charge) {
	own := inUnits(c.Limit)
	for _, l := range [...]algorithms.Limit{own, s.unusedLimit(false, algorithms.MaxHits), s.unusedLimit(true, algorithms.MaxHits)} {
		if l == own && !keepsDenials(c) || s.peek(n, c, l).Status != algorithms.HoldDenied {
			continue
		}
		n.set(0, c, l, algorithms.HoldBegun, 1) // a holder that begins and ends at once, at no cost, has ended
		n.set(1, c, l, algorithms.HoldEnd, 0)
		s.take(n, 2)
	}
}

// recallHolders looks for the holders of a question that the local store may know. The end of a
// holder that was denied here has no cost. The remote store is asked to cancel the holder, because
// it may have admitted the holder.
func (s *Store) recallHolders(q *question) {
	q.ends = append(q.ends[:0], make([]store.Hold, len(q.rest))...)
	q.known = append(q.known[:0], make([]algorithms.Hold, len(q.rest))...)
	for i := range q.rest {
		if c := &q.rest[i]; c.Hold != nil {
			q.known[i], _ = s.known(&q.names, c)
		}
	}
	q.pairs.End(q.rest, func(i int) bool { return q.known[i].Status == algorithms.HoldHeld })
	for i := range q.rest {
		if c := &q.rest[i]; q.known[i].Status == algorithms.HoldDenied && c.IsEnd() {
			q.ends[i] = *c.Hold
			q.ends[i].Phase = algorithms.HoldCancel
			c.Hold = &q.ends[i]
		}
	}
}

// restoreHolders makes the charges of a question as the caller gave them.
func (q *question) restoreHolders(charges []store.Charge) {
	if len(q.known) > 0 {
		for i := range charges {
			q.rest[i].Hold = charges[i].Hold
		}
	}
}

// tellPairs tells the caller the hits of pairs that begin.
func (q *question) tellPairs(charges []store.Charge) {
	for n, i := range q.indexes {
		if q.holds && charges[i].IsPair() {
			charges[i].Hits = q.rest[n].Hits
		}
	}
}

// recalledHolders ends a question of recallHolders after an answer. A holder that has begun here
// ends here, too.
func (s *Store) recalledHolders(q *question, t *store.Transaction) {
	n, share := &q.names, s.breaker.share()
	for i := range q.known {
		c, h := &t.Charges[i], q.known[i].Status
		switch {
		case c.Hold == nil:
		case c.IsEnd() && h == algorithms.HoldHeld:
			n.set(0, c, inUnits(c.Limit), c.Hold.Phase, min(cost(c, share), algorithms.MaxHits))
			s.take(n, 1)
		case h != algorithms.HoldDenied:
		case !c.IsEnd() && (c.Hits > 0 || c.IsPair()) && t.Admitted && t.Decisions[i].Allowed:
			s.admit(n, c)
		case c.IsEnd() && q.ends[i].Phase != 0:
			if c.Hold.Was = q.ends[i].Was; c.Hold.Was.Status == algorithms.HoldUnknown {
				c.Hold.Was = q.known[i]
			}
		}
	}
}

// meet looks for the holders that a request without the remote store ends. A pair ends if its
// holder has begun here.
func (w *substitutes) meet(s *Store, charges []store.Charge) {
	w.known = append(w.known[:0], make([]algorithms.Hold, len(charges))...)
	w.doubt = append(w.doubt[:0], make([]bool, len(charges))...)
	w.costs = w.costs[:0]
	for i := range charges {
		w.costs = append(w.costs, charges[i].Hits)
		if c := &charges[i]; c.IsEnd() || c.IsPair() {
			w.known[i], w.doubt[i] = s.known(&w.names, c)
		}
	}
	w.pairs.End(charges, func(i int) bool { return w.known[i].Status == algorithms.HoldHeld })
	for i := range charges {
		charges[i].Pair(false)
	}
}

// part writes to each holder the state in which a request without the remote store found it. A
// holder in the local store holds the cost of its hits.
func (w *substitutes) part(charges []store.Charge, share store.Share) {
	for i := range charges {
		c := &charges[i]
		if c.Hold == nil {
			continue
		}
		was := &c.Hold.Was
		if c.IsPair() {
			c.Hold.Estimate = uint32(c.Hits)
		}
		if c.IsEnd() {
			*was = w.known[i]
		} else if !isLocal(c) {
			*was = algorithms.Hold{}
		}
		was.Hits = uint32(priceOf(c, share).buys(uint64(was.Hits)))
	}
}

// tellHolders remembers the holders that were denied here, and has the remote store told of the
// others later. cause is the remote store's error; nil if it was not asked. tellHolders returns the
// hits that the remote store will be charged with, also above its limits.
func (s *Store) tellHolders(
	w *substitutes, charges []store.Charge, decisions []algorithms.Decision, admitted bool, cause error,
) (hits uint64) {
	at := s.remote.Now(algorithms.Limit{})
	for i := range charges {
		switch c := &charges[i]; {
		case c.Hold == nil, !c.IsEnd() && !c.IsPair() && c.Hits <= 0, c.IsEnd() && c.Hold.Holder == store.Holder{}: // nothing is held
		case c.IsEnd() && w.known[i].Status != algorithms.HoldDenied:
			s.tellHolder(&w.names, c, c.Hold.Phase, at)
		case c.IsEnd():
			if w.doubt[i] || cause != nil {
				s.tellHolder(&w.names, c, algorithms.HoldCancel, at)
			}
		case admitted && decisions[i].Allowed:
			if s.knowsHolders() {
				s.admit(&w.names, c)
			}
			s.noteHolder(c.Hold.AtMost)
			if c.IsPair() && cause == nil { // the begin can have come before
				hits += uint64(c.Hits)
				pair := *c
				pair.Hits = w.costs[i]
				s.tellHolder(&w.names, &pair, algorithms.HoldPair, at)
			} else if isLocal(c) && c.Hold.Was.Status != algorithms.HoldHeld {
				hits += uint64(c.Hits)
				s.tellHolder(&w.names, c, algorithms.HoldBegun, at)
			}
		default:
			s.noteHolder(c.Hold.AtMost)
			s.deny(&w.names, c, cause != nil)
			if c.IsPair() && (cause != nil || c.Limit.Algorithm == algorithms.Concurrency) {
				s.tellHolder(&w.names, c, algorithms.HoldCancel, at) // no end comes of a denied one
			}
			if c.CountRejected && isLocal(c) && c.Limit.Algorithm != algorithms.Concurrency {
				hits += uint64(c.Hits)
				rejected := *c
				rejected.Hold = nil
				s.remote.Later(&rejected, at, partOf(&rejected, &decisions[i], at, s.breaker.share()))
			}
		}
	}
	return hits
}

func (s *Store) tellHolder(n *names, c *store.Charge, p algorithms.HoldPhase, at algorithms.Instant) {
	s.metrics.holders.Add(1)
	n.set(0, c, c.Limit, p, c.Hits)
	s.remote.HoldLater(&n.charges[0], at)
}
