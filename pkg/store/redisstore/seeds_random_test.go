package redisstore

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/must"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Two processes have seen any part of the hits of a key when Redis loses all. The processes put
// their states back in any order, and Redis gets new hits in between. Redis then admits no more
// than by either state, and no less than if no hit had been lost.
func TestSeedsOfSeveralProcessesCountInAnyOrder(t *testing.T) {
	first, clock := given(t, Options{})
	second := open(t, urlOf("redis", shared(t).Address()), Options{Prefix: first.main.prefix})
	second.given = clock.now
	both := [2]*Store{first, second}
	for n := range 400 {
		seed := uint64(n)
		r := rand.New(rand.NewPCG(seed, 22)) //nolint:gosec // reproducible
		limit := []algorithms.Limit{
			{Algorithm: algorithms.FixedWindow, Requests: 40, Period: 10 * time.Second},
			{Algorithm: algorithms.TokenBucket, Requests: 20, Period: 10 * time.Second, Extra: algorithms.Extra{Burst: 40}},
			{Algorithm: algorithms.SlidingWindowCounter, Requests: 40, Period: 10 * time.Second},
			{Algorithm: algorithms.CalendarWindow, Requests: 40, Period: 10 * time.Second},
			{Algorithm: algorithms.CalendarCounter, Requests: 40, Period: 10 * time.Second},
			{Algorithm: algorithms.TokenBucketInteger, Requests: 40, Period: 10 * time.Second},
		}[n%4]
		key := []byte{byte(n >> 8), byte(n)}
		whole := kept{limit: limit} // as if nothing were lost
		take := func(s *Store) {
			clock.sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
			c := []store.Charge{{Key: key, Limit: limit, Hits: 1 + r.Int64N(3)}}
			if must.Get(store.Take(t.Context(), s, c, make([]algorithms.Decision, 1)))(t) {
				whole.take(limit, clock.now(), c[0].Hits, algorithms.Count)
			}
		}
		for range r.IntN(12) {
			take(both[r.IntN(2)])
		}
		name, _ := first.main.appendName(nil, &store.Charge{Key: key, Limit: limit}, 0)
		command(t, first, "DEL", string(name))
		order := r.Perm(2)
		for _, i := range order {
			both[i].main.seeds.restarts.Store(both[i].main.connection.Restarts() + 1)
			both[i].main.seed(t.Context())
			eventually(t, "the end of the seeding", func() bool { return !both[i].main.seeds.pending(both[i].main.connection) })
			for range r.IntN(3) {
				take(both[order[0]])
			}
		}
		states := [2]kept{}
		for i, s := range both {
			states[i] = s.main.seeds.shard(string(name)).states[string(name)].kept
		}
		for range 5 {
			d := make([]algorithms.Decision, 1)
			must.Do(t, first.Peek(t.Context(), []store.Charge{{Key: key, Limit: limit}}, d))
			at := clock.now()
			left := func(k kept) uint64 { return k.take(limit, at, 0, algorithms.Refuse).Remaining }
			if most := min(left(states[0]), left(states[1])); d[0].Remaining > most {
				t.Errorf("seed %d, %v: %d are left, want at most %d as by the states %v", seed, limit.Algorithm, d[0].Remaining, most, states)
			}
			if least := left(whole); d[0].Remaining < least {
				t.Errorf("seed %d, %v: %d are left, want at least %d, as many as without a loss", seed, limit.Algorithm, d[0].Remaining, least)
			}
			clock.sleep(time.Duration(r.IntN(5000)) * time.Millisecond)
		}
	}
}
