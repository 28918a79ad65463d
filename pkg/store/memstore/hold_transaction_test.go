package memstore

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// A transaction of many begins finds for each the begins of the same holder before it, and passes
// few others.
func TestManyBeginsOfATransactionPassFewOthers(t *testing.T) {
	const begins = 1000
	for name, o := range map[string]Options{
		"room":    {SweepInterval: time.Hour},
		"no_room": {MaxHolds: 1, OnFull: Allow, SweepInterval: time.Hour},
	} {
		for _, names := range []int{2, begins / 2, begins} {
			inBubble(t, o, func(t *testing.T, s *Store) {
				scratch := new(transaction)
				s.scratch.New = func() any { return scratch }
				var charges []store.Charge
				for i := range begins {
					charges = append(charges, held(algorithms.HoldBegin, "key", algorithms.TokenBucket, 2*begins, i%names, 1))
				}
				decisions := takeHeld(t, s, charges...)
				want := uint64(2*begins - names) // each name takes its hit once
				if name == "no_room" {
					want = 2*begins - 1 // no begin is remembered, so that the last one alone takes its hit
				}
				if got := decisions[begins-1].Remaining; got != want {
					t.Errorf("%s, %d names: %d hits are left; want %d", name, names, got, want)
				}
				if scratch.passed > 4*begins {
					t.Errorf("%s, %d names: %d begins passed %d others; want a few each", name, names, begins, scratch.passed)
				}
			})
		}
	}
}
