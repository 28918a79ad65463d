package top

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/weirproxy/weir/internal/testing/deptest"
	"github.com/weirproxy/weir/internal/testing/race"
)

// zipf draws from n numbers, of which number i comes with a probability in proportion to 1/(i+1),
// by Walker's alias method.
type zipf struct {
	random *rand.Rand
	odds   []float64
	alias  []int
}

func newZipf(n int, seed uint64) *zipf {
	z := &zipf{random: rand.New(rand.NewPCG(seed, 1)), odds: make([]float64, n), alias: make([]int, n)}
	sum := 0.0
	for i := range n {
		sum += 1 / float64(i+1)
	}
	var small, large []int
	for i := range n {
		if z.odds[i] = float64(n) / float64(i+1) / sum; z.odds[i] < 1 {
			small = append(small, i)
		} else {
			large = append(large, i)
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		z.alias[s], small = l, small[:len(small)-1]
		if z.odds[l] += z.odds[s] - 1; z.odds[l] < 1 {
			large, small = large[:len(large)-1], append(small, l)
		}
	}
	return z
}

func (z *zipf) draw() int {
	i := z.random.IntN(len(z.odds))
	if z.random.Float64() < z.odds[i] {
		return i
	}
	return z.alias[i]
}

// hashOf spreads a number over all 64 bits, as SplitMix64 does.
func hashOf(n int) uint64 {
	x := uint64(n+1) * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return max(x^x>>31, 1)
}

// textOf is a text of usual length for a number.
func textOf(n int) []byte {
	return binary.BigEndian.AppendUint64(fmt.Appendf(nil, "edge tenant user tenant=tenant-%04d user=user-%06d token_bucket/1m", n/1000, n), uint64(n))
}

func numberOf(text []byte) int { return int(binary.BigEndian.Uint64(text[len(text)-8:])) }

// hit counts a hit as the limiter does.
func (s *Sketch) hit(h Hit, random *Random, n int) {
	if !s.Count(h, random) && s.Wants(h, random) {
		s.Admit(h, random, textOf(n))
	}
}

// TestTheTrueTop20OfAMillionKeysAreCountedWithinOnePercent begins with an empty sketch, and with
// one that is full of keys that come no more.
func TestTheTrueTop20OfAMillionKeysAreCountedWithinOnePercent(t *testing.T) {
	race.Without(t)
	const keys, hits = 1_000_000, 2_000_000
	for _, test := range []struct {
		name     string
		window   Window
		perSlice int // the window sees all hits
		full     bool
	}{{"a minute", Minute, hits / 11, false}, {"ten minutes, full", TenMinutes, hits / 109, true}} {
		random := Random(1)
		z, counts := newZipf(keys, 1), make([]uint64, keys)
		s := NewTracker(1000, nil)
		if test.full {
			for n := range 5000 {
				s.hit(Hit{Hash: hashOf(-n - 2), Hits: 10}, &random, -n-2)
			}
		}
		for n := range hits {
			if n%test.perSlice == test.perSlice-1 {
				s.Rotate()
			}
			i := z.draw()
			counts[i]++
			s.hit(Hit{Hash: hashOf(i), Hits: 1, Capacity: 100}, &random, i)
		}
		check20(t, test.name, s.Keys(test.window), counts)
	}
}

// check20 compares the first 20 keys with the true counts.
func check20(t *testing.T, name string, got []Key, counts []uint64) {
	t.Helper()
	slices.SortFunc(got, func(a, b Key) int { return int(b.Hits) - int(a.Hits) })
	order := make([]int, 200) // the others are far behind
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return int(counts[b]) - int(counts[a]) })
	found := make(map[int]uint64)
	for _, k := range got[:20] {
		found[numberOf(k.Text)] = k.Hits
	}
	worst := 0.0
	for _, i := range order[:20] {
		seen, ok := found[i]
		if !ok {
			t.Errorf("%s: key %d with %d hits is not in the top 20", name, i, counts[i])
			continue
		}
		off := float64(counts[i]) - float64(seen)
		if worst = max(worst, off/float64(counts[i])); off < 0 || off > 0.01*float64(counts[i]) {
			t.Errorf("%s: key %d has %d hits; want %d, at most one percent less", name, i, seen, counts[i])
		}
	}
	t.Logf("%s: %d keys are tracked; of the top 20 the worst count is %.3f %% too small", name, len(got), 100*worst)
}

func TestAThousandKeysTakeLessThanAMegabyte(t *testing.T) {
	var before, after runtime.MemStats
	random := Random(1)
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := NewTracker(1000, nil)
	for n := range 200_000 {
		s.hit(Hit{Hash: hashOf(n % 50_000), Hits: 1}, &random, n%50_000)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if got := int64(after.HeapAlloc) - int64(before.HeapAlloc); got > 1<<20 {
		t.Errorf("%d keys take %d bytes; want less than a MiB", s.Tracked(), got)
	} else {
		t.Logf("%d keys take %d bytes", s.Tracked(), got)
	}
	runtime.KeepAlive(s)
}

func TestDeps(t *testing.T) { deptest.Check(t, deptest.Rules{Own: []string{}, Third: []string{}}) }
