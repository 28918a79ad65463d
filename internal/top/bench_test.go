package top

import "testing"

// BenchmarkCount counts hits of tracked keys: one key, and many in turns.
func BenchmarkCount(b *testing.B) {
	for name, keys := range map[string]int{"one key": 1, "500 keys": 512} {
		b.Run(name, func(b *testing.B) {
			s := NewTracker(1000, nil)
			hashes := make([]uint64, keys)
			for i := range hashes {
				hashes[i] = hashOf(i)
				s.Admit(Hit{Hash: hashes[i], Hits: 1}, new(Random), textOf(i))
			}
			remaining, random := uint32(0), Random(1)
			b.ReportAllocs()
			for b.Loop() {
				remaining++
				if !s.Count(Hit{Hash: hashes[remaining%uint32(keys)], Hits: 1, Remaining: remaining, Capacity: 100}, &random) {
					b.Fatal("the key is not tracked")
				}
			}
		})
	}
}

// BenchmarkMiss is hits of keys that are not tracked and have few hits.
func BenchmarkMiss(b *testing.B) {
	s, random := NewTracker(1000, nil), Random(1)
	for i := range 1000 {
		for range 100 {
			s.Admit(Hit{Hash: hashOf(i), Hits: 1}, new(Random), textOf(i))
		}
	}
	n := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		n += 0x9e3779b97f4a7c15
		h := Hit{Hash: n | 1, Hits: 1, Remaining: 3, Capacity: 100}
		if !s.Count(h, &random) && s.Wants(h, &random) {
			s.Admit(h, &random, nil)
		}
	}
}
