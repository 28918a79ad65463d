package top

import (
	"math/bits"
	"math/rand/v2"
)

// exactHits is the hits of a key in a slice up to which each is counted.
const exactHits = 1 << 18

// Random makes random numbers by Knuth's linear congruential generator. Clients cannot foresee the
// first, and see no other. The zero value is ready. One goroutine at a time may use a Random.
type Random uint64

func (r *Random) draw() uint32 {
	if *r == 0 {
		*r = Random(rand.Uint64() | 1)
	}
	*r = *r*6364136223846793005 + 1442695040888963407
	return uint32(*r >> 32)
}

// sample returns the number that one hit adds to a count: 1 up to exactHits. After that it is 0 or
// a power of two, in the mean 1. The standard error of the count is less than 1/512 of the count.
// Such counters are by Morris, "Counting Large Numbers of Events in Small Registers"
// (Communications of the ACM 21, 1978).
func (r *Random) sample(count uint64) uint64 {
	weight := uint64(1) << bits.Len64(count/exactHits)
	if weight > 1 && uint64(r.draw())&(weight-1) != 0 {
		return 0
	}
	return weight
}

// wins reports whether hits of a weight win against a score: with the probability weight / (score +
// weight).
func (r *Random) wins(weight, score uint64) bool {
	high, _ := bits.Mul64(uint64(r.draw())<<32, score+weight)
	return high < weight
}
