package memstore

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
)

// TestLimitsOfSlotsSurviveShrinking compares the limits of slots that hold, release and are
// renumbered with a Go slice.
func TestLimitsOfSlotsSurviveShrinking(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var l limits
		var numbers []uint16 // of slots
		var want []algorithms.Limit
		for range rapid.IntRange(0, 300).Draw(rt, "operations") {
			switch op := rapid.IntRange(0, 9).Draw(rt, "operation"); {
			case op < 6 || len(want) == 0:
				limit := algorithms.Limit{Requests: rapid.Uint32Range(0, 200).Draw(rt, "requests")}
				numbers, want = append(numbers, l.hold(limit)), append(want, limit)
			case op < 9:
				for range min(len(want), 20) {
					i := rapid.IntRange(0, len(want)-1).Draw(rt, "slot")
					l.release(numbers[i])
					last := len(want) - 1
					numbers[i], want[i] = numbers[last], want[last]
					numbers, want = numbers[:last], want[:last]
				}
			default:
				if renumbered := l.shrink(); renumbered != nil {
					for i := range numbers {
						numbers[i] = renumbered[numbers[i]]
					}
				} else if len(l.known) > minLimits && len(l.known) > 2*len(l.numbers)+1 {
					rt.Fatalf("%d numbers are kept for %d limits", len(l.known), len(l.numbers))
				}
			}
			held := make(map[algorithms.Limit]int)
			for i, limit := range want {
				if got := *l.of(numbers[i]); got != limit {
					rt.Fatalf("slot %d has the limit %+v; want %+v", i, got, limit)
				}
				held[limit]++
			}
			for limit, n := range held {
				if got := l.known[l.numbers[limit]].slots; got != n {
					rt.Fatalf("%+v is held by %d slots; want %d", limit, got, n)
				}
			}
			if len(l.numbers) != len(held) {
				rt.Fatalf("%d limits have numbers; want %d", len(l.numbers), len(held))
			}
		}
	})
}

// A request may bring a limit of its own, and so a number for each key. The others stay the same.
func TestASweepGivesBackTheRoomOfLimitsThatAreGone(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine makes the keys, and the race detector makes that slow")
	}
	inBubble(t, Options{}, func(t *testing.T, s *Store) {
		const keys, staying = 100_000, 1000
		year := func(i int) algorithms.Limit {
			return algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: uint32(i + 10), Period: 365 * 24 * time.Hour}
		}
		for _, algorithm := range []algorithms.Algorithm{algorithms.FixedWindow, algorithms.SlidingWindowLog} {
			before := heapBytes()
			for i := range keys {
				take(t, s, fmt.Sprint(algorithm, i), algorithms.Limit{Algorithm: algorithm, Requests: uint32(i + 1), Period: time.Second}, 1)
			}
			for i := range staying { // among the last, so that they cannot keep their numbers
				take(t, s, fmt.Sprint("stays", i), year(i), 1)
			}
			time.Sleep(2 * DefaultSweepInterval)
			if grown := heapBytes() - before; grown > 1<<20 {
				t.Errorf("%v: %d keys, each of a limit of its own, left %d bytes; want at most 1 MiB", algorithm, keys, grown)
			}
		}
		for i := range staying {
			d := take(t, s, fmt.Sprint("stays", i), year(i), 1)
			if want := uint64(7 + i); !d.Allowed || d.Remaining != want {
				t.Fatalf("key %d: got %+v, want %d remaining", i, d, want)
			}
		}
	})
}
