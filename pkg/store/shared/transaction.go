package shared

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// TakeNow implements [store.Store]. TakeNow decides a request that allotments decide, and any
// request for which the breaker does not let the remote store be asked.
func (s *Store) TakeNow(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	if admitted, decided = s.near(charges, decisions); decided {
		return admitted, true
	}
	if p := s.breaker.enterTransaction(charges); p != nil {
		p.leave() // the remote store would decide: the caller must wait
		return false, false
	}
	admitted, err := s.without(charges, decisions, nil)
	for i := range charges {
		s.givesBack(&charges[i])
	}
	return admitted, err == nil
}

// TakeAll implements [store.Store]. Each transaction takes five steps:
//
//	near      leases admit it or denials deny it; else leases may pay a part (question)
//	gate      the breaker says whether the remote store may be asked
//	ask       the remote store decides all transactions that have come so far
//	learn     the allotments and the local store go on from its states
//	without   if it was not asked, or failed, the policies decide
//
// A transaction fails if its Ctx has ended before, if its caller cancels Ctx during the wait, or if
// the local store fails.
func (s *Store) TakeAll(transactions []store.Transaction, decided func(indexes []int)) {
	r, _ := s.rounds.Get().(*round)
	defer r.end()
	r.transactions, r.decided = transactions, decided
	now := time.Now()
	for i := range transactions {
		t := &transactions[i]
		if t.Admitted, t.Err = false, t.Ended(now); t.Err == nil && !r.decide(i, t) {
			continue
		}
		r.done = append(r.done, i)
	}
	if len(r.done) > 0 {
		decided(r.done)
	}
	if len(r.asked) > 0 {
		s.remote.TakeAll(r.asked, r.learn) // ask
	}
}

// decide decides a transaction, and reports whether it did. Otherwise the remote store is asked
// about it.
func (r *round) decide(index int, t *store.Transaction) (decided bool) {
	s := r.store
	if t.Admitted, decided = s.near(t.Charges, t.Decisions); decided {
		return true
	}
	q := s.question(index, t)
	if q.phase = s.gate(q, t); q.phase == nil {
		s.answered(q, t)
		return true
	}
	r.add(q, t)
	return false
}

// gate returns the phase of the breaker in which the remote store may be asked; nil after it has
// decided the question otherwise. Where leases have paid a part, denials may decide the rest.
func (s *Store) gate(q *question, t *store.Transaction) (p *phase) {
	if len(q.asked) < len(t.Charges) && s.table.denials.Load() > 0 && s.denyAll(q.asked, q.decisions) {
		return nil
	}
	if p = s.breaker.enterTransaction(q.asked); p == nil {
		t.Admitted, t.Err = s.without(q.asked, q.decisions, nil)
	}
	return p
}

// round is the transactions of one TakeAll that the remote store is asked about. The memory is
// used again.
type round struct {
	store        *Store
	transactions []store.Transaction // of the caller
	decided      func(indexes []int) // the same
	asked        []store.Transaction
	questions    []*question // of asked
	done         []int       // indexes in transactions
	learn        func(indexes []int)
}

func newRound(s *Store) *round {
	r := &round{store: s}
	r.learn = r.learnAll
	return r
}

func (r *round) add(q *question, t *store.Transaction) {
	ctx := t.Ctx
	if r.store.span != nil {
		ctx, q.span = r.store.span(ctx, len(q.asked))
	}
	r.asked = append(r.asked, store.Transaction{Ctx: ctx, Charges: q.asked, Decisions: q.decisions})
	r.questions = append(r.questions, q)
}

// learnAll is given to TakeAll of the remote store: it learns from answers, and reports them to the
// caller.
func (r *round) learnAll(indexes []int) {
	r.done = r.done[:0]
	for _, n := range indexes {
		q := r.questions[n]
		r.questions[n] = nil
		r.done = append(r.done, q.index)
		r.store.learn(q, &r.transactions[q.index], &r.asked[n])
	}
	r.decided(r.done)
}

// end gives the memory of the round back. After a panic of the remote store some questions have no
// answer; the remote store may then still have the memory.
func (r *round) end() {
	whole := true
	for _, q := range r.questions {
		if whole = whole && q == nil; q != nil && q.span != nil {
			q.span(nil)
		}
	}
	if !whole {
		return
	}
	clear(r.asked)
	r.asked, r.questions, r.done = r.asked[:0], r.questions[:0], r.done[:0]
	r.transactions, r.decided = nil, nil
	r.store.rounds.Put(r)
}

// question is a transaction that allotments do not decide: the charges that no lease pays, on their
// way to the remote store and back. The memory is used again.
type question struct {
	index       int            // of the transaction, in its round
	asked       []store.Charge // copies; their Left are states
	states      []store.State  // that the remote store tells
	decisions   []algorithms.Decision
	indexes     []int    // of asked, in the transaction's charges
	generations []uint64 // of the shards of asked, before the question
	holds       bool     // a charge has a holder
	phase       *phase   // of the breaker; nil: the remote store is not asked
	span        func(error)

	leases bool       // the transaction has to do with leases; only then the next two are set
	from   [][2]taken // of the transaction's charges: which parts of leases paid
	paid   []bool     // the same: a lease paid

	names names             // if the local store may know holders
	known []algorithms.Hold // of asked, the same
	ends  []store.Hold      // the same, in place of the caller's
	own   []algorithms.Decision
}

// question returns the question about a transaction. Give the question back by answered.
func (s *Store) question(index int, t *store.Transaction) *question {
	q, _ := s.questions.Get().(*question)
	q.index, q.phase, q.holds = index, nil, store.Holds(t.Charges)
	if q.leases = !q.holds && s.may(t.Charges); q.leases {
		s.split(q, t)
	} else {
		for i := range t.Charges {
			q.add(&t.Charges[i], i)
		}
	}
	q.states = append(q.states[:0], make([]store.State, len(q.asked))...)
	for n := range q.asked {
		c := &q.asked[n]
		c.Left = &q.states[n]
		q.generations = append(q.generations, s.table.spot(c).generation.Load())
	}
	if q.decisions = t.Decisions; len(q.asked) < len(t.Charges) {
		q.own = append(q.own[:0], make([]algorithms.Decision, len(q.asked))...)
		q.decisions = q.own
	}
	if q.holds && s.knowsHolders() {
		s.recallHolders(q)
	}
	return q
}

func (q *question) add(c *store.Charge, i int) {
	q.asked, q.indexes = append(q.asked, *c), append(q.indexes, i)
	n := len(q.asked) - 1
	q.asked[n].Hash = c.KeyHash() // for all that follow
}

// learn learns from the answer to a question about a transaction. Without an answer the policies
// decide.
func (s *Store) learn(q *question, t, answer *store.Transaction) {
	if q.span != nil {
		q.span(answer.Err)
		q.span = nil
	}
	if t.Err = answer.Err; t.Err != nil {
		if t.Err = s.breaker.failed(t.Ctx, q.phase, q.asked, answer.Err); t.Err == nil {
			q.restoreHolders(t.Charges)
			t.Admitted, t.Err = s.without(q.asked, q.decisions, answer.Err)
		}
		q.phase = nil // nothing to go on from
		s.answered(q, t)
		return
	}
	t.Admitted = answer.Admitted
	if len(q.known) > 0 {
		s.recalledHolders(q, t)
	}
	if !q.holds {
		s.learnDenials(q, t.Admitted)
	}
	s.breaker.succeeded(q.phase)
	s.answered(q, t)
}

// learnDenials remembers the keys of a denied request, and forgets the keys of an admitted one.
func (s *Store) learnDenials(q *question, admitted bool) {
	if s.maxAge == 0 || admitted && s.table.denials.Load() == 0 {
		return
	}
	now := s.now()
	for n := range q.asked {
		c := &q.asked[n]
		if q.states[n].Now == 0 {
			continue
		}
		var d *denial
		if !admitted && !repeatedBefore(q.asked, n) {
			d = newDenial(c, &q.states[n], &q.decisions[n], now)
		}
		sh := s.table.lock(c)
		if d != nil && sh.generation.Load() == q.generations[n] {
			s.denyLocked(sh, c.Key, d, now)
		} else {
			s.allowLocked(sh, c.Key) // the memory is older than the answer
		}
		sh.mu.Unlock()
	}
}

// repeatedBefore reports whether an earlier charge has the key of charge i, which was then decided
// on top of that one.
func repeatedBefore(charges []store.Charge, i int) bool { return repeated(charges[:i+1], i) }

// answered ends a question about a transaction that is decided or has failed. The caller gets the
// decisions and states. Leases and the local store go on from the states. Leased hits that the
// transaction does not use are put back.
func (s *Store) answered(q *question, t *store.Transaction) {
	now := s.now()
	for n, i := range q.indexes {
		c := &t.Charges[i]
		if len(q.asked) < len(t.Charges) && t.Err == nil {
			t.Decisions[i] = q.decisions[n]
		}
		if q.leases && s.table.tracked.Load() > 0 {
			s.learnLease(&q.asked[n], &q.states[n], &t.Decisions[i], now)
		}
		s.givesBack(c)
		q.states[n].TellTo(c.Left)
	}
	if q.leases && (!t.Admitted || t.Err != nil) {
		for i := range t.Charges {
			if c := &t.Charges[i]; q.paid[i] && (t.Err != nil || !c.CountRejected) {
				s.unspend(c, &t.Decisions[i], now, q.from[i], t.Err != nil)
			}
		}
	}
	if q.phase != nil {
		s.goOn(q)
	}
	clear(q.asked) // releases the keys
	q.asked, q.indexes, q.generations = q.asked[:0], q.indexes[:0], q.generations[:0]
	q.from, q.paid, q.decisions = q.from[:0], q.paid[:0], nil
	if len(q.known) > 0 {
		q.names, q.known = names{}, q.known[:0]
	}
	s.questions.Put(q)
}

// givesBack forgets the denial of a key that a charge may have given hits back to.
func (s *Store) givesBack(c *store.Charge) {
	if c.Hits < 0 || isEnd(c) {
		s.forget(c, false)
	}
}

// goOn has the local store go on from the states of an answer. The other policies need no states
// there. While other processes may have holders to tell, the local store decides begins by the
// share of this process. The end of a holder leaves no state.
func (s *Store) goOn(q *question) {
	told, telling := false, q.phase.tells()
	for n := range q.asked {
		c := &q.asked[n]
		if !isLocal(c) || telling && isEnd(c) {
			q.states[n].Now = 0
		}
		told = told || q.states[n].Now != 0
	}
	if told {
		s.goOnFrom(q.asked, q.states, q.decisions[:len(q.asked)])
	}
}
