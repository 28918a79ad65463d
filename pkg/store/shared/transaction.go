package shared

import (
	"context"
	"errors"
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
	var few [4]*phase
	if in := s.breaker.enterTransaction(charges, few[:0]); in != nil {
		leave(in) // the remote store would decide: the caller must wait
		return false, false
	}
	admitted, err := s.without(charges, decisions, nil)
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
// A transaction fails if its caller cancels Ctx before or during the wait, or if the local store
// fails. The remote store is not asked if the deadline is nearer than leastTime, or has passed. So
// each transaction gets an answer in time, if there is time.
func (s *Store) TakeAll(transactions []store.Transaction, decided func(indexes []int)) {
	r, _ := s.rounds.Get().(*round)
	defer r.end()
	r.transactions, r.decided = transactions, decided
	now := time.Now()
	for i := range transactions {
		t := &transactions[i]
		t.Admitted, t.Err = false, t.Ended(now)
		if t.Err != nil && errors.Is(t.Err, context.DeadlineExceeded) {
			t.Err = nil
		}
		if t.Err == nil && !r.decide(i, t, now) {
			continue
		}
		r.done = append(r.done, i)
	}
	if len(r.done) > 0 {
		decided(r.done)
	}
	if len(r.asked) > 0 {
		s.remote.TakeAll(r.asked, r.answers)
	}
}

// leastTime is the time to its deadline in which a transaction asks the remote store. In less a
// round trip and an answer hardly fit.
const leastTime = time.Millisecond

// decide takes a transaction through the first two steps, and reports whether it is decided. If
// not, the remote store is to be asked about it.
func (r *round) decide(index int, t *store.Transaction, now time.Time) (decided bool) {
	s := r.store
	if t.Admitted, decided = s.near(t.Charges, t.Decisions); decided {
		return true
	}
	q := s.newQuestion(index, t)
	if !s.denyRest(q, t) {
		if deadline, has := t.Ctx.Deadline(); !has || deadline.Sub(now) >= leastTime {
			q.phases = s.breaker.enterTransaction(q.rest, q.phases[:0])
		}
		if len(q.phases) > 0 && s.fits(q) {
			r.ask(q, t)
			return false
		}
		leave(q.phases)
		t.Admitted, t.Err = s.without(q.rest, q.decisions, nil)
	}
	s.finish(q, t)
	return true
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
	answers      func(indexes []int)
}

func newRound(s *Store) *round {
	r := &round{store: s}
	r.answers = r.answerAll
	return r
}

// ask adds a question to the round. The remote store gets all questions at its end.
func (r *round) ask(q *question, t *store.Transaction) {
	ctx := t.Ctx
	if r.store.span != nil {
		ctx, q.span = r.store.span(ctx, len(q.rest))
	}
	r.asked = append(r.asked, store.Transaction{Ctx: ctx, Charges: q.rest, Decisions: q.decisions})
	r.questions = append(r.questions, q)
}

// answerAll is given to TakeAll of the remote store: it enters answers, and reports them to the
// caller.
func (r *round) answerAll(indexes []int) {
	r.done = r.done[:0]
	for _, n := range indexes {
		q := r.questions[n]
		r.questions[n] = nil
		r.done = append(r.done, q.index)
		r.store.answer(q, &r.transactions[q.index], &r.asked[n])
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
