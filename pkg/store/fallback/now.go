package fallback

import (
	"context"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// TakeNow implements [store.Store]. TakeNow decides while the breaker does not let the request ask
// the primary.
func (s *Store) TakeNow(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	if p := s.enter(charges); p != nil {
		p.leave()
		return false, false
	}
	admitted, err := s.takeWithout(context.Background(), charges, decisions, nil)
	return admitted, err == nil
}

// TakeWithout decides a request as if the primary could not be asked, and does not wait. Callers
// use TakeWithout when the primary owes them an answer.
func (s *Store) TakeWithout(charges []store.Charge, decisions []algorithms.Decision) (admitted bool, err error) {
	return s.takeWithout(context.Background(), charges, decisions, nil)
}
