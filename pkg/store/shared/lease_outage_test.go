package shared

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// The local store has no hits of leases. So the local store must go on from each lease, or an outage would
// begin with the share of a full key.
func TestAnOutageGoesOnFromTheHitsOfLeases(t *testing.T) {
	fromLeases := uint64(0)
	for seed := range uint64(race.Scale(100)) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 12))
			n := 1 + r.IntN(4)
			f, end := newFleet(t, r, n, 0)
			defer end()
			midnight()
			limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: uint32(500 + r.IntN(3000)), Period: 24 * time.Hour}
			total := int64(0)
			flood := func(requests int) {
				for range requests {
					charge := store.Charge{Key: []byte("key"), Limit: limit, Hits: 1}
					if admitted, _ := take(t, f.procs[r.IntN(n)], charge); admitted {
						total++
					}
					time.Sleep(time.Duration(r.Int64N(int64(2 * time.Millisecond))))
				}
			}
			flood(r.IntN(int(limit.Requests)))
			most := f.hub.count(&store.Charge{Key: []byte("key"), Limit: limit})
			for _, k := range f.links {
				most += (int64(limit.Requests) - k.seen) / int64(n)
			}
			f.are(down)
			flood(2 * int(limit.Requests))
			if total > most {
				t.Errorf("seed %d, %d processes: %d hits of %d were admitted; the bound is %d", seed, n, total, limit.Requests, most)
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
