package shared

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// question is a transaction that allotments do not decide: the charges that no lease pays, on their
// way to the remote store and back. The memory is used again.
type question struct {
	index       int                   // of the transaction, in its round
	rest        []store.Charge        // that no lease pays, copies; their Left are states
	states      []store.State         // that the remote store tells
	decisions   []algorithms.Decision // of rest: the caller's, or own where leases have paid a part
	indexes     []int                 // of rest, in the transaction's charges
	generations []uint64              // of the shards of rest, before the question
	holds       bool                  // a charge has a holder
	phases      []*phase              // of the breaker; empty: the remote store is not asked
	span        func(error)

	leases bool       // the transaction has to do with leases; only then the next two are set
	from   [][2]taken // of the transaction's charges: which parts of leases paid
	paid   []bool     // the same: a lease paid

	pairs store.Pairs
	names names             // if the local store may know holders
	known []algorithms.Hold // of rest, the same
	ends  []store.Hold      // the same, in place of the caller's
	own   []algorithms.Decision
}

// newQuestion returns the question about a transaction. Give the question back by finish.
func (s *Store) newQuestion(index int, t *store.Transaction) *question {
	q, _ := s.questions.Get().(*question)
	q.index, q.phases, q.holds = index, q.phases[:0], store.Holds(t.Charges)
	if q.leases = !q.holds && s.mayLease(t.Charges); q.leases {
		s.split(q, t)
	} else {
		for i := range t.Charges {
			q.add(&t.Charges[i], i)
		}
	}
	q.states = append(q.states[:0], make([]store.State, len(q.rest))...)
	for n := range q.rest {
		c := &q.rest[n]
		c.Left = &q.states[n]
		q.generations = append(q.generations, s.table.spot(c).generation.Load())
	}
	if q.decisions = t.Decisions; len(q.rest) < len(t.Charges) {
		q.own = append(q.own[:0], make([]algorithms.Decision, len(q.rest))...)
		q.decisions = q.own
	}
	if q.holds && s.knowsHolders() {
		s.recallHolders(q)
	}
	return q
}

func (q *question) add(c *store.Charge, i int) {
	q.rest, q.indexes = append(q.rest, *c), append(q.indexes, i)
	n := len(q.rest) - 1
	q.rest[n].Hash = c.KeyHash() // for all that follow
}

// split spends leased hits for a request that allotments do not decide. The remote store is asked
// about the other charges. Where a lease does not suffice, its hits go back, ahead of the question.
func (s *Store) split(q *question, t *store.Transaction) {
	now, several := s.now(), len(t.Charges) > 1 && len(t.Charges) <= maxCharges
	for i := range t.Charges {
		c := &t.Charges[i]
		from, paid := [2]taken{}, false
		if several && leasable(c) && !repeated(t.Charges, i) { // alone, it was not paid before
			from, paid = s.spend(c, &t.Decisions[i], now)
		}
		q.from, q.paid = append(q.from, from), append(q.paid, paid)
		if !paid {
			s.countQuestion(c, now)
			q.add(c, i)
		}
	}
}

// countQuestion counts a question about a key. The hits of a lease of the key go back, so that the
// remote store decides as if there was no lease. A refund leaves the lease.
func (s *Store) countQuestion(c *store.Charge, now time.Duration) {
	sh := s.table.lock(c)
	defer sh.mu.Unlock()
	if !leasable(c) {
		if k := sh.allotments[string(c.Key)].yes; k != nil && c.Hits >= 0 {
			s.giveLocked(k, k.limit, now, k.release())
		}
		return
	}
	if k := s.trackLocked(sh, c, now); k != nil {
		k.rate.note(now, c.Hits)
		k.under += c.Hits
		s.giveLocked(k, k.limit, now, k.release())
	}
}

// mayLease reports whether a request has to do with leases at all.
func (s *Store) mayLease(charges []store.Charge) bool {
	if s.table.tracked.Load() > 0 {
		return true
	}
	for i := range charges {
		if leasable(&charges[i]) {
			return true
		}
	}
	return false
}

// denyRest decides a question whose other charges leases have paid, by the denials of the rest, and
// reports whether it did.
func (s *Store) denyRest(q *question, t *store.Transaction) bool {
	return len(q.rest) < len(t.Charges) && s.table.denials.Load() > 0 && s.denyAll(q.rest, q.decisions)
}

// finish ends a question about a transaction that is decided or has failed. The caller gets the
// decisions and states. Leases and the local store go on from the states. Leased hits that the
// transaction does not use are put back.
func (s *Store) finish(q *question, t *store.Transaction) {
	now := s.now()
	q.tellPairs(t.Charges)
	for n, i := range q.indexes {
		c := &t.Charges[i]
		if len(q.rest) < len(t.Charges) && t.Err == nil {
			t.Decisions[i] = q.decisions[n]
		}
		if q.leases && s.table.tracked.Load() > 0 {
			s.learnLease(&q.rest[n], &q.states[n], &t.Decisions[i], now)
		}
		s.forgetIfBack(c)
		for n := range c.Before {
			s.forget(&store.Charge{Key: c.Before[n].Key, Limit: c.Before[n].Limit}, false)
		}
		q.states[n].TellTo(c.Left)
	}
	if q.leases && (!t.Admitted || t.Err != nil) {
		for i := range t.Charges {
			if c := &t.Charges[i]; q.paid[i] && (t.Err != nil || !c.CountRejected) {
				s.unspend(c, &t.Decisions[i], now, q.from[i], t.Err != nil)
			}
		}
	}
	if len(q.phases) > 0 {
		s.goOn(q, t.Admitted)
	}
	clear(q.rest) // releases the keys
	clear(q.phases)
	q.rest, q.indexes, q.generations = q.rest[:0], q.indexes[:0], q.generations[:0]
	q.from, q.paid, q.decisions = q.from[:0], q.paid[:0], nil
	if len(q.known) > 0 {
		q.names, q.known = names{}, q.known[:0]
	}
	s.questions.Put(q)
}
