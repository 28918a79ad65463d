package top

import (
	"math"
	"sync"
	"testing"
)

func TestAVeryHotKeyIsCountedWithinOnePercent(t *testing.T) {
	const hits = 8 * exactHits
	for _, denied := range []bool{false, true} {
		s, random := NewTracker(8, nil), Random(7)
		for range hits {
			s.hit(Hit{Hash: 1, Hits: 1, Denied: denied}, &random, 1)
		}
		got := s.Keys(Minute)[0].Hits
		if off := math.Abs(float64(got)/hits - 1); off > 0.01 {
			t.Errorf("denied %t: got %d hits; want %d", denied, got, hits)
		}
	}
}

func TestHitsOfManyGoroutinesAreNotLost(t *testing.T) {
	const goroutines, times, keys = 4, 20_000, 7
	s := NewTracker(8, nil)
	var wait sync.WaitGroup
	for g := range goroutines {
		wait.Go(func() {
			random := Random(g + 1)
			for n := range times {
				s.hit(Hit{Hash: hashOf(n % keys), Hits: 1 << 20, Denied: n%3 == 0, Remaining: 5}, &random, n%keys)
			}
		})
	}
	for range 20 {
		s.Rotate()
	}
	wait.Wait()
	sum, n := uint64(0), 0
	for _, k := range s.Keys(TenMinutes) {
		sum, n = sum+k.Hits, n+1
		if k.Remaining != 5 || k.HitsError != 0 {
			t.Errorf("got %+v", k)
		}
	}
	if want := uint64(goroutines * times << 20); sum != want || n != keys {
		t.Errorf("%d keys have %d hits; want %d", n, sum, want)
	}
}

func TestOneGoroutineAtATimeMakesAKeyTracked(t *testing.T) {
	s := NewTracker(1000, nil)
	var wait sync.WaitGroup
	for g := range 4 {
		wait.Go(func() {
			random := Random(g + 1)
			for n := range 500 {
				s.hit(Hit{Hash: hashOf(n), Hits: 1}, &random, n)
			}
		})
	}
	wait.Wait()
	seen := make(map[uint64]bool)
	for _, k := range s.Keys(Minute) {
		if seen[k.Hash] || k.Hits != 4 {
			t.Errorf("got %+v, seen before %t; want four hits", k, seen[k.Hash])
		}
		seen[k.Hash] = true
	}
	if len(seen) != 500 || s.Tracked() != 500 {
		t.Errorf("%d keys, %d tracked; want 500", len(seen), s.Tracked())
	}
}
