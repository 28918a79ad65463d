package leased

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// question is a request to the other store: the charges that no lease pays.
type question struct {
	charges   []store.Charge
	decisions []algorithms.Decision
	states    []store.State // of the charges
	indexes   []int         // of the charges, in the request
	from      [][2]part     // of the request's charges: which grants paid
	paid      []bool        // the same: a lease paid
}

// begin spends leased hits for the request, and prepares the question about the rest. Where a lease
// does not suffice, its hits go back, ahead of the question.
func (q *question) begin(s *Store, charges []store.Charge, decisions []algorithms.Decision) {
	q.charges, q.indexes, q.from, q.paid = q.charges[:0], q.indexes[:0], q.from[:0], q.paid[:0]
	now := s.now()
	for i := range charges {
		c := &charges[i]
		from, paid := [2]part{}, false
		if len(charges) > 1 && len(charges) <= maxCharges && leasable(c) && !repeated(charges, i) { // alone, it was not paid before
			from, paid = s.spend(c, &decisions[i], now)
		}
		if !paid {
			s.ask(c, now)
		}
		q.from, q.paid = append(q.from, from), append(q.paid, paid)
		if !paid {
			q.charges, q.indexes = append(q.charges, *c), append(q.indexes, i)
		}
	}
	q.states = append(q.states[:0], make([]store.State, len(q.charges))...)
	for n := range q.charges {
		q.charges[n].Left = &q.states[n]
	}
	q.decisions = decisions
	if len(q.charges) < len(charges) {
		q.decisions = make([]algorithms.Decision, len(q.charges))
	}
}

// ask counts a call about a key to the other store. The hits of a lease of the key go back, so that
// the store decides as if there was no lease. A refund leaves the lease.
func (s *Store) ask(c *store.Charge, now time.Duration) {
	sh, counter := s.spot(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !leasable(c) {
		if k := sh.keys[string(c.Key)]; k != nil && c.Hits >= 0 {
			back := k.release()
			s.giveLocked(k, k.limit, now, back[:]...)
		}
		return
	}
	if k := s.trackLocked(sh, counter, c, now); k != nil {
		k.rate.note(now, c.Hits)
		k.under += c.Hits
		back := k.release()
		s.giveLocked(k, k.limit, now, back[:]...)
	}
}

// end passes the outcome on to the caller, and learns the states.
func (q *question) end(s *Store, charges []store.Charge, decisions []algorithms.Decision, admitted bool, err error) {
	now := s.now()
	for n, i := range q.indexes {
		c := &charges[i]
		if len(q.charges) < len(charges) && err == nil {
			decisions[i] = q.decisions[n]
		}
		s.hear(c, &q.states[n], &decisions[i], now)
		q.states[n].TellTo(c.Left)
	}
	if !admitted || err != nil {
		for i := range charges {
			if q.paid[i] && (err != nil || !charges[i].CountRejected) {
				s.unspend(&charges[i], &decisions[i], now, q.from[i], err != nil)
			}
		}
	}
	clear(q.charges) // releases the keys
	q.decisions = nil
}

// hear notes the end of a call about a key, and the state that the other store told, if it told
// one. Then hear asks for a grant if the key is worth one. The decision about a refund gets the
// hits that a lease holds.
func (s *Store) hear(c *store.Charge, told *store.State, to *algorithms.Decision, now time.Duration) {
	if s.keys.Load() == 0 {
		return
	}
	sh, _ := s.spot(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k := sh.keys[string(c.Key)]
	if k == nil || k.limit != c.Limit {
		return
	}
	if leasable(c) {
		k.under = max(0, k.under-c.Hits)
	}
	if told.Now == 0 {
		k.vain = k.vain || told.Source == store.Without
		return
	}
	k.hear(now, told)
	k.vain = false
	if c.Hits < 0 && k.held(now) > 0 {
		*to = k.answer(now)
	}
	s.wantLocked(k, now)
}

// rest is transactions that leases do not decide.
type rest struct {
	store.Rest
	questions []*question
}

// mayAny reports whether any of the transactions has to do with leases.
func (s *Store) mayAny(transactions []store.Transaction) bool {
	for i := range transactions {
		if s.may(transactions[i].Charges) {
			return true
		}
	}
	return false
}

// TakeAll implements [store.Store]. Leases decide first.
func (s *Store) TakeAll(transactions []store.Transaction, decided func(indexes []int)) {
	if !s.mayAny(transactions) {
		s.Store.TakeAll(transactions, decided)
		return
	}
	r, _ := s.rests.Get().(*rest)
	now := time.Now()
	for i := range transactions {
		t := &transactions[i]
		if t.Admitted, t.Err = false, t.Ended(now); t.Err != nil {
			r.Decide(i)
			continue
		}
		if store.Holds(t.Charges) || !s.may(t.Charges) {
			r.questions = append(r.questions, nil)
			r.Pass(i, *t)
			continue
		}
		done := s.spendAll(t.Charges, t.Decisions)
		if t.Admitted = done; !done {
			t.Admitted, done = s.without(t.Charges, t.Decisions)
		}
		if done {
			r.Decide(i)
			continue
		}
		q, _ := s.questions.Get().(*question)
		q.begin(s, t.Charges, t.Decisions)
		r.questions = append(r.questions, q)
		r.Pass(i, store.Transaction{Ctx: t.Ctx, Charges: q.charges, Decisions: q.decisions})
	}
	r.Take(s.Store, func(i, n int, answer *store.Transaction) {
		t, q := &transactions[i], r.questions[n]
		t.Admitted, t.Err = answer.Admitted, answer.Err
		if q != nil {
			q.end(s, t.Charges, t.Decisions, t.Admitted, t.Err)
			s.questions.Put(q)
		}
	}, decided)
	clear(r.questions)
	r.questions = r.questions[:0]
	s.rests.Put(r)
}
