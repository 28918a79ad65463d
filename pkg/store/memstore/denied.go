package memstore

import (
	"math/bits"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// deniedHits is the hits of a key's last denied charge in one byte: five bits of an exponent and
// three of a mantissa. Up to 16 hits are exact. More hits are rounded up, by less than an eighth.
// So a key counts as denied a little longer, and never too short. The zero value is one hit, which
// also stands for a key that was never denied.
type deniedHits uint8

const deniedBits = 8

// deniedHitsOf returns the hits, at least 1 and at most algorithms.MaxHits, rounded up.
func deniedHitsOf(hits uint64) deniedHits {
	n := hits - 1
	if n < 8 {
		return deniedHits(n)
	}
	shift := bits.Len64(n) - 4
	rounded := (n + 1<<shift - 1) >> shift // 8 to 16
	return deniedHits(uint64(shift)<<3 + rounded)
}

// hits returns the smallest number of hits that the byte stands for.
func (h deniedHits) hits() uint64 {
	if h < 8 {
		return uint64(h) + 1
	}
	return uint64(h&7|8)<<(h>>3-1) + 1
}

// of returns the hits for which a key under the limit counts as denied. More hits than the capacity
// never pass. For them the key counts as denied until the key is full.
func (h deniedHits) of(l *algorithms.Limit) uint64 { return min(h.hits(), uint64(l.Capacity())) }

// after returns the denied hits after a charge. A denied charge replaces them. A charge of at least
// as many hits that passes clears them. A ban denies with a state and without, so its denials do
// not count.
func (h deniedHits) after(l *algorithms.Limit, hits int64, allowed bool) deniedHits {
	switch {
	case hits <= 0 || l.Requests == 0:
		return h
	case !allowed:
		return deniedHitsOf(min(uint64(hits), uint64(l.Capacity())))
	case uint64(hits) >= h.hits():
		return 0
	default:
		return h
	}
}
