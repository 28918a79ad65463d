package redisstore

import (
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/storetest"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// benchLimit is a limit under which the keys of a benchmark stay allowed and alive.
func benchLimit(a algorithms.Algorithm) algorithms.Limit {
	if a == algorithms.SlidingWindowLog {
		return algorithms.Limit{Algorithm: a, Requests: 10_000, Period: 100 * time.Millisecond}
	}
	return algorithms.Limit{Algorithm: a, Requests: 100_000_000, Period: 365 * 24 * time.Hour}
}

// benchKey returns the key of client n as the limiter writes keys.
func benchKey(n int) []byte {
	client := strconv.Itoa(100_000_000 + n)
	return fmt.Appendf(nil, "4:edge|4:path=7:/search|6:client=%d:%s#fixed_window/365d", len(client), client)
}

// BenchmarkTake is a decision of Redis on one of some keys while so many callers wait for theirs.
// tx/call is how many of them share a call of the script.
func BenchmarkTake(b *testing.B) {
	for _, a := range storetest.EveryRate() {
		benchTakes(b, fileOf(a), benchLimit(a), Options{})
	}
	benchTakes(b, "counter", benchLimit(algorithms.FixedWindow), Options{Counters: Counters{Name: descriptors.AppendOriginalKey}})
}

// BenchmarkTakeInACluster is BenchmarkTake on the three nodes of a cluster, for requests of one key
// and of two keys, which lie in two slots.
func BenchmarkTakeInACluster(b *testing.B) {
	for _, charges := range []int{1, 2} {
		for _, callers := range []int{1, 100} {
			b.Run(fmt.Sprintf("charges=%d/callers=%d", charges, callers), func(b *testing.B) {
				benchTake(b, clustered(b, Options{}), benchLimit(algorithms.FixedWindow), charges, 100_000, callers)
			})
		}
	}
}

func benchTakes(b *testing.B, name string, l algorithms.Limit, o Options) {
	b.Helper()
	for _, keys := range []int{1, 100_000} {
		for _, callers := range []int{1, 100} {
			b.Run(fmt.Sprintf("%s/keys=%d/callers=%d", name, keys, callers), func(b *testing.B) {
				benchTake(b, open(b, urlOf("redis", shared(b).Address()), o), l, 1, keys, callers)
			})
		}
	}
}

func benchTake(b *testing.B, s *Store, l algorithms.Limit, charges, keys, callers int) {
	b.Helper()
	names := make([][]byte, keys)
	for i := range names {
		names[i] = benchKey(i)
	}
	before := s.Stats()
	b.ReportAllocs()
	b.ResetTimer()
	var next, failed atomic.Int64
	take := func(n int64, charges []store.Charge, decisions []algorithms.Decision) {
		for i := range charges {
			charges[i].Key = names[(n+int64(i))%int64(keys)]
		}
		if _, err := store.Take(b.Context(), s, charges, decisions); err != nil {
			failed.Add(1)
		}
	}
	request := func() ([]store.Charge, []algorithms.Decision) {
		all := make([]store.Charge, charges)
		for i := range all {
			all[i] = store.Charge{Limit: l, Hits: 1, Rule: i}
		}
		return all, make([]algorithms.Decision, charges)
	}
	if callers == 1 {
		charges, decisions := request()
		for n := range int64(b.N) {
			take(n*7919, charges, decisions)
		}
	} else {
		b.SetParallelism(max(1, callers/runtime.GOMAXPROCS(0)))
		b.RunParallel(func(pb *testing.PB) {
			charges, decisions := request()
			for pb.Next() {
				take(next.Add(1)*7919, charges, decisions)
			}
		})
	}
	b.StopTimer()
	stats := s.Stats()
	b.ReportMetric(float64(stats.Transactions-before.Transactions)/float64(max(1, stats.RoundTrips-before.RoundTrips)), "tx/call")
	if n := failed.Load(); n > 0 {
		b.Errorf("%d of %d failed", n, b.N)
	}
}
