package memstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// The slots that the other store has given away stay taken until the last of them runs out there;
// the rest can be held here.
func TestAStoreGoesOnFromTheSlotsOfAnotherOne(t *testing.T) {
	for _, maxHolds := range []int{0, 3} {
		inBubble(t, Options{MaxHolds: maxHolds, SweepInterval: time.Hour}, func(t *testing.T, s *Store) {
			for i := range 3 { // names that must go for the slots of others
				takeHeld(t, s, held(algorithms.HoldEnd, fmt.Sprint("spent ", i), algorithms.FixedWindow, 10, 1, 0))
			}
			begin := func(holder int) store.Charge {
				return held(algorithms.HoldBegin, "key", algorithms.Concurrency, 5, holder, 1)
			}
			end := func(holder int) store.Charge {
				return held(algorithms.HoldEnd, "key", algorithms.Concurrency, 5, holder, 1)
			}
			hear := func(at time.Duration, d algorithms.Decision) {
				goOn(s, begin(9), store.State{Now: algorithms.Instant(at)}, d)
				if err := s.checkHolders(); err != nil {
					t.Fatal(err)
				}
			}
			want := func(c store.Charge, allowed bool, remaining uint64) {
				t.Helper()
				if d := takeHeld(t, s, c)[0]; d.Allowed != allowed || d.Remaining != remaining {
					t.Errorf("%+v: %+v; want allowed %v, %d remaining", c.Hold, d, allowed, remaining)
				}
			}
			hear(1, algorithms.Decision{Allowed: true, Remaining: 3, ResetAfter: 10 * time.Second})
			hear(2, algorithms.Decision{Allowed: true, Remaining: 2, ResetAfter: 20 * time.Second}) // replaces the first
			want(begin(1), true, 1)
			want(end(8), true, 1) // of a holder that the other store knows
			hear(2, algorithms.Decision{Allowed: true, Remaining: 4, ResetAfter: time.Second})
			want(begin(2), true, 0) // an answer of the same instant that leaves more does not count
			want(begin(3), false, 0)
			want(end(1), true, 1)
			time.Sleep(20 * time.Second)
			want(begin(4), true, 3)
			hear(3, algorithms.Decision{RetryAfter: time.Second, ResetAfter: time.Minute})
			want(begin(5), false, 0)
			hear(4, algorithms.Decision{Allowed: true, Remaining: 5})
			want(begin(5), true, 4)
			if got, err := s.Reset(t.Context(), []store.Charge{begin(0)}); err != nil || got != 1 {
				t.Errorf("Reset = %d, %v", got, err)
			}
			want(begin(6), true, 4)
		})
	}
}
