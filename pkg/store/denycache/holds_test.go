package denycache

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// with makes a charge one of a holder.
func with(c store.Charge, p algorithms.HoldPhase) store.Charge {
	c.Hold = &store.Hold{Phase: p, Holder: store.HolderOf([]byte("R")), AtMost: time.Minute}
	return c
}

// A denial from memory would not have the store remember that the holder was denied, and its end
// would be charged.
func TestTheStoreDecidesEachTransactionWithAHolder(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, s *Store, charges ...store.Charge){
		"alone": func(t *testing.T, s *Store, charges ...store.Charge) { take(t, s, charges...) },
		"at_once": func(t *testing.T, s *Store, charges ...store.Charge) {
			if _, decided := s.TakeNow(charges, make([]algorithms.Decision, len(charges))); decided && store.Holds(charges) {
				t.Error("decided at once")
			}
			take(t, s, charges...)
		},
		"together": func(t *testing.T, s *Store, charges ...store.Charge) {
			all := []store.Transaction{{Ctx: t.Context(), Charges: charges, Decisions: make([]algorithms.Decision, len(charges))}}
			s.TakeAll(all, func([]int) {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, time.Second, func(t *testing.T, s *Store, told *telling) {
				over, held := hour("over", 1), with(hour("held", 1), algorithms.HoldBegin)
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
				if got := s.Stats().Keys; got != 1 {
					t.Errorf("%d keys are remembered, want the one without a holder", got)
				}
			})
		})
	}
}

func TestTheEndOfAHolderForgetsTheDenialOfItsKey(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *Store, charges ...store.Charge){
		"alone": func(t *testing.T, s *Store, charges ...store.Charge) { take(t, s, charges...) },
		"together": func(t *testing.T, s *Store, charges ...store.Charge) {
			all := []store.Transaction{{Ctx: t.Context(), Charges: charges, Decisions: make([]algorithms.Decision, len(charges))}}
			s.TakeAll(all, func([]int) {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, time.Second, func(t *testing.T, s *Store, told *telling) {
				over, other := hour("over", 1), hour("other", 1)
				take(t, s, over)
				take(t, s, over)
				take(t, s, other)
				take(t, s, other)
				told.asks(t, 0, func() { take(t, s, over) })
				end(t, s, with(over, algorithms.HoldEnd), with(hour("k", 5), algorithms.HoldBegin))
				refund := other
				refund.Hits = -1
				end(t, s, refund, with(hour("k", 5), algorithms.HoldBegin))
				told.asks(t, 2, func() {
					take(t, s, over)
					take(t, s, other)
				})
			})
		})
	}
}

// lists is a store that lists holders.
type lists struct{ *telling }

func (lists) Holders(context.Context, *store.Charge, int) ([]store.Held, int, error) {
	return []store.Held{{Hits: 3}}, 7, nil
}

func TestHoldersAreListedByTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told, c := &telling{states: map[string]store.State{}}, with(hour("k", 5), algorithms.HoldBegin)
		if held, all, err := newCache(t, storetest.Of(lists{told}), told, time.Second).Holders(t.Context(), &c, 10); len(held) != 1 || all != 7 || err != nil {
			t.Errorf("Holders = %v, %d, %v; want those of the store", held, all, err)
		}
		if _, _, err := newCache(t, storetest.Of(told), told, time.Second).Holders(t.Context(), &c, 10); !errors.Is(err, store.ErrNotListed) {
			t.Errorf("in front of a store without holders: %v, want %v", err, store.ErrNotListed)
		}
	})
}
