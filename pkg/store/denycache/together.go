package denycache

import (
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

var _ store.Together = (*Store)(nil)

// rest is transactions that memory has not denied.
type rest struct {
	transactions []store.Transaction
	questions    []*question
	indexes      []int // of the transactions, in the caller's
	done         []int // the same
}

// TakeAll implements [store.Together]. Memory denies first.
func (s *Store) TakeAll(transactions []store.Transaction, decided func(indexes []int)) {
	r, _ := s.rests.Get().(*rest)
	now := time.Now()
	for i := range transactions {
		t := &transactions[i]
		if t.Err = t.Ended(now); t.Err != nil || s.deny(t.Charges, t.Decisions) {
			t.Admitted = false
			r.done = append(r.done, i)
			continue
		}
		q, _ := s.questions.Get().(*question)
		q.begin(s, t.Charges)
		r.questions, r.indexes = append(r.questions, q), append(r.indexes, i)
		r.transactions = append(r.transactions, store.Transaction{Ctx: t.Ctx, Charges: q.charges, Decisions: t.Decisions})
	}
	if len(r.done) > 0 {
		decided(r.done)
	}
	if len(r.transactions) > 0 {
		store.TakeAll(s.Store, r.transactions, func(indexes []int) {
			r.done = r.done[:0]
			for _, n := range indexes {
				t, answer := &transactions[r.indexes[n]], &r.transactions[n]
				if t.Admitted, t.Err = answer.Admitted, answer.Err; t.Err == nil {
					s.learn(r.questions[n], t.Admitted, t.Decisions)
				}
				r.questions[n].end(s, t.Charges)
				s.questions.Put(r.questions[n])
				r.done = append(r.done, r.indexes[n])
			}
			decided(r.done)
		})
	}
	clear(r.transactions)
	clear(r.questions)
	r.transactions, r.questions, r.indexes, r.done = r.transactions[:0], r.questions[:0], r.indexes[:0], r.done[:0]
	s.rests.Put(r)
}
