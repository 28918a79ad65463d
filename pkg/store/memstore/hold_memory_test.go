package memstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// The bound of holders bounds their bytes: on one key, and on many, and of rate limits.
func TestTheBoundHoldsForTheMemoryOfHolders(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes memory of its own")
	}
	const most = 200_000
	for _, a := range []algorithms.Algorithm{algorithms.Concurrency, algorithms.TokenBucket} {
		for _, keys := range []int{1, 1000} {
			inBubble(t, Options{SweepInterval: time.Second}, func(t *testing.T, s *Store) {
				c := []store.Charge{held(algorithms.HoldBegin, "", a, 1<<31, 0, 1)}
				d := make([]algorithms.Decision, 1)
				names := make([][]byte, keys)
				for i := range names {
					names[i] = fmt.Append(nil, "key ", i)
					c[0].Key, c[0].Hold.Holder = names[i], holderOf(-1)
					s.TakeNow(c, d)
				}
				before, held := heapBytes(), s.Stats().HoldersHeld
				for i := range most {
					c[0].Key, c[0].Hold.Holder = names[i%keys], holderOf(i)
					s.TakeNow(c, d)
				}
				grown, count := heapBytes()-before, s.Stats().HoldersHeld-held
				t.Logf("%v, %d keys: %.1f bytes a holder", a, keys, float64(grown)/float64(count))
				if count != most || grown > 64*most {
					t.Errorf("%v, %d keys: %d holders take %d bytes; want at most 64 each", a, keys, count, grown)
				}
				time.Sleep(time.Minute + 2*time.Second) // all run out
				if left := heapBytes() - before; left > grown/10 || s.Stats().HoldersHeld != 0 {
					t.Errorf("%v, %d keys: %d bytes are left of %d after all have run out: %+v", a, keys, left, grown, s.Stats())
				}
			})
		}
	}
}

// A warm store needs no memory for holders that come and go: on one key, and in a transaction.
func TestABeginAndAnEndDoNotAllocate(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector makes sync.Pool drop values")
	}
	for _, a := range algorithms.Algorithms() {
		s, err := New(Options{SweepInterval: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		h := newHolding(s, heldLimit(a), 100)
		other := store.Charge{Key: []byte("other"), Limit: benchLimitsOne(), Hits: 1, Rule: 1}
		both := [2][]store.Charge{{h.end[0], other}, {h.begin[0], other}}
		decisions := make([]algorithms.Decision, 2)
		turn := func() {
			for range 100 {
				h.next()
			}
			for i := range both {
				both[i][0].Hold.Holder = h.holders[0]
				s.TakeNow(both[i], decisions)
			}
		}
		turn()
		if got := testing.AllocsPerRun(20, turn); got != 0 && a != algorithms.SlidingWindowLog { // a log grows with its hits
			t.Errorf("%v: a begin and an end allocate: %v for 101 of each", a, got)
		}
		s.Close()
	}
}
