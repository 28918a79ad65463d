package algorithms

import (
	"math"
	"testing"
	"time"
)

// The fuzzers read their input as choices (see byteChooser), so that coverage steers the walks of
// the property tests. The seeds are random walks of every algorithm.

// FuzzTake compares every decision of one algorithm, which the first byte chooses, with the
// reference.
func FuzzTake(f *testing.F) {
	addWalks(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		a, c := chooseAlgorithm(data)
		compare(t, c, a, false)
	})
}

// FuzzChange does so while the limit changes under the key.
func FuzzChange(f *testing.F) {
	addWalks(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		a, c := chooseAlgorithm(data)
		compare(t, c, a, true)
	})
}

// FuzzLog takes several pending charges at a time and compares them with the same charges one after
// another.
func FuzzLog(f *testing.F) {
	addWalks(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		c, steps := walk(&byteChooser{data}, 20)
		k, now := newKey(chooseLimit(c, SlidingWindowLog)), chooseStart(c)
		var d Decision
		for range steps {
			now = chooseNext(c, k.limit, now, d)
			d = chain(t, c, k, now, d)
			remains(t, k, now, d)
			if k.log.len > 0 && uint64(k.log.len) > 2*uint64(k.limit.Requests) {
				t.Fatalf("%d entries: %v", k.log.len, k)
			}
		}
	})
}

// FuzzPanics calls everything with limits, states and instants of any kind.
func FuzzPanics(f *testing.F) {
	addWalks(f)
	f.Fuzz(func(_ *testing.T, data []byte) {
		a, c := chooseAlgorithm(data)
		anything(c, a)
	})
}

// FuzzLimit holds a validated limit to its word: a key never used takes the whole capacity at once,
// and one hit more not.
func FuzzLimit(f *testing.F) {
	f.Add(uint8(TokenBucket), uint32(10), int64(MinPeriod), uint32(math.MaxUint32), int64(math.MaxInt64))
	f.Add(uint8(FixedWindow), uint32(math.MaxUint32), int64(MaxPeriod), uint32(0), int64(math.MinInt64))
	f.Add(uint8(0), uint32(0), int64(0), uint32(1), int64(0))
	f.Fuzz(func(t *testing.T, a uint8, requests uint32, period int64, burst uint32, now int64) {
		l := Limit{Algorithm: Algorithm(a), Requests: requests, Period: time.Duration(period), Extra: Extra{Burst: burst}}
		if l.Validate() != nil || perNanosecond(l) || l.Algorithm == Learned {
			return
		}
		k := newKey(l)
		got := k.take(Instant(now), int64(l.Capacity()), false)
		if !got.Allowed || got.Remaining != 0 {
			t.Errorf("%+v: the capacity at %d: got %+v; want allowed, 0 remaining", l, now, got)
		}
		if got := k.take(Instant(now), 1, false); got.Allowed || got.RetryAfter <= 0 {
			t.Errorf("%+v: one hit more at %d: got %+v; want denied", l, now, got)
		}
	})
}

// chooseAlgorithm reads the algorithm from the first byte.
func chooseAlgorithm(data []byte) (Algorithm, chooser) {
	c := &byteChooser{data}
	return pick(c, "algorithm", RateAlgorithms()...), c
}

// addWalks adds walks of every algorithm to the corpus.
func addWalks(f *testing.F) {
	f.Helper()
	for i := range RateAlgorithms() {
		for seed := range uint64(4) {
			data := make([]byte, 64<<seed)
			r := newRand(seed, uint64(i))
			for j := range data {
				data[j] = byte(r.Uint32())
			}
			data[0] = byte(i)
			f.Add(data)
		}
	}
}
