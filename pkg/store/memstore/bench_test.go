package memstore

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// benchLimits is one limit per algorithm under which a benchmark's keys stay allowed and alive.
func benchLimits() []algorithms.Limit {
	var limits []algorithms.Limit
	for _, a := range algorithms.RateAlgorithms() {
		limit := algorithms.Limit{Algorithm: a, Requests: 100_000, Period: 365 * 24 * time.Hour}
		if a == algorithms.SlidingWindowLog {
			limit.Requests, limit.Period = 1000, time.Second
		}
		limits = append(limits, limit)
	}
	return limits
}

// benchKey is the key of client n as the limiter writes keys.
func benchKey(n int) []byte {
	client := strconv.Itoa(100_000_000 + n)
	return fmt.Appendf(nil, "4:edge|4:path=7:/search|6:client=%d:%s#token_bucket/1h0m0s", len(client), client)
}

// random returns a sequence of 64-bit numbers (splitmix64), cheap beside the measured code.
func random(seed uint64) func() uint64 {
	return func() uint64 {
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return z ^ z>>31
	}
}

func benchStore(b *testing.B, maxKeys int) *Store {
	b.Helper()
	s, err := New(Options{MaxKeys: maxKeys})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	return s
}

// BenchmarkHotKey is a decision on one key that every request has.
func BenchmarkHotKey(b *testing.B) {
	for _, limit := range benchLimits() {
		b.Run(limit.Algorithm.String(), func(b *testing.B) {
			s := benchStore(b, 0)
			charges := []store.Charge{{Key: benchKey(1), Limit: limit, Hits: 1}}
			decisions := make([]algorithms.Decision, 1)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := store.Take(b.Context(), s, charges, decisions); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkMillionKeys is a decision on a random one of a million keys that the store remembers.
func BenchmarkMillionKeys(b *testing.B) {
	const keys = 1_000_000
	for _, limit := range benchLimits() {
		if limit.Algorithm == algorithms.SlidingWindowLog {
			continue // see BenchmarkThousandKeys
		}
		b.Run(limit.Algorithm.String(), func(b *testing.B) {
			before := processBytes(b)
			s := benchStore(b, 2*keys)
			key := benchKey(0)
			at := strings.Index(string(key), "100000000")
			charges := []store.Charge{{Key: key, Limit: limit, Hits: 1}}
			decisions := make([]algorithms.Decision, 1)
			name := func(n uint64) { // writes the client's nine digits in place
				for i := at + 8; i > at; i-- {
					key[i] = byte('0' + n%10)
					n /= 10
				}
			}
			for n := range uint64(keys) {
				name(n)
				_, _ = store.Take(b.Context(), s, charges, decisions)
			}
			grown := processBytes(b) - before
			next := random(1)
			b.ReportAllocs()
			for b.Loop() {
				name(next() % keys)
				if _, err := store.Take(b.Context(), s, charges, decisions); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(grown)/keys, "B/key")
			if got := s.Stats().Keys; got != keys {
				b.Fatalf("the store has %d keys; want %d", got, keys)
			}
		})
	}
}

// BenchmarkNewKeys is a decision on a key never seen: while the store fills, and at bounds, where
// each new key replaces another one.
func BenchmarkNewKeys(b *testing.B) {
	for name, c := range map[string]struct{ maxKeys, before int }{
		"filling":          {100_000_000, 0},
		"bound=100_000":    {100_000, 200_000},
		"bound=1_000_000":  {1_000_000, 1_100_000},
		"bound=10_000_000": {10_000_000, 10_100_000},
	} {
		b.Run(name, func(b *testing.B) {
			s := benchStore(b, c.maxKeys)
			key := make([]byte, 32)
			charges := []store.Charge{{Key: key, Limit: benchLimits()[1], Hits: 1}}
			decisions := make([]algorithms.Decision, 1)
			n := uint64(0)
			take := func() {
				n++
				binary.LittleEndian.PutUint64(key, n)
				if _, err := store.Take(b.Context(), s, charges, decisions); err != nil {
					b.Fatal(err)
				}
			}
			for range c.before {
				take()
			}
			b.ReportAllocs()
			defer cpu(b)()
			for b.Loop() {
				take()
			}
		})
	}
}

// BenchmarkThousandKeys is decisions over 1 000 keys on all cores at once.
func BenchmarkThousandKeys(b *testing.B) {
	for _, limit := range benchLimits() {
		b.Run(limit.Algorithm.String(), func(b *testing.B) {
			s := benchStore(b, 0)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				var keys [1000][]byte
				for i := range keys {
					keys[i] = benchKey(i)
				}
				charges := []store.Charge{{Limit: limit, Hits: 1}}
				decisions := make([]algorithms.Decision, 1)
				for next := random(2); pb.Next(); {
					charges[0].Key = keys[next()%1000]
					if _, err := store.Take(b.Context(), s, charges, decisions); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

// BenchmarkTransaction is a request with several charges on random keys.
func BenchmarkTransaction(b *testing.B) {
	for _, charges := range []int{2, 4, 8} {
		b.Run(fmt.Sprintf("charges=%d", charges), func(b *testing.B) {
			s := benchStore(b, 0)
			all := make([]store.Charge, charges)
			decisions := make([]algorithms.Decision, charges)
			var keys [1000][]byte
			for i := range keys {
				keys[i] = benchKey(i)
			}
			next := random(3)
			b.ReportAllocs()
			for b.Loop() {
				for i := range all {
					all[i] = store.Charge{Key: keys[next()%1000], Limit: benchLimitsOne(), Hits: 1, Rule: i}
				}
				if _, err := store.Take(b.Context(), s, all, decisions); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchLimitsOne() algorithms.Limit {
	return algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 100_000, Period: 365 * 24 * time.Hour}
}

// processBytes returns the resident memory of the process, if the system tells that, after
// returning free memory to the system.
func processBytes(b *testing.B) int64 {
	b.Helper()
	debug.FreeOSMemory()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.Sys - m.HeapReleased)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		b.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

// While all keys are denied, each new key asks all shards.
func BenchmarkNewKeyInAStoreOfDeniedKeys(b *testing.B) {
	s, err := New(Options{MaxKeys: 1_000_000, SweepInterval: 1000 * time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	s.metrics.places.Store(s.maxKeys)
	for i := range s.opens {
		s.opens[i].Store(never)
	}
	c := store.Charge{Key: []byte("new"), Limit: algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1, Period: time.Hour}, Hits: 1}
	for b.Loop() {
		s.takeOne(&c, new(algorithms.Decision))
	}
}
