package denycache

import (
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// rest is transactions that memory has not denied.
type rest struct {
	store.Rest
	questions []*question
}

// TakeAll implements [store.Store]. Memory denies first.
func (s *Store) TakeAll(transactions []store.Transaction, decided func(indexes []int)) {
	r, _ := s.rests.Get().(*rest)
	now := time.Now()
	for i := range transactions {
		t := &transactions[i]
		holds := store.Holds(t.Charges)
		if t.Err = t.Ended(now); t.Err != nil || !holds && s.deny(t.Charges, t.Decisions) {
			t.Admitted = false
			r.Decide(i)
			continue
		}
		if holds {
			r.questions = append(r.questions, nil)
			r.Pass(i, *t)
			continue
		}
		q, _ := s.questions.Get().(*question)
		q.begin(s, t.Charges)
		r.questions = append(r.questions, q)
		r.Pass(i, store.Transaction{Ctx: t.Ctx, Charges: q.charges, Decisions: t.Decisions})
	}
	r.Take(s.Store, func(i, n int, answer *store.Transaction) {
		t, q := &transactions[i], r.questions[n]
		if t.Admitted, t.Err = answer.Admitted, answer.Err; q == nil {
			s.passed(t.Charges)
			return
		}
		if t.Err == nil {
			s.learn(q, t.Admitted, t.Decisions)
		}
		q.end(s, t.Charges)
		s.questions.Put(q)
	}, decided)
	clear(r.questions)
	r.questions = r.questions[:0]
	s.rests.Put(r)
}
