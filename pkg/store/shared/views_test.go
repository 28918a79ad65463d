package shared

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// A process that is cut off admits at most its share of the hits it has not seen: (limit - seen) /
// n. The connected processes admit the whole rest of the limit. So the fleet admits too many by at
// most the shares of all processes that are cut off. If all are cut off nobody admits the rest, and
// only the hits that some have not seen count twice.
func TestAProcessThatIsCutOffAdmitsItsShareOfWhatItHasSeen(t *testing.T) {
	beyond := int64(0)
	inOutages(t, func(t *testing.T, r *rand.Rand) {
		n := 1 + r.IntN(6)
		f, end := newFleet(t, r, n, 0)
		defer end()
		midnight()
		limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: uint32(n + r.IntN(500)), Period: 24 * time.Hour}
		if r.IntN(2) == 0 {
			limit.Algorithm = algorithms.SlidingWindowCounter
		}
		seen, own := make([]int64, n), make([]int64, n) // hits of the key as each process saw it last; admitted since without the hub
		total := int64(0)
		ask := func(i int) {
			c := store.Charge{Key: []byte("key"), Limit: limit, Hits: int64(1 + r.IntN(3))}
			admitted, _ := f.take(t, f.procs[i], []store.Charge{c}, r.IntN(2) == 0)
			connected := f.links[i].is.Load() == up
			if admitted {
				total += c.Hits
				if !connected {
					own[i] += c.Hits
				}
			}
			if connected {
				count := f.hub.count(&c)
				seen[i] = int64(count)
			}
			time.Sleep(time.Millisecond)
		}
		for range r.IntN(int(limit.Requests)) {
			ask(r.IntN(n))
		}
		before, cut := total, 1+r.IntN(n)
		for i := range cut {
			f.links[i].is.Store(down)
		}
		for range 2 * int(limit.Requests) {
			ask(r.IntN(n))
		}
		most := int64(limit.Requests)
		if cut == n {
			most = before
		}
		for i := range cut {
			share := (int64(limit.Requests) - seen[i]) / int64(n)
			if own[i] > share {
				t.Errorf("process %d of %d saw %d of %d hits, and admitted %d; its share is %d", i, n, seen[i], limit.Requests, own[i], share)
			}
			most += share
		}
		if total > most {
			t.Errorf("%d processes, %d cut off: %d hits were admitted; the bound is %d", n, cut, total, most)
		}
		beyond += max(0, total-int64(limit.Requests))
		f.are(up)
		f.flush()
		c := store.Charge{Key: []byte("key"), Limit: limit}
		if count := f.hub.count(&c); int64(count) != total {
			t.Errorf("%d hits are counted in the end; want all %d", count, total)
		}
	})
	if beyond == 0 {
		t.Error("no fleet admitted more than its limit: the schedules show nothing")
	}
}
