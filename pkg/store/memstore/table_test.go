package memstore

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// TestTableIsAMap compares random operations on a table with a Go map. Digests are drawn from few
// regions, so that runs grow long, meet, and reach the tail.
func TestTableIsAMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var tb table
		want := map[digest]uint16{}
		digests := rapid.Custom(func(rt *rapid.T) digest {
			region := rapid.SampledFrom([]uint64{1, 1 << 62, ^uint64(0) - 5}).Draw(rt, "region")
			hi, lo := rapid.Uint64Range(0, 100).Draw(rt, "hi"), rapid.Uint64Range(0, 2).Draw(rt, "lo")
			if region > 1<<63 {
				hi %= 6 // more of one home at the very end would never fit the tail
			}
			return digest{region + hi, lo << digestBits}
		})
		for range rapid.IntRange(0, 400).Draw(rt, "operations") {
			d := digests.Draw(rt, "digest")
			place, found := tb.find(d)
			if _, ok := want[d]; ok != found {
				rt.Fatalf("find(%x) = %v; want %v", d, found, ok)
			}
			switch op := rapid.IntRange(0, 9).Draw(rt, "operation"); {
			case op == 0:
				tb.sweep(func(s *slot) bool {
					if s.limit()%3 == 0 {
						delete(want, s.key())
						return true
					}
					return false
				})
			case op == 1:
				tb.resize(tb.count + tb.count/4)
			case found && op < 5:
				tb.remove(place)
				delete(want, d)
			case !found:
				number := uint16(len(want))
				if at := tb.insert(place, d, algorithms.State{}, number, deniedHits(number)); tb.slots[at].key() != d {
					rt.Fatalf("insert(%x) returned place %d of %x", d, at, tb.slots[at].key())
				}
				want[d] = number
			}
			check(rt, &tb, want)
		}
	})
}

// check fails unless the table holds the wanted keys, ordered, each at its home or after without a
// gap.
func check(rt *rapid.T, tb *table, want map[digest]uint16) {
	if int(tb.count) != len(want) {
		rt.Fatalf("count = %d; want %d", tb.count, len(want))
	}
	seen := 0
	var last digest
	for i := range tb.slots {
		s := &tb.slots[i]
		if s.empty() {
			continue
		}
		seen++
		if number, ok := want[s.key()]; !ok || number != s.limit() || deniedHits(number) != s.denied() {
			rt.Fatalf("slot %d is %x with limit %d; want %d, %v", i, s.key(), s.limit(), number, ok)
		}
		if s.hi < last.hi || s.hi == last.hi && s.key().lo <= last.lo {
			rt.Fatalf("slot %d, %x, stands after %x", i, s.key(), last)
		}
		last = s.key()
		home := tb.home(s.hi)
		if home > i {
			rt.Fatalf("slot %d stands before its home %d", i, home)
		}
		for gap := home; gap < i; gap++ {
			if tb.slots[gap].empty() {
				rt.Fatalf("slot %d of home %d has a gap at %d before it", i, home, gap)
			}
		}
	}
	if seen != len(want) {
		rt.Fatalf("%d slots are in use; want %d", seen, len(want))
	}
}

func TestLimitsNumbersAreReused(t *testing.T) {
	var l limits
	for round := range 1000 {
		limit := algorithms.Limit{Requests: uint32(round)}
		first, second := l.hold(limit), l.hold(limit)
		if first != second || *l.of(first) != limit {
			t.Fatalf("round %d: numbers %d and %d of %+v", round, first, second, *l.of(first))
		}
		l.release(first)
		l.release(second)
	}
	if len(l.known) != 1 || len(l.numbers) != 0 {
		t.Errorf("after all are released: %d known, %d numbered; want 1 to reuse, none", len(l.known), len(l.numbers))
	}
}

func TestTakeDoesNotAllocate(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, limit := range benchLimits() {
		charges := []store.Charge{{Key: []byte("a"), Limit: limit, Hits: 1}, {Key: []byte("b"), Limit: limit, Hits: -1, Rule: 1}}
		decisions := make([]algorithms.Decision, 2)
		for n := 1; n <= 2; n++ {
			if n == 2 && (race.Enabled || limit.Algorithm == algorithms.SlidingWindowLog) {
				continue // a refund of an unused key makes a log to look at
			}
			got := testing.AllocsPerRun(1000, func() { _, _ = store.Take(t.Context(), s, charges[:n], decisions) })
			if got != 0 {
				t.Errorf("%v, %d charges: %v allocations; want none", limit.Algorithm, n, got)
			}
		}
	}
}

func TestDeps(t *testing.T) {
	deptest.Check(t, deptest.Rules{
		Own: []string{"pkg/algorithms", "pkg/store"},
		Std: []string{
			"bufio", "cmp", "container/heap", "context", "crypto/rand", "encoding/binary", "errors", "fmt", "hash/crc32", "hash/maphash", "io", "log/slog",
			"math", "math/bits", "runtime", "slices", "sync", "sync/atomic", "time",
		},
		Third: []string{"github.com/dchest/siphash"},
	})
}

// A table that loses its keys gives their memory back in few steps, though long runs may need more
// homes than the table asks for.
func TestATableThatEmptiesMovesSeldom(t *testing.T) {
	for seed := range uint64(20) {
		next := random(seed)
		var tb table
		var keys []digest
		for range 4096 {
			d := digest{max(next(), 1), next() &^ (1<<digestBits - 1)}
			place, _ := tb.find(d)
			tb.insert(place, d, algorithms.State{}, 0, 0)
			keys = append(keys, d)
		}
		moves, size := 0, len(tb.slots)
		for _, d := range keys {
			place, found := tb.find(d)
			if !found {
				t.Fatal("a key is gone")
			}
			tb.remove(place)
			if len(tb.slots) != size {
				moves, size = moves+1, len(tb.slots)
			}
			if n := int(tb.count); n > 64 && size > 2*n+tail {
				t.Fatalf("%d keys are left in %d slots", n, size)
			}
		}
		if moves > 40 {
			t.Errorf("a table moved %d times until it was empty; want at most 40", moves)
		}
	}
}
