package shared

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// holding makes a charge one of a holder.
func holding(c store.Charge, p algorithms.HoldPhase) store.Charge {
	c.Hold = &store.Hold{Phase: p, Holder: store.HolderOf([]byte("R")), AtMost: time.Minute}
	return c
}

// A denial from memory would not have the store remember that the holder was denied, and its end
// would be charged.
func TestTheStoreDecidesEachTransactionWithAHolder(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, s *Store, charges ...store.Charge){
		"alone": func(t *testing.T, s *Store, charges ...store.Charge) { takes(t, s, charges...) },
		"at_once": func(t *testing.T, s *Store, charges ...store.Charge) {
			if _, decided := s.TakeNow(charges, make([]algorithms.Decision, len(charges))); decided && store.Holds(charges) {
				t.Error("decided at once")
			}
			takes(t, s, charges...)
		},
		"together": func(t *testing.T, s *Store, charges ...store.Charge) {
			all := []store.Transaction{{Ctx: t.Context(), Charges: charges, Decisions: make([]algorithms.Decision, len(charges))}}
			s.TakeAll(all, func([]int) {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inHub(t, setup{Denials: time.Second}, func(t *testing.T, s *Store, told *link) {
				over, held := hour("over", 1), holding(hour("held", 1), algorithms.HoldBegin)
				for range 3 {
					take(t, s, over)
					take(t, s, held)
				}
				told.asks(t, 20, func() {
					for range 10 {
						take(t, s, held)
						take(t, s, over, held)
					}
				})
				if got := s.Stats().Denials.Keys; got != 1 {
					t.Errorf("%d keys are remembered, want the one without a holder", got)
				}
			})
		})
	}
}

func TestTheEndOfAHolderForgetsTheDenialOfItsKey(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *Store, charges ...store.Charge){
		"alone": func(t *testing.T, s *Store, charges ...store.Charge) { takes(t, s, charges...) },
		"together": func(t *testing.T, s *Store, charges ...store.Charge) {
			all := []store.Transaction{{Ctx: t.Context(), Charges: charges, Decisions: make([]algorithms.Decision, len(charges))}}
			s.TakeAll(all, func([]int) {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inHub(t, setup{Denials: time.Second}, func(t *testing.T, s *Store, told *link) {
				over, other := hour("over", 1), hour("other", 1)
				takes(t, s, over)
				takes(t, s, over)
				takes(t, s, other)
				takes(t, s, other)
				told.asks(t, 0, func() { takes(t, s, over) })
				end(t, s, holding(over, algorithms.HoldEnd), holding(hour("k", 5), algorithms.HoldBegin))
				refund := other
				refund.Hits = -1
				end(t, s, refund, holding(hour("k", 5), algorithms.HoldBegin))
				told.asks(t, 2, func() {
					takes(t, s, over)
					takes(t, s, other)
				})
			})
		})
	}
}
