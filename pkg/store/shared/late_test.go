package shared

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// As long as the remote store answers, however late, a fleet with leases admits no hit above a
// limit. Requests without leased hits wait for the answer.
func TestAFleetWithLeasesStaysWithinItsLimitWhileTheStoreIsLate(t *testing.T) {
	fromLeases := uint64(0)
	for seed := range uint64(race.Scale(20)) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 12))
			n := 2 + r.IntN(4)
			f, end := newFleet(t, r, n, 0)
			defer end()
			midnight()
			limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: uint32(500 + r.IntN(3000)), Period: 24 * time.Hour}
			if r.IntN(2) == 0 {
				limit.Algorithm = algorithms.SlidingWindowCounter
			}
			jitter := r.IntN(2) == 0
			for _, k := range f.links {
				late := rand.New(rand.NewPCG(seed, r.Uint64()))
				var mu sync.Mutex
				k.before = func() { // the answer is on its way
					mu.Lock()
					d := 12 * time.Millisecond
					if jitter {
						d = time.Duration(late.Int64N(int64(25 * time.Millisecond)))
					}
					mu.Unlock()
					time.Sleep(d)
				}
			}
			var total atomic.Int64
			var clients sync.WaitGroup
			for range 2 * int(limit.Requests) {
				s := f.procs[r.IntN(n)]
				clients.Go(func() {
					if admitted, _ := take(t, s, store.Charge{Key: []byte("key"), Limit: limit, Hits: 1}); admitted {
						total.Add(1)
					}
				})
				time.Sleep(time.Duration(r.Int64N(int64(2 * time.Millisecond))))
			}
			clients.Wait()
			if got := total.Load(); got > int64(limit.Requests) {
				t.Errorf("seed %d, %d processes: %d hits of %d were admitted", seed, n, got, limit.Requests)
			}
			for _, s := range f.procs {
				fromLeases += s.Stats().Leases.Decided
			}
		})
	}
	if fromLeases == 0 {
		t.Error("nothing was decided from leases")
	}
}

// A process without an answer decides alone, by its share of the hits that were left at its last
// answer. The others go on with the store. So the fleet passes a limit by these shares at most,
// also if the store has decided and only the answer is lost.
func TestLostAnswersCostTheSharesOfTheProcessesThatLoseThem(t *testing.T) {
	beyond := int64(0)
	inOutages(t, race.Scale(80), func(t *testing.T, r *rand.Rand) {
		n := 2 + r.IntN(4)
		f, end := newFleet(t, r, n, 0)
		defer end()
		midnight()
		limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: uint32(n + r.IntN(500)), Period: 24 * time.Hour}
		seen, alone, most := make([]int64, n), make([]int64, n), make([]int64, n)
		total := int64(0)
		for range 4 * int(limit.Requests) {
			i := r.IntN(n)
			if r.IntN(20) == 0 {
				f.links[i].is.Store(r.Int32N(void + 1))
			}
			state := store.State{}
			c := store.Charge{Key: []byte("key"), Limit: limit, Hits: 1, Left: &state}
			admitted, _ := f.take(t, f.procs[i], []store.Charge{c}, r.IntN(2) == 0)
			if admitted {
				total++
			}
			switch {
			case state.Source == store.Asked:
				seen[i], alone[i] = f.hub.count(&c), 0 // the store is told before it is asked
			case state.Source == store.Without && admitted:
				alone[i]++
				most[i] = max(most[i], alone[i])
			}
			if share := max(int64(limit.Requests)-seen[i], 0) / int64(n); alone[i] > share {
				t.Fatalf("process %d of %d saw %d of %d hits, and admitted %d alone; its share is %d", i, n, seen[i], limit.Requests, alone[i], share)
			}
			time.Sleep(time.Duration(r.Int64N(int64(50 * time.Millisecond))))
		}
		bound := int64(limit.Requests)
		for i := range most {
			bound += most[i]
		}
		if total > bound {
			t.Errorf("%d processes: %d hits were admitted; the bound is %d of a limit of %d", n, total, bound, limit.Requests)
		}
		beyond += max(0, total-int64(limit.Requests))
	})
	if beyond == 0 {
		t.Error("no fleet admitted more than its limit: the schedules show nothing")
	}
}
