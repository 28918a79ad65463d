package fallback

import (
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

var _ store.Together = (*Store)(nil)

// asking is transactions that the primary is asked about.
type asking struct {
	store.Rest
	phases []*phase
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
				a.phases = append(a.phases, p)
				a.Pass(i, *t)
				continue
			}
			t.Admitted, t.Err = s.takeWithout(t.Ctx, t.Charges, t.Decisions)
		}
		a.Decide(i)
	}
	a.Take(s.primary, func(i, n int, answer *store.Transaction) {
		t := &transactions[i]
		if answer.Err == nil {
			s.succeeded(a.phases[n])
			t.Admitted, t.Err = answer.Admitted, nil
		} else if t.Err = s.failed(t.Ctx, a.phases[n], answer.Err); t.Err == nil {
			t.Admitted, t.Err = s.takeWithout(t.Ctx, t.Charges, t.Decisions)
		}
	}, decided)
	clear(a.phases)
	a.phases = a.phases[:0]
	s.askings.Put(a)
}
