package memstore

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// A store full of holders of one key, one of which runs out at each millisecond, has room for a
// begin at little cost.
func TestABeginInAFloodLooksAtFewHolders(t *testing.T) {
	most := race.Scale(20_000)
	for _, requests := range []uint32{0, 1 << 30} { // all are denied, or all hold
		o := Options{MaxHolds: most, OnFull: Deny, SweepInterval: 1000 * time.Hour}
		inBubble(t, o, func(t *testing.T, s *Store) {
			holder, d := 0, make([]algorithms.Decision, 1)
			begin := func() {
				c := held(algorithms.HoldBegin, "key", algorithms.TokenBucket, requests, holder, 1)
				c.Hold.AtMost = time.Duration(most+1) * time.Millisecond / 2
				s.TakeNow([]store.Charge{c}, d)
				holder++
				time.Sleep(time.Millisecond / 2)
			}
			for range most {
				begin()
			}
			for range most {
				begin()
			}
			sh := s.shardOf(s.digest(new(held(algorithms.HoldBegin, "key", algorithms.TokenBucket, requests, 0, 1))))
			each := float64(sh.holders.seen) / float64(most)
			t.Logf("a begin looked at %.0f of %d holders", each, most)
			if each > 1000 {
				t.Errorf("a begin looked at %.0f of %d holders; want a bounded number each microsecond", each, most)
			}
			if err := s.checkHolders(); err != nil {
				t.Error(err)
			}
		})
	}
}
