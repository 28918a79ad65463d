package app

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/pkg/store/shared"
	"github.com/weirproxy/weir/test/parts"
)

func redisForLeases(t *testing.T) *parts.Redis {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r := must.Get(parts.StartRedis(ctx, parts.NeedRedis(t, filepath.Join("..", "..")), t.TempDir(), parts.RedisOptions{}))(t)
	t.Cleanup(r.Kill)
	return r
}

// leasing returns stores on a Redis, after they have found it.
func leasing(t *testing.T, timeout time.Duration, urls ...string) *Stores {
	t.Helper()
	return leasingWith(t, redisstore.Options{Target: redisstore.Target{URLs: urls}, Timeout: timeout})
}

func leasingWith(t *testing.T, o redisstore.Options) *Stores {
	t.Helper()
	s, err := NewStores(StoreOptions{MaxKeys: 1000, DenyCache: time.Second, Logger: slog.New(slog.DiscardHandler), Redis: &o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for s.shared.State() != shared.Closed {
		if t.Context().Err() != nil {
			t.Fatal("Redis does not answer")
		}
		ping := store.Charge{Key: []byte("ping"), Limit: algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 1 << 30, Period: time.Hour}, Exact: true}
		_, _ = store.Take(t.Context(), s.Store, []store.Charge{ping}, make([]algorithms.Decision, 1))
		time.Sleep(time.Millisecond)
	}
	return s
}

// perDay returns a charge of a hit, by a limit that no test outlives.
func perDay(key string, a algorithms.Algorithm, requests uint32) store.Charge {
	return store.Charge{
		Key: []byte(key), Hits: 1, CountRejected: a == algorithms.FixedWindow,
		Limit: algorithms.Limit{Algorithm: a, Requests: requests, Period: 10 * 365 * 24 * time.Hour},
	}
}

// spendAll takes hits in several goroutines on each of the stores, and returns the number of
// admitted hits.
func spendAll(t *testing.T, c store.Charge, requests int, fleet ...*Stores) int64 {
	t.Helper()
	var admitted atomic.Int64
	var all sync.WaitGroup
	for _, s := range fleet {
		for range 4 {
			all.Go(func() {
				decisions := make([]algorithms.Decision, 1)
				for range requests {
					ok, err := store.Take(context.Background(), s.Store, []store.Charge{c}, decisions)
					if err != nil {
						t.Error(err)
						return
					}
					if ok {
						admitted.Add(1)
					}
				}
			})
		}
	}
	all.Wait()
	return admitted.Load()
}

func used(t *testing.T, s *Stores, c store.Charge) int64 {
	t.Helper()
	c.Hits, c.Exact = 0, true
	d := make([]algorithms.Decision, 1)
	must.Do(t, s.redis.Peek(t.Context(), []store.Charge{c}, d))
	return int64(c.Limit.Requests) - int64(d[0].Remaining)
}

func TestAHotKeyCostsRedisFewCalls(t *testing.T) {
	s := leasing(t, 5*time.Second, "redis://"+redisForLeases(t).Address())
	c := perDay("hot", algorithms.FixedWindow, 1<<30)
	before := s.redis.Stats().RoundTrips
	const requests = 50_000
	if got := spendAll(t, c, requests/4, s); got != requests {
		t.Errorf("admitted %d, want %d", got, requests)
	}
	calls, stats := s.redis.Stats().RoundTrips-before, s.shared.Stats().Leases
	// Until a grant without an answer is given up, requests ask Redis. A busy machine has such grants.
	if few := calls <= requests/20 && stats.Decided >= requests*9/10; stats.Decided == 0 || !few && stats.Failed == 0 {
		t.Errorf("%d calls of Redis, and %d decisions from leases, for %d requests; want at most a twentieth and nearly all", calls, stats.Decided, requests)
	}
	t.Logf("%d calls, %+v", calls, stats)
	s.shared.Close()
	if got := used(t, s, c); got != requests {
		t.Errorf("Redis counts %d hits after the leases went back, want %d", got, requests)
	}
}

func TestAFleetWithLeasesAdmitsTheLimitAndNoMore(t *testing.T) {
	cluster := func(t *testing.T) []string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c, err := parts.StartCluster(ctx, parts.NeedRedis(t, filepath.Join("..", "..")), t.TempDir(), parts.RedisOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Kill)
		must.Do(t, c.DisableFailover(ctx)) // a cluster that refuses calls would not decide alone
		var urls []string
		for _, a := range c.Addresses() {
			urls = append(urls, "redis-cluster://"+a)
		}
		return urls
	}
	for name, urls := range map[string]func(t *testing.T) []string{
		"single":  func(t *testing.T) []string { t.Helper(); return []string{"redis://" + redisForLeases(t).Address()} },
		"cluster": cluster,
	} {
		t.Run(name, func(t *testing.T) {
			at := urls(t)
			const limit = 20_000
			for _, a := range []algorithms.Algorithm{algorithms.FixedWindow, algorithms.SlidingWindowCounter, algorithms.TokenBucket, algorithms.TokenBucketInteger} {
				fleet := []*Stores{leasing(t, 5*time.Second, at...), leasing(t, 5*time.Second, at...), leasing(t, 5*time.Second, at...)}
				c := perDay(fmt.Sprintf("%s %v", name, a), a, limit)
				admitted := spendAll(t, c, 4000, fleet...)
				leased, failed := uint64(0), uint64(0)
				for _, s := range fleet {
					leased += s.shared.Stats().Leases.Decided
					failed += s.shared.Stats().Leases.Failed
					s.shared.Close() // gives everything back
				}
				for _, s := range fleet { // hits that were held are now on their way to Redis
					for s.redis.Stats().OwedKeys > 0 && t.Context().Err() == nil {
						time.Sleep(time.Millisecond)
					}
				}
				fleet[0].shared.Forget() // was denied while hits were held elsewhere
				admitted += spendAll(t, c, limit/4, fleet[0])
				// A grant without an answer stays charged, in a bucket. A busy machine has such grants.
				if admitted > limit || admitted < limit*99/100 && failed == 0 {
					t.Errorf("%v: admitted %d, want at most %d and 99 %% of that", a, admitted, limit)
				}
				if leased == 0 {
					t.Errorf("%v: no decision came from a lease", a)
				}
				t.Logf("%v: admitted %d, %d from leases, %d grants without an answer", a, admitted, leased, failed)
				for _, s := range fleet {
					s.Close()
				}
			}
		})
	}
}

func TestLeasedRequestsDoNotWaitForAStoppedRedis(t *testing.T) {
	redis := redisForLeases(t)
	s := leasing(t, 20*time.Millisecond, "redis://"+redis.Address())
	c := perDay("hot", algorithms.FixedWindow, 1<<30)
	decisions := make([]algorithms.Decision, 1)
	take := func() (leased bool) {
		t.Helper()
		before := s.shared.Stats().Leases.Decided
		if admitted, err := store.Take(t.Context(), s.Store, []store.Charge{c}, decisions); !admitted || err != nil {
			t.Fatalf("got %t, %v", admitted, err)
		}
		return s.shared.Stats().Leases.Decided > before
	}
	requests, waited, rounds := 0, 0, 0
	for ; requests < 100; rounds++ { // on a busy machine a lease may end before Redis stands still
		for s.shared.Stats().Leases.Held < 1000 {
			take()
		}
		must.Do(t, redis.Pause(t.Context()))
		for s.shared.Stats().Leases.Held > 0 {
			requests++
			if !take() {
				waited++
			}
			time.Sleep(100 * time.Microsecond)
		}
		must.Do(t, redis.Continue())
	}
	if waited > 2*rounds { // a lease has two parts, and each may end between the look and the request
		t.Errorf("in %d leases, %d of %d requests waited for a stopped Redis; want 2 of a lease at most", rounds, waited, requests)
	}
	t.Logf("%d requests, %+v", requests, s.shared.Stats().Leases)
}

// Windows of a second end often. With counters the clock of the process aligns them.
func TestLeasesEndWithTheirWindow(t *testing.T) {
	at := "redis://" + redisForLeases(t).Address()
	for _, counters := range []bool{false, true} {
		o := redisstore.Options{Target: redisstore.Target{URLs: []string{at}}, Timeout: 5 * time.Second}
		if counters {
			o.Counters.Name = func(dst, key []byte) ([]byte, bool) { return append(append(dst, key...), '_'), true }
		}
		fleet := []*Stores{leasingWith(t, o), leasingWith(t, o)}
		const limit = 2000
		c := store.Charge{
			Key: fmt.Appendf(nil, "counters %t", counters), Hits: 1, CountRejected: true,
			Limit: algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: limit, Period: time.Second},
		}
		var mu sync.Mutex
		admitted := map[int64]int{}
		var all sync.WaitGroup
		end := time.Now().Add(1500 * time.Millisecond)
		for _, s := range fleet {
			for range 2 {
				all.Go(func() {
					decisions := make([]algorithms.Decision, 1)
					for time.Now().Before(end) {
						begun := time.Now().Unix()
						ok, err := store.Take(context.Background(), s.Store, []store.Charge{c}, decisions)
						if err != nil {
							t.Error(err)
						}
						if ok && time.Now().Unix() == begun {
							mu.Lock()
							admitted[begun]++
							mu.Unlock()
						}
						time.Sleep(100 * time.Microsecond)
					}
				})
			}
		}
		all.Wait()
		leased := uint64(0)
		for _, s := range fleet {
			leased += s.shared.Stats().Leases.Decided
		}
		for second, n := range admitted {
			if n > limit {
				t.Errorf("counters %t: %d admitted in second %d, want at most %d", counters, n, second, limit)
			}
		}
		if leased == 0 {
			t.Errorf("counters %t: no decision came from a lease", counters)
		}
		t.Logf("counters %t: %v, %d from leases, %+v", counters, admitted, leased, fleet[0].shared.Stats())
	}
}
