package algorithms

import (
	"math"
	"math/big"
	"testing"
)

// TestWideNumbersEqualBigOnes checks the 128-bit arithmetic by itself, beyond the needs of the
// algorithms.
func TestWideNumbersEqualBigOnes(t *testing.T) {
	edges := []uint64{0, 1, 2, 3, math.MaxUint32, 1 << 32, math.MaxInt64, 1 << 63, math.MaxUint64 - 1, math.MaxUint64}
	var all []wide
	for _, hi := range edges {
		for _, lo := range edges {
			all = append(all, wide{hi, lo})
		}
	}
	largest := wide{math.MaxUint64, math.MaxUint64}
	for _, x := range all {
		if got, want := product(x.hi, x.lo).big(), new(big.Int).Mul(word(x.hi), word(x.lo)); got.Cmp(want) != 0 {
			t.Errorf("product(%d, %d) = %v; want %v", x.hi, x.lo, got, want)
		}
		for _, y := range all {
			sum := new(big.Int).Add(x.big(), y.big())
			if got := x.plus(y).big(); got.Cmp(smallerInt(sum, largest.big())) != 0 {
				t.Errorf("%v + %v = %v; want %v", x, y, got, sum)
			}
			difference := new(big.Int).Sub(x.big(), y.big())
			if got := x.minus(y).big(); difference.Sign() >= 0 && got.Cmp(difference) != 0 || difference.Sign() < 0 && got.Sign() != 0 {
				t.Errorf("%v - %v = %v; want %v or 0", x, y, got, difference)
			}
			if got, want := x.atMost(y), x.big().Cmp(y.big()) <= 0; got != want {
				t.Errorf("%v <= %v is %v; want %v", x, y, got, want)
			}
		}
		for _, d := range edges[1:] {
			floor, rest := new(big.Int).DivMod(x.big(), word(d), new(big.Int))
			ceil := new(big.Int).Set(floor)
			if rest.Sign() > 0 {
				ceil.Add(ceil, big.NewInt(1))
			}
			most := word(math.MaxUint64)
			if got := word(x.floorDiv(d)); got.Cmp(smallerInt(floor, most)) != 0 {
				t.Errorf("%v / %d rounded down = %v; want %v", x, d, got, floor)
			}
			if got := word(x.ceilDiv(d)); got.Cmp(smallerInt(ceil, most)) != 0 {
				t.Errorf("%v / %d rounded up = %v; want %v", x, d, got, ceil)
			}
		}
	}
}

// big returns w as a number of any size.
func (w wide) big() *big.Int {
	n := word(w.hi)
	return n.Lsh(n, 64).Or(n, word(w.lo))
}

func word(x uint64) *big.Int { return new(big.Int).SetUint64(x) }

func smallerInt(x, y *big.Int) *big.Int {
	if x.Cmp(y) < 0 {
		return x
	}
	return y
}
