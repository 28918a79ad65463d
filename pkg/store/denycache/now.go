package denycache

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

var _ store.Prompt = (*Store)(nil)

// Prompt implements [store.Prompt]: a request may have to ask the other store.
func (s *Store) Prompt() bool { return false }

// TakeNow implements [store.Prompt]. TakeNow decides a request that is denied from memory. Another
// one is for the other store, if that is Prompt.
func (s *Store) TakeNow(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	if !store.Holds(charges) && s.deny(charges, decisions) {
		return false, true
	}
	other, ok := s.Store.(store.Prompt)
	if !ok {
		return false, false
	}
	admitted, decided = other.TakeNow(charges, decisions)
	if decided {
		s.passed(charges)
	}
	return admitted, decided
}
