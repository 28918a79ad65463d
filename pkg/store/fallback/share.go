package fallback

import (
	"errors"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// question is a request to the primary, which leaves its states in the local store.
type question struct {
	asked  []store.Charge // the caller's charges, or copies that have a Left
	copies []store.Charge
	states []store.State // that the primary told; none if all come to the caller

	known []algorithms.Hold // of the charges with a holder, if the local store may know holders
	holds []store.Hold      // in place of the caller's
}

// begin returns the question for a request of charges. Call end after the answer.
func (s *Store) begin(charges []store.Charge) *question {
	q, _ := s.questions.Get().(*question)
	q.asked = charges
	tells, recalls := s.continuer != nil && !tellsAll(charges), s.knowsHolders() && store.Holds(charges)
	if !tells && !recalls {
		return q
	}
	q.copies = append(q.copies[:0], charges...)
	q.asked = q.copies
	if tells {
		q.states = append(q.states[:0], make([]store.State, len(charges))...)
		for i := range q.copies {
			q.copies[i].Left = &q.states[i]
		}
	}
	if recalls {
		s.recall(q)
	}
	return q
}

// tellsAll reports whether the states of all charges can come to the caller's own memory, which has
// none yet.
func tellsAll(charges []store.Charge) bool {
	for i := range charges {
		if left := charges[i].Left; left == nil || left.Now != 0 {
			return false
		}
	}
	return true
}

// end leaves the states of an answer to a question of charges in the local store, and passes them
// on to the caller. The verdict and err are the primary's, of phase p.
func (s *Store) end(p *phase, q *question, charges []store.Charge, decisions []algorithms.Decision, admitted bool, err error) {
	if err == nil && len(q.known) > 0 {
		s.recalled(q, charges, decisions, admitted)
	}
	if err == nil && s.continuer != nil {
		s.goOn(q, charges, decisions, p.telling.Load() && p.isTelling())
	}
	clear(q.copies) // releases the keys
	q.asked, q.copies, q.states, q.known = nil, q.copies[:0], q.states[:0], q.known[:0]
	s.questions.Put(q)
}

// goOn leaves the states of an answer in the local store. The other policies need no states there.
// telling says that other processes may have holders to tell. The local store then decides begins
// by the share of this process, and the end of a holder leaves no state.
func (s *Store) goOn(q *question, charges []store.Charge, decisions []algorithms.Decision, telling bool) {
	told, own := false, len(q.states) > 0
	if !own {
		for i := range charges {
			q.states = append(q.states, *charges[i].Left)
		}
	}
	for i := range charges {
		c, state := &charges[i], &q.states[i]
		if own {
			state.TellTo(c.Left)
		}
		if !isLocal(c) || telling && isEnd(c) {
			state.Now = 0
		}
		told = told || state.Now != 0
	}
	if told {
		s.Continue(charges, q.states, decisions[:len(charges)])
	}
}

// unseenPart is the part of the hits left that a process leaves to the hits of others that an
// answer does not show.
const unseenPart = 64

// Continue implements [store.Local]: it leaves the states in the local store, which must be
// able to go on from states. If others share the primary, a part of the hits left counts as used.
// Others may use these after the answer, and before an outage. Continue writes to states and
// decisions, and restores the decisions.
func (s *Store) Continue(charges []store.Charge, states []store.State, decisions []algorithms.Decision) {
	if s.fleetSize() == 1 {
		s.continuer.Continue(charges, states, decisions)
		return
	}
	var few [8]uint32
	left := few[:0] // of each charge
	for i := range charges {
		d := &decisions[i]
		left = append(left, d.Remaining)
		unseen := d.Remaining / unseenPart
		switch {
		case unseen == 0 || states[i].Now == 0:
		case charges[i].Limit.Algorithm.HasState():
			states[i].Take(charges[i].Limit, states[i].Now, int64(unseen), true)
		default:
			d.Remaining -= unseen
		}
	}
	s.continuer.Continue(charges, states, decisions)
	for i := range charges {
		decisions[i].Remaining = left[i]
	}
}

// fleetSize returns the number of processes that share the primary, at least 1.
func (s *Store) fleetSize() int {
	if s.fleet == nil {
		return 1
	}
	return max(1, s.fleet())
}

// isLocal reports whether the local store decides the charge while the primary cannot be asked.
func isLocal(c *store.Charge) bool {
	return c.OnError != store.OnErrorAllow && c.OnError != store.OnErrorDeny
}

// sharers returns the number of processes that share the key of a charge: the fleet, but not more
// than a full key admits hits.
func sharers(c *store.Charge, fleet int) int64 {
	return max(1, min(int64(fleet), int64(c.Limit.Capacity())))
}

// cost returns the hits that a charge costs in the local store: as many for each process. A refund
// returns its own hits only.
func cost(c *store.Charge, fleet int) int64 {
	n := sharers(c, fleet)
	if c.Hits <= 0 {
		return c.Hits
	}
	if c.Hits > algorithms.MaxHits/n {
		return algorithms.MaxHits
	}
	return c.Hits * n
}

// carryBack has the primary charged later with the hits that the local store applied, and returns
// their sum without refunds. Hits of holders are for tellHolders. cause is the primary's error; nil
// if it was not asked.
func (s *Store) carryBack(charges []store.Charge, decisions []algorithms.Decision, admitted bool, cause error) (carried uint64) {
	if s.outbox == nil {
		return 0
	}
	unanswered, asked := errors.AsType[store.Unanswered](cause)
	if !asked {
		at := s.now()
		for i := range charges {
			if hits := applied(&charges[i], &decisions[i], admitted); hits != 0 && isLocal(&charges[i]) {
				carried += uint64(max(hits, 0))
				s.outbox.Later(&charges[i], at)
			}
		}
		return carried
	}
	scratch, _ := s.instead.Get().(*[]int64)
	defer s.instead.Put(scratch)
	*scratch = (*scratch)[:0]
	for i := range charges {
		hits := applied(&charges[i], &decisions[i], admitted)
		carried += uint64(max(hits, 0))
		*scratch = append(*scratch, hits)
	}
	unanswered.Instead(*scratch)
	return carried
}

// applied returns the hits of a charge without a holder that a request without the primary has
// applied, as package store says: all or none.
func applied(c *store.Charge, d *algorithms.Decision, admitted bool) int64 {
	if c.Hold == nil && (c.CountRejected || admitted && d.Allowed) {
		return c.Hits
	}
	return 0
}
