package fallback

import (
	"cmp"
	"context"
	"errors"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// isEnd reports whether a charge ends a holder, or repairs one. Such a charge is never denied.
func isEnd(c *store.Charge) bool { return c.Hold != nil && c.Hold.Phase != algorithms.HoldBegin }

// recall looks for the holders of a question that the local store may know. The end of a holder
// that was denied here has no cost: the primary is asked to cancel the holder, which it may have
// admitted.
func (s *Store) recall(q *question) {
	n, _ := s.names.Get().(*names)
	defer s.release(n)
	q.holds = append(q.holds[:0], make([]store.Hold, len(q.copies))...)
	q.known = append(q.known[:0], make([]algorithms.Hold, len(q.copies))...)
	for i := range q.copies {
		c := &q.copies[i]
		if c.Hold == nil {
			continue
		}
		if q.known[i], _ = s.known(n, c); q.known[i].Status == algorithms.HoldDenied && isEnd(c) {
			q.holds[i] = *c.Hold
			q.holds[i].Phase = algorithms.HoldCancel
			c.Hold = &q.holds[i]
		}
	}
}

// recalled ends a question of recall after an answer. A holder that has begun here ends here, too.
func (s *Store) recalled(q *question, charges []store.Charge, decisions []algorithms.Decision, admitted bool) {
	n, _ := s.names.Get().(*names)
	defer s.release(n)
	fleet := s.fleetSize()
	for i := range q.known {
		c, h := &charges[i], q.known[i].Status
		switch {
		case c.Hold == nil:
		case isEnd(c) && h == algorithms.HoldHeld:
			n.set(0, c, c.Limit, c.Hold.Phase, cost(c, fleet))
			s.take(n, 1)
		case h != algorithms.HoldDenied:
		case !isEnd(c) && c.Hits > 0 && admitted && decisions[i].Allowed:
			s.admit(n, c)
		case isEnd(c):
			if c.Hold.Was = q.holds[i].Was; c.Hold.Was.Status == algorithms.HoldUnknown {
				c.Hold.Was = q.known[i]
			}
		}
	}
}

// meet looks for the holders that a request without the primary ends.
func (w *without) meet(s *Store, charges []store.Charge) {
	w.known = append(w.known[:0], make([]algorithms.Hold, len(charges))...)
	w.doubt = append(w.doubt[:0], make([]bool, len(charges))...)
	for i := range charges {
		if c := &charges[i]; isEnd(c) {
			w.known[i], w.doubt[i] = s.known(&w.names, c)
		}
	}
}

// part writes to each holder the state in which a request without the primary found it. A holder in
// the local store holds the hits of all processes.
func (w *without) part(charges []store.Charge, fleet int) {
	for i := range charges {
		c := &charges[i]
		if c.Hold == nil {
			continue
		}
		was := &c.Hold.Was
		if isEnd(c) {
			*was = w.known[i]
		} else if !isLocal(c) {
			*was = algorithms.Hold{}
		}
		was.Hits /= uint32(sharers(c, fleet))
	}
}

// tellHolders remembers the holders that were denied here, and has the primary told of the others
// later. cause is the primary's error; nil if it was not asked. tellHolders returns the hits that
// the primary will be charged with, also above its limits.
func (s *Store) tellHolders(w *without, charges []store.Charge, decisions []algorithms.Decision, admitted bool, cause error) (hits uint64) {
	at := s.now()
	for i := range charges {
		switch c := &charges[i]; {
		case c.Hold == nil, !isEnd(c) && c.Hits <= 0, isEnd(c) && c.Hold.Holder == store.Holder{}: // nothing is held
		case isEnd(c) && w.known[i].Status != algorithms.HoldDenied:
			s.tellHolder(&w.names, c, c.Hold.Phase, at)
		case isEnd(c):
			if w.doubt[i] || cause != nil {
				s.tellHolder(&w.names, c, algorithms.HoldCancel, at)
			}
		case admitted && decisions[i].Allowed:
			if s.knowsHolders() {
				s.admit(&w.names, c)
			}
			s.noteHolder(c.Hold.AtMost)
			if s.holders != nil && isLocal(c) && c.Hold.Was.Status != algorithms.HoldHeld {
				hits += uint64(c.Hits)
				s.tellHolder(&w.names, c, algorithms.HoldBegun, at)
			}
		default:
			s.noteHolder(c.Hold.AtMost)
			s.deny(&w.names, c, cause != nil)
			if s.outbox != nil && c.CountRejected && isLocal(c) && c.Limit.Algorithm != algorithms.Concurrency {
				hits += uint64(c.Hits)
				rejected := *c
				rejected.Hold = nil
				s.outbox.Later(&rejected, at)
			}
		}
	}
	return hits
}

// tellHolder has the primary told of the holder of a charge later.
func (s *Store) tellHolder(n *names, c *store.Charge, p algorithms.HoldPhase, at algorithms.Instant) {
	if s.holders != nil {
		s.metrics.holders.Add(1)
		n.set(0, c, c.Limit, p, c.Hits)
		s.holders.HoldLater(&n.charges[0], at)
	}
}

// Holders implements [store.Store], if the primary does. If the primary cannot be asked or fails,
// the list has the holders that have begun here without the primary. The zero Holder then has the
// slots that were held when the primary was last seen.
func (s *Store) Holders(ctx context.Context, charge *store.Charge, most int) (held []store.Held, all int, err error) {
	var refused error
	answered, err := s.ask(ctx, func() (failed error) {
		held, all, failed = s.primary.Holders(ctx, charge, most)
		if errors.Is(failed, store.ErrNotListed) { // an answer
			refused, failed = failed, nil
		}
		return failed
	})
	if answered || err != nil {
		return held, all, cmp.Or(err, refused)
	}
	held, all, err = s.local.Holders(context.WithoutCancel(ctx), charge, most)
	for i := range held {
		if held[i].Holder != (store.Holder{}) {
			held[i].Hits /= uint32(sharers(charge, s.fleetSize()))
		}
	}
	return held, all, err
}
