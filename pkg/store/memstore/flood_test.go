package memstore

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// flood takes hits of n keys, each seen once, under the limits in turns.
func flood(t testing.TB, s *Store, n int, hits int64, limits ...algorithms.Limit) {
	t.Helper()
	key := append(make([]byte, 8), "flood"...)
	charges := []store.Charge{{Key: key, Hits: hits}}
	decisions := make([]algorithms.Decision, 1)
	for i := range n {
		binary.LittleEndian.PutUint64(key, uint64(i))
		charges[0].Limit = limits[i%len(limits)]
		if _, err := store.Take(t.Context(), s, charges, decisions); err != nil {
			t.Fatal(err)
		}
	}
}

// Fixed windows of one period tie: equal use, and idle at the same instant.
func TestAFloodOfEqualKeysSpreadsOverTheShards(t *testing.T) {
	race.Without(t)
	for _, c := range []struct {
		name    string
		maxKeys int
		limits  int // different ones
	}{
		{"one limit", race.Scale(40_000), 1},
		{"limits of their own", race.Scale(40_000), 30_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, Options{MaxKeys: c.maxKeys}, func(t *testing.T, s *Store) {
				limits := make([]algorithms.Limit, c.limits)
				for i := range limits {
					limits[i] = algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: uint32(100 + i), Period: time.Hour}
				}
				flood(t, s, 11*c.maxKeys, 1, limits...)
				fullest, empty, mean := 0, 0, c.maxKeys/len(s.shards)
				for i := range s.shards {
					n := int(s.shards[i].table.count)
					fullest = max(fullest, n)
					if n == 0 {
						empty++
					}
				}
				t.Logf("%d shards: %d empty, the fullest has %.2f of the mean", len(s.shards), empty, float64(fullest)/float64(mean))
				if 10*fullest > 13*mean {
					t.Errorf("the fullest of %d shards has %d keys; want at most 1.3 of the mean, %d", len(s.shards), fullest, mean)
				}
			})
		})
	}
}

// A client that sends 7 hits at once is denied with up to 6 hits left.
func TestAKeyDeniedForItsHitsOutlivesAFlood(t *testing.T) {
	race.Without(t)
	const keys = 50
	for _, a := range algorithms.RateAlgorithms() {
		for _, weight := range []int64{1, 7, 100} {
			t.Run(fmt.Sprint(a, " weight ", weight), func(t *testing.T) {
				inBubble(t, Options{MaxKeys: 1000, SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
					l := algorithms.Limit{Algorithm: a, Requests: 100, Period: time.Hour}
					for i := range keys {
						for take(t, s, fmt.Sprint("denied ", i), l, weight).Allowed {
						}
					}
					freed := 0
					for round := range 3 {
						flood(t, s, 2000, 1, l)
						for i := range keys {
							if take(t, s, fmt.Sprint("denied ", i), l, weight).Allowed {
								freed++
							}
						}
						if freed > 0 {
							t.Fatalf("round %d: the flood freed %d of %d denied keys; want none", round, freed, keys)
						}
					}
				})
			})
		}
	}
}

func TestAlmostSpentKeysOutliveAFloodOfKeysWithOneHit(t *testing.T) {
	race.Without(t)
	for _, a := range algorithms.RateAlgorithms() {
		for _, spent := range []int{100, 500, 900} {
			t.Run(fmt.Sprint(a, " ", spent, " of 1000"), func(t *testing.T) {
				inBubble(t, Options{MaxKeys: 1000 * placesOfNew(a), SweepInterval: 1000 * time.Hour}, func(t *testing.T, s *Store) {
					l := algorithms.Limit{Algorithm: a, Requests: 100, Period: time.Hour}
					for i := range spent {
						take(t, s, fmt.Sprint("spent ", i), l, 99)
					}
					time.Sleep(time.Second) // the keys of the flood are idle later
					flood(t, s, 10_000, 1, l)
					gone := 0
					for i := range spent {
						if take(t, s, fmt.Sprint("spent ", i), l, 0).Remaining > 90 {
							gone++
						}
					}
					t.Logf("%d gone", gone)
					if gone > spent/50 {
						t.Errorf("the flood washed out %d of %d keys at 99 of 100; want at most 1 in 50", gone, spent)
					}
				})
			})
		}
	}
}

// A client that chooses models makes as many keys that learn as it likes, and each is kept for 30
// days.
func TestAFloodOfKeysThatLearnDropsNoCounts(t *testing.T) {
	inBubble(t, Options{MaxKeys: 10_000}, func(t *testing.T, s *Store) {
		limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 100, Period: time.Hour}
		decisions := make([]algorithms.Decision, 1)
		used := func(hits int64) (lost int) {
			for i := range 1000 {
				charges := []store.Charge{{Key: fmt.Append(nil, "user ", i), Limit: limit, Hits: hits}}
				if _, err := store.Take(t.Context(), s, charges, decisions); err != nil {
					t.Fatal(err)
				}
				if decisions[0].Remaining == 100 {
					lost++
				}
			}
			return lost
		}
		used(1)
		flood(t, s, 50_000, 500, algorithms.Learn(950))
		if lost := used(0); lost > 0 {
			t.Errorf("the flood dropped %d of 1000 counts", lost)
		}
		time.Sleep(2 * time.Hour)
		used(1)
		if lost := used(0); lost > 0 {
			t.Errorf("beside the keys that learn %d of 1000 new counts were lost", lost)
		}
	})
}
