package algorithms

import (
	"encoding/binary"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// rapidChooser chooses by rapid, which shrinks failures and prints the seed.
type rapidChooser struct{ t *rapid.T }

func (c rapidChooser) upTo(what string, most uint64) uint64 {
	if most > math.MaxUint8 {
		return rapid.Uint64Range(0, most).Draw(c.t, what)
	}
	// Rapid's ranges prefer their ends, which makes short walks that do the first thing in every list:
	// here all are alike.
	return rapid.Custom(func(t *rapid.T) (x uint64) {
		for range bits.Len64(most) + 3 {
			x <<= 1
			if rapid.Bool().Draw(t, "bit") {
				x |= 1
			}
		}
		return x % (most + 1)
	}).Draw(c.t, what)
}

// seedChooser chooses by a seed, hundreds of times faster than rapid.
type seedChooser struct{ r *rand.Rand }

func (c seedChooser) upTo(_ string, most uint64) uint64 {
	if most == math.MaxUint64 {
		return c.r.Uint64()
	}
	return c.r.Uint64N(most + 1)
}

// newRand returns the random numbers of a seed.
func newRand(seed ...uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed[0], seed[len(seed)-1]))
}

// byteChooser chooses by the input of a fuzzer, and 0 once that is used up.
type byteChooser struct{ data []byte }

func (c *byteChooser) upTo(_ string, most uint64) uint64 {
	var word [8]byte
	size := 8
	if most <= math.MaxUint8 {
		size = 1
	}
	c.data = c.data[copy(word[:size], c.data):]
	x := binary.LittleEndian.Uint64(word[:])
	if most == math.MaxUint64 {
		return x
	}
	return x % (most + 1)
}

// failer is the part of a test that a property needs, of testing or of rapid.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// holds checks that a property holds of every algorithm: by rapid, and over seeded walks. The seeds
// are the same in every run; a failure prints the one that failed.
func holds(t *testing.T, property func(t failer, c chooser, a Algorithm)) {
	t.Helper()
	holdsOf(t, 2000, RateAlgorithms(), property)
}

// holdsOf is holds for some algorithms and with that many seeds.
func holdsOf(t *testing.T, walks uint64, algorithms []Algorithm, property func(t failer, c chooser, a Algorithm)) {
	t.Helper()
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			for seed := range walks {
				property(seeded{t, seed}, seedChooser{newRand(seed, uint64(a))}, a)
			}
			rapid.Check(t, func(t *rapid.T) { property(t, rapidChooser{t}, a) })
		})
	}
}

// seeded puts the seed before a failure's words.
type seeded struct {
	*testing.T
	seed uint64
}

func (s seeded) Fatalf(format string, args ...any) {
	s.Helper()
	s.T.Fatalf("seed %d: "+format, append([]any{s.seed}, args...)...)
}
