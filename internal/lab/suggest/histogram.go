package suggest

import (
	"maps"
	"math/bits"
	"slices"
)

// histogram counts numbers of hits, up to 1/512 too large, and exactly below 1024.
type histogram struct {
	buckets map[uint32]bucket
	all     uint64 // numbers that were added
}

type bucket struct {
	count uint64 // of numbers
	sum   uint64 // of numbers
}

// mantissa is the bits of a number that its bucket keeps.
const mantissa = 10

func bucketOf(n uint64) uint32 {
	shift := max(bits.Len64(n)-mantissa, 0)
	return uint32(shift)<<mantissa | uint32(n>>shift)
}

// top returns the largest number of a bucket.
func top(bucket uint32) uint64 {
	shift := bucket >> mantissa
	return (uint64(bucket&(1<<mantissa-1))+1)<<shift - 1
}

func (h *histogram) add(n uint64) {
	if h.buckets == nil {
		h.buckets = make(map[uint32]bucket)
	}
	i := bucketOf(n)
	b := h.buckets[i]
	b.count++
	b.sum += n
	h.buckets[i] = b
	h.all++
}

// sorted returns the numbers of the buckets that are in use, the smallest first.
func (h *histogram) sorted() []uint32 { return slices.Sorted(maps.Keys(h.buckets)) }

// quantile returns a number that at least a part of all numbers does not exceed; 0 of none.
func (h *histogram) quantile(part float64) uint64 {
	seen := uint64(0)
	n := uint64(0)
	for _, i := range h.sorted() {
		n = top(i)
		if seen += h.buckets[i].count; float64(seen) >= part*float64(h.all) {
			break
		}
	}
	return n
}

// bound returns the smallest n, at least 1, that all numbers together exceed by at most that sum.
func (h *histogram) bound(excess uint64) uint64 {
	all := h.sorted()
	count, sum := uint64(0), uint64(0) // of the numbers above n
	for i, of := range slices.Backward(all) {
		b := h.buckets[of]
		count, sum = count+b.count, sum+b.sum
		below := uint64(0) // n is at least that, unless the numbers of the next bucket exceed it too
		if i > 0 {
			below = top(all[i-1])
		}
		if sum-count*below > excess { // for n from below on the sum falls by count with each step
			return max((sum-excess+count-1)/count, 1)
		}
	}
	return 1
}
