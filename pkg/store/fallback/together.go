package fallback

import (
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// asking is transactions that the primary is asked about.
type asking struct {
	store.Rest
	phases    []*phase
	questions []*question
}

// TakeAll implements [store.Store]. A transaction fails as Take does. Transactions that the
// primary is not asked about are decided first. After a failure of the primary the policies decide
// the failed transactions.
func (s *Store) TakeAll(transactions []store.Transaction, decided func(indexes []int)) {
	a, _ := s.askings.Get().(*asking)
	now := time.Now()
	for i := range transactions {
		t := &transactions[i]
		if t.Err = t.Ended(now); t.Err == nil {
			if p := s.enter(t.Charges); p != nil {
				q := s.begin(t.Charges)
				a.phases, a.questions = append(a.phases, p), append(a.questions, q)
				a.Pass(i, store.Transaction{Ctx: t.Ctx, Charges: q.asked, Decisions: t.Decisions})
				continue
			}
			t.Admitted, t.Err = s.takeWithout(t.Ctx, t.Charges, t.Decisions, nil)
		}
		a.Decide(i)
	}
	a.Take(s.primary, func(i, n int, answer *store.Transaction) {
		t := &transactions[i]
		s.end(a.phases[n], a.questions[n], t.Charges, t.Decisions, answer.Admitted, answer.Err)
		if answer.Err == nil {
			s.succeeded(a.phases[n])
			t.Admitted, t.Err = answer.Admitted, nil
		} else if t.Err = s.failed(t.Ctx, a.phases[n], answer.Err); t.Err == nil {
			t.Admitted, t.Err = s.takeWithout(t.Ctx, t.Charges, t.Decisions, answer.Err)
		}
	}, decided)
	clear(a.phases)
	clear(a.questions)
	a.phases, a.questions = a.phases[:0], a.questions[:0]
	s.askings.Put(a)
}
