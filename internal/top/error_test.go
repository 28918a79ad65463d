package top

import (
	"math/rand/v2"
	"testing"

	"github.com/weirproxy/weir/internal/testing/race"
)

// TestAtMostOneInTwentyKeysMissesMoreHitsThanItSays has more keys than places, of one group and of
// two: a key may be tracked, lose its place, and come back.
func TestAtMostOneInTwentyKeysMissesMoreHitsThanItSays(t *testing.T) {
	race.Without(t)
	const places, busyKeys, quietKeys, busyHits, slices = 104, 1000, 300, 5000, 168
	for _, test := range []struct {
		name   string
		quiet  int // hits in a slice; 0: one group
		denied bool
	}{{"one group", 0, false}, {"a quiet group", 50, false}, {"a quiet group that is denied", 500, true}} {
		var groups [2]Group
		var totals [2]uint64
		random, traffic, s := Random(1), rand.New(rand.NewPCG(1, 3)), NewTracker(places, nil)
		busy, quiet := newZipf(busyKeys, 1), newZipf(quietKeys, 2)
		truth := make(map[uint64]*[slices]cell)
		hit := func(group, n int, denied bool, slice int) {
			h := Hit{Hash: hashOf(n), Hits: 1, Denied: denied}
			if test.quiet > 0 {
				h.Group = &groups[group]
			}
			if truth[h.Hash] == nil {
				truth[h.Hash] = new([slices]cell)
			}
			add := cell{hits: 1}
			if denied {
				add.denied = 1
			}
			truth[h.Hash][slice].add(add)
			totals[group]++
			s.hit(h, &random, n)
		}
		var listed, wrong [2]int // by window
		for slice := range slices {
			for range busyHits + test.quiet {
				if traffic.IntN(busyHits+test.quiet) < test.quiet {
					hit(1, busyKeys+quiet.draw(), test.denied, slice)
				} else {
					hit(0, busy.draw(), false, slice)
				}
			}
			for _, w := range []Window{Minute, TenMinutes} {
				for _, k := range s.Keys(w) {
					var want cell
					for n := max(0, slice-int(w.slices(s.slice.Load()-1))); n <= slice; n++ {
						want.add(truth[k.Hash][n])
					}
					if k.Hits > want.hits || k.Denied > want.denied {
						t.Fatalf("%s: got %d hits, %d denied; want at most %d and %d", test.name, k.Hits, k.Denied, want.hits, want.denied)
					}
					if listed[w]++; k.Hits+k.HitsError < want.hits || k.Denied+k.DeniedError < want.denied {
						wrong[w]++
					}
				}
			}
			Balance([]*Group{&groups[0], &groups[1]}, totals[:])
			s.Rotate()
		}
		for w, name := range []string{"one minute", "ten minutes"} {
			part := float64(wrong[w]) / float64(listed[w])
			t.Logf("%s, %s: of %d keys a part of %.4f misses more hits", test.name, name, listed[w], part)
			if part > 0.05 {
				t.Errorf("%s, %s: of %d keys a part of %.3f misses more hits than the error; want at most 0.05", test.name, name, listed[w], part)
			}
		}
	}
}
