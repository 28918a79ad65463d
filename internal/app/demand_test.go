package app

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// requests is a count that grows with time, at a rate.
type requests struct {
	mu    sync.Mutex
	count float64
	rate  float64 // in a second
	since time.Time
}

func (r *requests) now() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count += r.rate * time.Since(r.since).Seconds()
	r.since = time.Now()
	return uint64(r.count)
}

func (r *requests) are(rate float64) {
	r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rate = rate
}

// partsOf returns the shares of a fleet in the order of the fleet, and whether no two overlap and
// all fill the circle.
func partsOf(fleet []*Stores) (shares []store.Share, disjoint, all bool) {
	sum := uint32(0)
	for _, s := range fleet {
		share := s.redis.Health(0).Share
		shares, sum = append(shares, share), sum+share.To-share.From
	}
	sorted := slices.SortedFunc(slices.Values(shares), func(x, y store.Share) int { return cmp.Compare(x.From, y.From) })
	for i := range sorted[1:] {
		if sorted[i].To > sorted[i+1].From {
			return shares, false, false
		}
	}
	return shares, true, sum == store.Circle
}

// While Redis is away a fleet uses nearly the whole limit, also when nine of ten requests come to
// one process. The fleet never uses more, also if the load has moved a moment before, or moves
// then.
func TestAFleetWithoutRedisAdmitsWhereItsLoadIs(t *testing.T) {
	loads := []float64{9000, 400, 300, 300}
	moved := []float64{300, 300, 400, 9000}
	for name, tt := range map[string]struct {
		early bool      // Redis goes away as soon as shares move to the load
		loads []float64 // without Redis
		least int       // hits of 1000 that are admitted at least
	}{
		"steady":   {false, loads, 900},
		"sudden":   {true, loads, 0},
		"swapped":  {false, moved, 0},
		"all_four": {false, []float64{1, 1, 1, 1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := redisForLeases(t)
			var fleet []*Stores
			var of []*requests
			for range loads {
				s := leasing(t, 5*time.Second, "redis://"+redis.Address())
				r := &requests{since: time.Now()}
				s.redis.Follow(r.now)
				fleet, of = append(fleet, s), append(of, r)
			}
			await := func(what string, ok func() bool) {
				t.Helper()
				for begun := time.Now(); !ok(); time.Sleep(time.Millisecond) {
					if time.Since(begun) > time.Minute {
						shares, _, _ := partsOf(fleet)
						t.Fatalf("no %s: %v", what, shares)
					}
				}
			}
			large := func(i int) bool { // also: no process has a share by its name
				shares, _, all := partsOf(fleet)
				return all && shares[i].To-shares[i].From > store.Circle/100*88
			}
			at := func(loads []float64) {
				for i, r := range of {
					r.are(loads[i])
				}
			}
			if tt.early {
				at(moved)
				await("shares by the load", func() bool { return large(3) })
				before, _, _ := partsOf(fleet)
				at(loads)
				await("other shares", func() bool { shares, _, _ := partsOf(fleet); return !slices.Equal(shares, before) })
			} else {
				at(loads)
				await("shares by the load", func() bool { return large(0) })
			}
			redis.Kill()
			await("outage", func() bool {
				away := 0
				for _, s := range fleet {
					if ask(t, s, "ping", 1<<30); s.Ready() != nil {
						away++
					}
				}
				return away == len(fleet)
			})
			if shares, disjoint, _ := partsOf(fleet); !disjoint {
				t.Fatalf("shares overlap: %v", shares)
			}
			if got := spread(t, fleet, tt.loads, "large", 1000); got > 1000 || got < tt.least {
				t.Errorf("the fleet admitted %d of 1000, want at least %d", got, tt.least)
			}
			for n := range 50 {
				if got := spread(t, fleet, tt.loads, fmt.Sprint("small ", n), 20); got > 20 {
					t.Errorf("the fleet admitted %d of 20", got)
				}
			}
		})
	}
}

// spread sends twice as many hits as the limit has to a fleet, by its loads, and returns the number
// of admitted hits.
func spread(t *testing.T, fleet []*Stores, loads []float64, key string, limit uint32) (admitted int) {
	t.Helper()
	r, all := rand.New(rand.NewPCG(1, 2)), 0.0
	for _, load := range loads {
		all += load
	}
	for range 2 * limit {
		at, i := r.Float64()*all, 0
		for ; at >= loads[i]; i++ {
			at -= loads[i]
		}
		if ask(t, fleet[i], key, limit) {
			admitted++
		}
	}
	return admitted
}

func ask(t *testing.T, s *Stores, key string, limit uint32) bool {
	t.Helper()
	c := perDay(key, algorithms.TokenBucket, limit)
	ok, err := store.Take(t.Context(), s.Store, []store.Charge{c}, make([]algorithms.Decision, 1))
	if err != nil {
		t.Error(err)
	}
	return ok
}
