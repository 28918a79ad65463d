// Package libraries compares decisions in process: Weir, another library, and the least code that
// limits a rate.
//
//	go -C bench test -run '^$' -bench . -cpu 1 -benchtime 300x ./libraries
package libraries

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// Each key has 100 000 requests a year, so that no key is denied or idle.
const (
	requests = 100_000
	period   = 365 * 24 * time.Hour
)

// take charges one hit to a key, and reports whether it is allowed.
type take func(key string) (allowed bool, err error)

// contenders returns the makers of the measured functions, by name.
func contenders() map[string]func(b *testing.B) take {
	return map[string]func(b *testing.B) take{
		"gcra": func(*testing.B) take { return new(gcra).take }, "sethvargo": sethvargo, "weir_store": weirStore, "weir_limiter": weirLimiter,
	}
}

// gcra is the generic cell rate algorithm in a map: an instant for each key.
type gcra struct {
	mu   sync.Mutex
	full map[string]int64 // nanoseconds of Unix at which the bucket of a key is full
}

func (g *gcra) take(key string) (bool, error) {
	const each = int64(period / requests)
	now := time.Now().UnixNano()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.full == nil {
		g.full = make(map[string]int64)
	}
	next := max(g.full[key], now) + each
	if next-now > int64(period) {
		return false, nil
	}
	g.full[key] = next
	return true, nil
}

func sethvargo(b *testing.B) take {
	b.Helper()
	s, err := memorystore.New(&memorystore.Config{Tokens: requests, Interval: period})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close(context.Background()) })
	return func(key string) (bool, error) {
		_, _, _, ok, err := s.Take(context.Background(), key)
		return ok, err
	}
}

func weirStore(b *testing.B) take {
	b.Helper()
	s := openStore(b)
	limit := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: requests, Period: period}
	charges, decisions := []store.Charge{{Limit: limit, Hits: 1}}, make([]algorithms.Decision, 1)
	return func(key string) (bool, error) {
		charges[0].Key = append(charges[0].Key[:0], key...)
		_, err := store.Take(context.Background(), s, charges, decisions)
		return decisions[0].Allowed, err
	}
}

func weirLimiter(b *testing.B) take {
	b.Helper()
	l, err := limiter.New(openStore(b), limiter.Options{})
	if err != nil {
		b.Fatal(err)
	}
	const rules = "domain: edge\ndescriptors:\n- {key: client, rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 100000}}\n"
	if _, err := l.Load(descriptors.Source{Data: []byte(rules)}); err != nil {
		b.Fatal(err)
	}
	return func(key string) (bool, error) {
		r, err := l.Allow(context.Background(), "edge", limiter.Entry{Key: "client", Value: key})
		return r.Allowed, err
	}
}

func openStore(b *testing.B) *memstore.Store {
	b.Helper()
	s, err := memstore.New(memstore.Options{MaxKeys: 2_000_000})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	return s
}

// decisions is how many a turn has.
const decisions = 10_000

// BenchmarkMillionKeys is decisions on random ones of a million keys, of all contenders in turns.
// The text of a key is as cold as its state, as in a request that has just come.
func BenchmarkMillionKeys(b *testing.B) {
	const n = 1_000_000
	keys := make([]string, n)
	for i, at := range rand.Perm(n) {
		keys[i] = fmt.Sprintf("203.0.113.%d/client-%d", at%256, at)
	}
	takes := make(map[string]take)
	for name, open := range contenders() {
		before := resident(b)
		takes[name] = open(b)
		for _, key := range keys {
			_, _ = takes[name](strings.Clone(key)) // a server has a text of its own for each request
		}
		defer b.ReportMetric(float64(resident(b)-before)/n, name+"_B/key")
	}
	turns(b, takes, func() string { return keys[rand.IntN(n)] })
}

// BenchmarkHotKey is decisions on one key.
func BenchmarkHotKey(b *testing.B) {
	takes := make(map[string]take)
	for name, open := range contenders() {
		takes[name] = open(b)
	}
	turns(b, takes, func() string { return "203.0.113.7/client-1" })
}

// turns reports the median CPU time of a decision of each contender. Other programs change the CPU
// time of a thread less than the time of a clock.
func turns(b *testing.B, takes map[string]take, key func() string) {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	took := make(map[string][]float64)
	for b.Loop() {
		for name, take := range takes { // in another order each time
			before := threadTime(b)
			for range decisions {
				if _, err := take(key()); err != nil {
					b.Fatal(err)
				}
			}
			took[name] = append(took[name], float64(threadTime(b)-before)/decisions)
		}
	}
	for name, all := range took {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], name+"_ns")
	}
	b.ReportMetric(0, "ns/op") // of a turn of all
}

// threadTime returns the CPU time of the thread in nanoseconds.
func threadTime(b *testing.B) int64 {
	b.Helper()
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return t.Nano()
}

// resident returns the memory of the process in bytes, without memory that is free.
func resident(b *testing.B) int64 {
	b.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Skip(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
