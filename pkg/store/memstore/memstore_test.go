package memstore

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
)

// inBubble runs a test on a fresh store whose clock stands still but for time.Sleep.
func inBubble(t *testing.T, o Options, test func(t *testing.T, s *Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		test(t, s)
	})
}

func TestMemstoreKeepsTheContract(t *testing.T) {
	for _, o := range []struct {
		name    string
		options Options
	}{
		{"default", Options{SweepInterval: time.Minute}},
		{"hardly_room", Options{MaxKeys: 560, SweepInterval: time.Minute}},
		{"sweeping_often", Options{MaxKeys: 640, SweepInterval: 5 * time.Second}},
	} {
		for _, c := range slices.Concat(storetest.Cases(), storetest.HoldCases(), storetest.CarryCases(), storetest.LearnedCases(), storetest.EscalationCases()) {
			t.Run(o.name+"/"+c.Name, func(t *testing.T) {
				inBubble(t, o.options, func(t *testing.T, s *Store) {
					c.Run(t, storetest.Env{Store: s, Sleep: time.Sleep, Now: s.now})
				})
			})
		}
	}
}
