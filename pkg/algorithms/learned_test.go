package algorithms

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// costs are sequences of true costs by name: the cost of request i of 5000.
func costs() map[string]func(r *rand.Rand, i int) float64 {
	lognormal := func(median, sigma float64, r *rand.Rand) float64 { return median * math.Exp(sigma*r.NormFloat64()) }
	two := func(r *rand.Rand, few float64) float64 {
		if r.Float64() < few {
			return 5000 + 1000*r.Float64()
		}
		return 10 + 5*r.Float64()
	}
	return map[string]func(r *rand.Rand, i int) float64{
		"lognormal, narrow": func(r *rand.Rand, _ int) float64 { return lognormal(500, 0.5, r) },
		"lognormal":         func(r *rand.Rand, _ int) float64 { return lognormal(500, 1, r) },
		"lognormal, wide":   func(r *rand.Rand, _ int) float64 { return lognormal(500, 2, r) },
		"uniform":           func(r *rand.Rand, _ int) float64 { return 2000 * r.Float64() },
		"uniform to 6":      func(r *rand.Rand, _ int) float64 { return 6 * r.Float64() },
		"two kinds, 10 %":   func(r *rand.Rand, _ int) float64 { return two(r, 0.10) },
		"two kinds, 5 %":    func(r *rand.Rand, _ int) float64 { return two(r, 0.05) },
		"ten times as much": func(r *rand.Rand, i int) float64 { return lognormal(100*math.Pow(10, float64(i)/5000), 0.7, r) },
		"a tenth":           func(r *rand.Rand, i int) float64 { return lognormal(1000*math.Pow(10, -float64(i)/5000), 0.7, r) },
		"a jump to ten times": func(r *rand.Rand, i int) float64 {
			return lognormal(map[bool]float64{false: 100, true: 1000}[i > 2500], 0.7, r)
		},
		"waves":                func(r *rand.Rand, i int) float64 { return lognormal(1000*math.Exp(math.Sin(float64(i)/200)), 0.5, r) },
		"money, in millionths": func(r *rand.Rand, _ int) float64 { return lognormal(40_000, 1.2, r) },
		"always the same":      func(*rand.Rand, int) float64 { return 700 },
	}
}

func TestALearnedQuantileCoversItsPartOfTheNext5000Costs(t *testing.T) {
	const next = 5000
	for name, cost := range costs() {
		for _, p := range []uint32{500, 900, 950, 990} {
			least, most, estimates, truth := 1.0, 0.0, 0.0, 0.0
			for seed := range uint64(100) {
				r, l, s := newRand(seed, uint64(p)), Learn(p), State{}
				draw := func(i int) int64 { return 1 + int64(min(cost(r, i), MaxHits-1)) }
				for range LearnedFrom {
					s, _ = Take(l, s, 0, draw(0), false)
				}
				covered := 0
				for i := range next {
					_, d := Take(l, s, 0, 0, false)
					x := draw(i)
					if x <= int64(d.Remaining) {
						covered++
					}
					estimates, truth = estimates+float64(d.Remaining), truth+float64(x)
					s, _ = Take(l, s, 0, x, false)
				}
				part := float64(covered) / next
				least, most = min(least, part), max(most, part)
			}
			if p == 950 {
				t.Logf("%s: covers %.2f to %.2f %%, mean estimate / true cost %.2f", name, 100*least, 100*most, estimates/truth)
			}
			if want := float64(p) / 1000; least < want-0.02 || most > want+0.02 {
				t.Errorf("%s, quantile %d: covers %.4f to %.4f", name, p, least, most)
			}
		}
	}
}

// covers fails the test unless the costs are covered as the comment of Learned says.
func covers(f failer, p uint32, all []int64) {
	l, s := Learn(p), State{}
	var first uint64
	misses, n, bottom := 0, 0, false
	for _, x := range all {
		_, d := Take(l, s, 0, 0, false)
		if d.Remaining > 0 {
			if n == 0 {
				first = s.a
			}
			n++
			if x > int64(d.Remaining) {
				misses++
			}
		}
		s, _ = Take(l, s, 0, x, false)
		bottom = bottom || s.a == learnedUnit || s.a == MaxHits*learnedUnit
	}
	if n == 0 {
		return
	}
	got := float64(n-misses) / float64(n)
	want := float64(p) / 1000
	change := math.Abs(math.Log(float64(s.a) / float64(first)))
	slack := learnedSteps*change/float64(n) + 0.0025
	if got < want-slack && !bottom || got > want+slack && !bottom {
		f.Fatalf("quantile %d covers %.4f of %d costs while its logarithm changed by %.3f; want within %.4f", p, got, n, change, slack)
	}
}

func TestAnyCostsAreCovered(t *testing.T) {
	for seed := range uint64(2000) {
		r := newRand(seed, 3)
		all := make([]int64, 1+r.IntN(3000))
		spread := 1 + r.IntN(31)
		for i := range all {
			if r.IntN(100) == 0 {
				spread = 1 + r.IntN(31)
			}
			all[i] = 1 + r.Int64N(1<<spread)
		}
		covers(seeded{t, seed}, uint32(MinQuantile+r.IntN(MaxQuantile-MinQuantile+1)), all)
	}
}

func FuzzLearned(f *testing.F) {
	f.Add(uint16(950), []byte("0123456789abcdefghijklmnopqrstuvwxyz"))
	f.Fuzz(func(t *testing.T, p uint16, data []byte) {
		var all []int64
		for _, b := range data {
			all = append(all, 1+int64(b%8)<<(b/8))
		}
		covers(t, MinQuantile+uint32(p)%(MaxQuantile-MinQuantile+1), all)
	})
}

func TestAQuantileIsToldOnceEnoughCostsAreLearned(t *testing.T) {
	l, s := Learn(950), State{}
	for i := range int64(LearnedFrom) {
		if _, d := Take(l, s, 0, 0, false); d.Remaining != 0 || !d.Allowed {
			t.Fatalf("after %d costs: got %+v", i, d)
		}
		var d Decision
		s, d = Take(l, s, 0, i+1, false)
		if want := LearnedLife / 30; d.ResetAfter != want && i+1 < LearnedFrom || !d.Allowed {
			t.Fatalf("after %d costs: got %+v", i+1, d)
		}
	}
	if _, d := Take(l, s, 0, 0, false); d.Remaining != LearnedFrom {
		t.Errorf("got %d, want the largest cost %d", d.Remaining, LearnedFrom)
	}
}

func TestProbesAndRefundsTeachNothing(t *testing.T) {
	l, s := Learn(950), State{}
	for range LearnedFrom {
		s, _ = Take(l, s, 0, 100, false)
	}
	for _, hits := range []int64{0, -1, -MaxHits} {
		if next, d := Take(l, s, Instant(time.Hour), hits, true); next != s || d.Remaining != 100 || !d.Allowed {
			t.Errorf("%d hits: got %+v, %+v", hits, next, d)
		}
	}
}

func TestAKeyForgetsWhatItHasLearned(t *testing.T) {
	l, s := Learn(950), State{}
	for range LearnedFrom {
		s, _ = Take(l, s, 5, 100, false)
	}
	end := Instant(5).Add(LearnedLife)
	if at := IdleAt(l, s); at != end {
		t.Errorf("idle at %d, want %d", at, end)
	}
	if _, d := Take(l, s, end-1, 0, false); d.Remaining != 100 || d.ResetAfter != 1 {
		t.Errorf("before: got %+v", d)
	}
	if _, d := Take(l, s, end, 0, false); d.Remaining != 0 || d.ResetAfter != 0 {
		t.Errorf("at the end: got %+v", d)
	}
	next, _ := Take(l, s, end, 7, false)
	if last, q, n := next.Parts(); last != end || q != 7*learnedUnit || n != 1 {
		t.Errorf("a cost at the end: got %v", next)
	}
}

func TestAChangedQuantileGoesOnFromWhatWasLearned(t *testing.T) {
	s := State{}
	for range LearnedFrom {
		s, _ = Take(Learn(950), s, 0, 100, false)
	}
	_, _, d := TakeAs(Learn(950), Learn(500), s, 0, 0, Refuse)
	if d.Remaining != 100 {
		t.Errorf("got %d, want 100", d.Remaining)
	}
}

func TestExtremeCostsStayInBounds(t *testing.T) {
	for _, p := range []uint32{MinQuantile, 950, MaxQuantile} {
		l, s := Learn(p), State{}
		var d Decision
		for _, x := range []int64{1, MaxHits, math.MaxInt64, 1} {
			for range 100_000 {
				if s, d = Take(l, s, 0, x, false); s.a < learnedUnit || s.a > MaxHits*learnedUnit || s.a >= 1<<53 {
					t.Fatalf("quantile %d: %v", p, s)
				}
			}
			if x == 1 && p == MinQuantile && d.Remaining != 1 {
				t.Errorf("quantile %d of costs of 1: got %d", p, d.Remaining)
			}
		}
	}
}

func TestALearnedStateFromOutsideIsClamped(t *testing.T) {
	l := Learn(950)
	for _, s := range []State{{last: 5, a: 1}, {last: 5, b: 1}, {last: math.MaxInt64, a: math.MaxUint64, b: math.MaxUint64}} {
		c := Clamp(l, s, 4)
		if c.last != 4 || c.a < learnedUnit || c.a > MaxHits*learnedUnit || c.b > LearnedFrom {
			t.Errorf("%v became %v", s, c)
		}
		record := AppendRecord(nil, l, c)
		if _, _, err := ParseRecord(string(record), l); err != nil {
			t.Error(err)
		}
	}
	if err := Learn(MaxQuantile + 1).Validate(); err == nil || fmt.Sprint(err) != "quantile: 1000 thousandths: must be from 500 to 999" {
		t.Errorf("got %v", err)
	}
}
