package denycache

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// TakeNow implements [store.Store]. TakeNow decides a request that is denied from memory. Another
// one is for the other store, if it can.
func (s *Store) TakeNow(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	if !store.Holds(charges) && s.deny(charges, decisions) {
		return false, true
	}
	admitted, decided = s.Store.TakeNow(charges, decisions)
	if decided {
		s.passed(charges)
	}
	return admitted, decided
}
