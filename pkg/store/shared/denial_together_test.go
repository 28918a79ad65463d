package shared

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func TestTransactionsDeniedFromMemoryDoNotWaitForTheOthers(t *testing.T) {
	inHub(t, setup{Denials: time.Second}, func(t *testing.T, s *Store, told *link) {
		over, free := hour("over", 1), hour("free", 100)
		takes(t, s, over)
		takes(t, s, over) // denied, and remembered
		var all []store.Transaction
		for _, c := range []store.Charge{over, free, over, over} {
			all = append(all, store.Transaction{Ctx: t.Context(), Charges: []store.Charge{c}, Decisions: make([]algorithms.Decision, 1)})
		}
		var order []int
		told.before = func() {
			if !slices.Equal(order, []int{0, 2, 3}) {
				t.Errorf("before the store answers: got %v decided, want the transactions that memory denies", order)
			}
		}
		told.asks(t, 1, func() { s.TakeAll(all, func(indexes []int) { order = append(order, indexes...) }) })
		for i, want := range []bool{false, true, false, false} {
			if all[i].Admitted != want || all[i].Err != nil {
				t.Errorf("transaction %d: got %t, %v; want %t", i, all[i].Admitted, all[i].Err, want)
			}
		}
	})
}

func TestTakeNowDecidesDeniedKeysOnly(t *testing.T) {
	inHub(t, setup{Denials: time.Second}, func(t *testing.T, s *Store, told *link) {
		over, free := hour("over", 1), hour("free", 100)
		takes(t, s, over)
		takes(t, s, over) // denied, and remembered
		told.asks(t, 0, func() {
			decisions := make([]algorithms.Decision, 2)
			if admitted, decided := s.TakeNow([]store.Charge{over}, decisions); admitted || !decided || decisions[0].RetryAfter == 0 {
				t.Errorf("a denied key: got %t, decided %t, %+v", admitted, decided, decisions[0])
			}
			if _, decided := s.TakeNow([]store.Charge{free}, decisions); decided {
				t.Error("a key that memory does not know is decided")
			}
		})
	})
}

// elsewhere is a store that decides without the one that it should ask.
type elsewhere struct{}

func (elsewhere) Take(_ context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	decisions[0] = algorithms.Decision{Allowed: true}
	*charges[0].Left = store.State{Source: store.Without}
	return true, nil
}

func TestCallersLearnHowAChargeWasDecided(t *testing.T) {
	inHub(t, setup{Denials: time.Second}, func(t *testing.T, s *Store, told *link) {
		over := hour("over", 1)
		takes(t, s, over)
		takes(t, s, over) // denied, and remembered
		for name, test := range map[string]struct {
			s    *Store
			c    store.Charge
			want store.State
		}{
			"denied from memory":       {s, over, store.State{Source: store.Memory}},
			"decided by another store": {open(t, setup{Remote: storetest.Of(elsewhere{}), Denials: time.Second}), hour("free", 1), store.State{Source: store.Without}},
		} {
			synctest.Wait()
			left := store.State{Now: 1}
			test.c.Left = &left
			takes(t, test.s, test.c)
			if left != test.want {
				t.Errorf("%s: got %+v, want %+v", name, left, test.want)
			}
		}
	})
}
