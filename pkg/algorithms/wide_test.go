package algorithms

import (
	"math"
	"math/big"
	"testing"
	"time"
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

// num is an exact rational number of any size, and immutable. The reference implementation counts
// hits, tokens and nanoseconds in nums, so that no number rounds or overflows. Whole numbers have a
// form of their own, for speed alone.
type num struct {
	integer *big.Int
	ratio   *big.Rat // where integer is nil
}

// of returns x as a num.
func of[T ~int | ~int64 | ~uint32 | ~uint64](x T) num { return num{integer: big.NewInt(int64(x))} }

func (x num) rat() *big.Rat {
	if x.integer != nil {
		return new(big.Rat).SetInt(x.integer)
	}
	return x.ratio
}

func (x num) String() string { return x.rat().RatString() }

func (x num) plus(y num) num {
	if x.integer != nil && y.integer != nil {
		return num{integer: new(big.Int).Add(x.integer, y.integer)}
	}
	return num{ratio: new(big.Rat).Add(x.rat(), y.rat())}
}

func (x num) minus(y num) num {
	if x.integer != nil && y.integer != nil {
		return num{integer: new(big.Int).Sub(x.integer, y.integer)}
	}
	return num{ratio: new(big.Rat).Sub(x.rat(), y.rat())}
}

func (x num) times(y num) num {
	if x.integer != nil && y.integer != nil {
		return num{integer: new(big.Int).Mul(x.integer, y.integer)}
	}
	return num{ratio: new(big.Rat).Mul(x.rat(), y.rat())}
}

func (x num) over(y num) num { return num{ratio: new(big.Rat).Quo(x.rat(), y.rat())} }

// floor returns the largest whole number that is at most x.
func (x num) floor() num {
	if x.integer != nil {
		return x
	}
	return num{integer: new(big.Int).Div(x.ratio.Num(), x.ratio.Denom())} // Euclidean: a denominator is positive, so down.
}

// ceil returns the smallest whole number that is at least x.
func (x num) ceil() num { return of(0).minus(of(0).minus(x).floor()) }

func (x num) compare(y num) int {
	if x.integer != nil && y.integer != nil {
		return x.integer.Cmp(y.integer)
	}
	return x.rat().Cmp(y.rat())
}

func (x num) less(y num) bool   { return x.compare(y) < 0 }
func (x num) atMost(y num) bool { return x.compare(y) <= 0 }
func (x num) is(y num) bool     { return x.compare(y) == 0 }

// smaller returns the smaller of x and y.
func smaller(x, y num) num {
	if y.less(x) {
		return y
	}
	return x
}

// larger returns the larger of x and y.
func larger(x, y num) num {
	if x.less(y) {
		return y
	}
	return x
}

// duration returns x nanoseconds rounded up, between 0 and the largest duration.
func (x num) duration() time.Duration {
	return time.Duration(larger(of(0), smaller(x.ceil(), of(math.MaxInt64))).integer.Int64())
}

// whole returns x hits rounded down, at least 0.
func (x num) whole() uint64 { return larger(of(0), x.floor()).integer.Uint64() }

// firstWait returns the shortest wait of at least one nanosecond after now for which holds is true,
// by bisection. holds must be true once most has passed, and stay true once it is.
func firstWait(now num, most time.Duration, holds func(at num) bool) time.Duration {
	low, high := int64(1), int64(most)
	for low < high {
		middle := low + (high-low)/2
		if holds(now.plus(of(middle))) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return time.Duration(low)
}
