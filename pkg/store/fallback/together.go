package fallback

import (
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

var _ store.Together = (*Store)(nil)

// asking is transactions that the primary is asked about.
type asking struct {
	transactions []store.Transaction
	phases       []*phase
	indexes      []int // of the transactions, in the caller's
	done         []int // the same
}

// TakeAll implements [store.Together]. A transaction fails as Take does. Transactions that the primary is not asked about are decided
// first. After a failure of the primary the policies decide the failed transactions.
func (s *Store) TakeAll(transactions []store.Transaction, decided func(indexes []int)) {
	a, _ := s.askings.Get().(*asking)
	now := time.Now()
	for i := range transactions {
		t := &transactions[i]
		if t.Err = t.Ended(now); t.Err == nil {
			if p := s.enter(); p != nil {
				a.phases, a.indexes = append(a.phases, p), append(a.indexes, i)
				a.transactions = append(a.transactions, *t)
				continue
			}
			t.Admitted, t.Err = s.takeWithout(t.Ctx, t.Charges, t.Decisions)
		}
		a.done = append(a.done, i)
	}
	if len(a.done) > 0 {
		decided(a.done)
	}
	if len(a.transactions) > 0 {
		store.TakeAll(s.primary, a.transactions, func(indexes []int) {
			a.done = a.done[:0]
			for _, n := range indexes {
				t, answer := &transactions[a.indexes[n]], &a.transactions[n]
				if answer.Err == nil {
					s.succeeded(a.phases[n])
					t.Admitted, t.Err = answer.Admitted, nil
				} else if t.Err = s.failed(t.Ctx, a.phases[n], answer.Err); t.Err == nil {
					t.Admitted, t.Err = s.takeWithout(t.Ctx, t.Charges, t.Decisions)
				}
				a.done = append(a.done, a.indexes[n])
			}
			decided(a.done)
		})
	}
	clear(a.transactions)
	clear(a.phases)
	a.transactions, a.phases, a.indexes, a.done = a.transactions[:0], a.phases[:0], a.indexes[:0], a.done[:0]
	s.askings.Put(a)
}
