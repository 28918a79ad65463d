package shared

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// outages is the number of schedules of each property: WEIR_OUTAGES, or n.
func outages(n int) uint64 {
	if chosen, err := strconv.ParseUint(os.Getenv("WEIR_OUTAGES"), 10, 32); err == nil {
		return chosen
	}
	return uint64(n)
}

// inOutages runs a test in a bubble for each of n seeds.
func inOutages(t *testing.T, n int, test func(t *testing.T, r *rand.Rand)) {
	t.Helper()
	for seed := range outages(n) {
		synctest.Test(t, func(t *testing.T) {
			t.Helper()
			test(t, rand.New(rand.NewPCG(seed, 12)))
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// fleetLimit returns a limit that has a hit for each process.
func fleetLimit(r *rand.Rand, a algorithms.Algorithm, n int) algorithms.Limit {
	l := algorithms.Limit{Algorithm: a, Requests: uint32(n + r.IntN(60)), Period: time.Minute}
	if a == algorithms.TokenBucket && r.IntN(2) == 0 {
		l.Burst = uint32(n + r.IntN(90))
	}
	return l
}

// oracle returns the limit by which the hits of a whole fleet are judged. A bucket in whole tokens
// gains late, and each process for itself.
func oracle(l algorithms.Limit) algorithms.Limit {
	if l.Algorithm == algorithms.TokenBucketInteger {
		return algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: l.Requests, Period: l.Period, Extra: algorithms.Extra{Burst: l.Requests + 1}}
	}
	return l
}

func TestAFleetThatIsCutOffAdmitsNoMoreThanWasLeft(t *testing.T) {
	for _, a := range append(algorithms.RateAlgorithms(), algorithms.CalendarAlgorithms()...) {
		t.Run(a.String(), func(t *testing.T) {
			admittedInAll, possible := 0, 0
			inOutages(t, race.Scale(80), func(t *testing.T, r *rand.Rand) {
				n := 1 + r.IntN(6)
				f, end := newFleet(t, r, n, time.Duration(r.Int64N(int64(2*time.Minute))))
				defer end()
				synctest.Wait()
				limit := fleetLimit(r, a, n)
				judged := newHub(f.hub.ahead) // all hits that were admitted, under the limit of the oracle
				ask := func(hits int64) (admitted bool) {
					c := store.Charge{Key: []byte("key"), Limit: limit, Hits: hits}
					s := f.procs[r.IntN(n)]
					admitted, d := f.take(t, s, []store.Charge{c}, r.IntN(2) == 0)
					if !admitted {
						return false
					}
					c.Limit = oracle(limit)
					if j := judged.keys.Take([]store.Charge{c}, judged.now()); !j.Admitted {
						t.Fatalf("%+v, %d processes: %d hits are too many: %+v, judged %+v", limit, n, hits, d, j)
					}
					if f.links[0].is.Load() == down {
						admittedInAll++
					}
					return true
				}
				pause := func() { time.Sleep(time.Duration(r.Int64N(int64(limit.Period)/int64(limit.Requests+1)*3 + 1))) }
				for range r.IntN(3 * int(limit.Requests)) {
					ask(int64(r.IntN(3)))
					pause()
				}
				f.show(t, limit)
				f.are(down)
				for range 4 * int(limit.Requests) {
					if ask(int64(1+r.IntN(2))) || r.IntN(4) > 0 {
						possible++
						continue
					}
					pause()
				}
			})
			if admittedInAll < int(outages(race.Scale(80))) {
				t.Errorf("%d of %d requests were admitted in all outages: too few to show anything", admittedInAll, possible)
			}
		})
	}
}

func TestEveryHitOfAnOutageIsCountedWhenThePrimaryIsBack(t *testing.T) {
	inOutages(t, race.Scale(80), func(t *testing.T, r *rand.Rand) {
		n := 1 + r.IntN(4)
		f, end := newFleet(t, r, n, 0)
		defer end()
		midnight()
		want, later := map[model.Name]int64{}, 0
		for range 300 {
			if r.IntN(10) == 0 {
				f.links[r.IntN(n)].is.Store(r.Int32N(3))
			}
			if r.IntN(60) == 0 {
				f.are(r.Int32N(3))
			}
			time.Sleep(time.Duration(r.Int64N(int64(200 * time.Millisecond))))
			charges := make([]store.Charge, 1+r.IntN(3))
			for i := range charges {
				key := r.IntN(4)
				charges[i] = store.Charge{
					Key: fmt.Append(nil, "key ", key), Hits: int64(r.IntN(4)), Rule: i, Mode: store.Mode(r.IntN(4)),
					Limit:         algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: uint32(20 + 60*key), Period: 24 * time.Hour},
					CountRejected: r.IntN(3) == 0,
				}
				if r.IntN(2) == 0 {
					charges[i].Left = new(store.State)
				}
			}
			admitted, decisions := f.take(t, f.procs[r.IntN(n)], charges, r.IntN(2) == 0)
			for i := range charges {
				want[model.NameOf(&charges[i])] += appliedHits(&charges[i], decisions[i], admitted)
			}
		}
		for _, k := range f.links {
			k.flush()
			later += k.later
		}
		if later == 0 && n > 1 {
			t.Log("no hit was carried back")
		}
		for key, hits := range want {
			if _, got, _ := f.hub.keys[key].State.Parts(); int64(got) != hits {
				t.Errorf("%v: %d hits are counted, want %d", key, got, hits)
			}
		}
	})
}

func TestALimitOfADayLastsADayAlsoAroundAnOutage(t *testing.T) {
	inOutages(t, race.Scale(80), func(t *testing.T, r *rand.Rand) {
		n := 2 + r.IntN(5)
		f, end := newFleet(t, r, n, 0)
		defer end()
		midnight()
		limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: uint32(n * (100 + r.IntN(300))), Period: 24 * time.Hour}
		if r.IntN(2) == 0 {
			limit.Algorithm = algorithms.SlidingWindowCounter
		}
		total := uint32(0)
		flood := func(requests int) {
			for range requests {
				c := store.Charge{Key: []byte("key"), Limit: limit, Hits: int64(1 + r.IntN(2))}
				if admitted, _ := f.take(t, f.procs[r.IntN(n)], []store.Charge{c}, r.IntN(2) == 0); admitted {
					total += uint32(c.Hits)
				}
				time.Sleep(time.Duration(r.Int64N(int64(5 * time.Millisecond))))
			}
		}
		for range 3 {
			flood(r.IntN(int(limit.Requests)) / 4)
			f.show(t, limit)
			f.are(down)
			flood(r.IntN(2 * int(limit.Requests)))
			f.are(up)
			f.flush()
			// A ping may come late by the longest interval, and single requests try the store for the
			// shortest one. Limits are divided for as long as the slack and an interval after that.
			time.Sleep(2*defaultMaxOpen + defaultMinOpen + tellingSlack)
			synctest.Wait()
		}
		flood(2 * int(limit.Requests))
		if total > limit.Requests || total < limit.Requests-1 {
			t.Errorf("%+v, %d processes: %d hits were admitted", limit, n, total)
		}
	})
}

// When the primary is back, each process finds that out at a moment of its own, and tells its hits
// then. A process that has found it out before must not admit these hits once more.
func TestTheRestIsNotUsedBeforeAllProcessesHaveToldTheirHits(t *testing.T) {
	over, all := uint32(0), uint32(0)
	inOutages(t, race.Scale(80), func(t *testing.T, r *rand.Rand) {
		n := 2 + r.IntN(5)
		f, end := newFleet(t, r, n, 0)
		defer end()
		midnight()
		limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: uint32(n * (100 + r.IntN(300))), Period: 24 * time.Hour}
		total := uint32(0)
		var told []time.Time // when each process tells its hits, if it does not ask before
		flood := func(requests int) {
			for range requests {
				for i, at := range told {
					if time.Now().After(at) {
						f.links[i].flush()
					}
				}
				c := store.Charge{Key: []byte("key"), Limit: limit, Hits: 1}
				if admitted, _ := f.take(t, f.procs[r.IntN(n)], []store.Charge{c}, r.IntN(2) == 0); admitted {
					total++
				}
				time.Sleep(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
			}
		}
		flood(int(limit.Requests) / 4)
		f.show(t, limit)
		f.are(down)
		flood(int(limit.Requests)/2 + r.IntN(int(limit.Requests)/2))
		for range f.links {
			told = append(told, time.Now().Add(time.Duration(r.Int64N(int64(defaultMaxOpen)))))
		}
		f.are(up)
		flood(2 * int(limit.Requests))
		if total < limit.Requests-1 {
			t.Errorf("%+v, %d processes: %d hits were admitted", limit, n, total)
		}
		over, all = over+total-min(total, limit.Requests), all+limit.Requests
	})
	// A process that finds out last still has its share when the first ones use the rest.
	if t.Logf("%d of %d hits were too many", over, all); over > max(all/1000, 20) {
		t.Errorf("%d of %d hits were too many, want a thousandth, or 20, at most", over, all)
	}
}

// While one process is cut off alone, the others admit the whole limit. Hits of the one come on
// top: its part, in each window.
func TestTheOthersAdmitTheWholeLimitWhenOneIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, all, windows = 4, 200, 12
		f, end := newFleet(t, nil, n, 0)
		defer end()
		midnight()
		limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: all, Period: time.Second}
		f.show(t, limit)
		f.links[0].is.Store(down)
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
		for window := range windows {
			var admitted [n]int
			for i := range 2 * n * all {
				c := store.Charge{Key: []byte("key"), Limit: limit, Hits: 1}
				if is, _ := f.take(t, f.procs[i%n], []store.Charge{c}, false); is {
					admitted[i%n]++
				}
				time.Sleep(time.Second / (2 * n * all))
			}
			if others := admitted[1] + admitted[2] + admitted[3]; others != all || admitted[0] != all/n {
				t.Errorf("second %d: the one that is cut off admitted %d, the others %d; want %d and %d",
					window, admitted[0], others, all/n, all)
			}
		}
	})
}

// A process that is cut off admits at most its share of the hits it has not seen. The connected
// processes admit the whole rest of the limit. So the fleet admits too many by at most the shares
// of all processes that are cut off. If all are cut off nobody admits the rest, and only the hits
// that some have not seen count twice.
func TestAProcessThatIsCutOffAdmitsItsShareOfWhatItHasSeen(t *testing.T) {
	beyond := int64(0)
	inOutages(t, race.Scale(80), func(t *testing.T, r *rand.Rand) {
		n := 1 + r.IntN(6)
		f, end := newFleet(t, r, n, 0)
		defer end()
		midnight()
		limit, hit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: uint32(n + r.IntN(500)), Period: 24 * time.Hour}, int64(1)
		requests := int(limit.Requests)
		switch r.IntN(3) {
		case 0:
			limit.Algorithm = algorithms.SlidingWindowCounter
		case 1: // above the hits of one charge
			hit = 100_000_001
			limit.SetPerPeriod(uint64(requests) * uint64(hit))
		}
		seen, alone := make([]int64, n), make([]int64, n) // hits of the key as each process saw it last; admitted since without the hub
		total := int64(0)
		ask := func(i int) {
			c := store.Charge{Key: []byte("key"), Limit: limit, Hits: int64(1+r.IntN(3)) * hit}
			admitted, _ := f.take(t, f.procs[i], []store.Charge{c}, r.IntN(2) == 0)
			connected := f.links[i].is.Load() == up
			if admitted {
				total += c.Hits
				if !connected {
					alone[i] += c.Hits
				}
			}
			if connected {
				count := f.hub.count(&c)
				seen[i] = count
			}
			time.Sleep(time.Millisecond)
		}
		for range r.IntN(requests) {
			ask(r.IntN(n))
		}
		before, cut := total, 1+r.IntN(n)
		for i := range cut {
			f.links[i].is.Store(down)
		}
		for range 2 * requests {
			ask(r.IntN(n))
		}
		all := int64(limit.PerPeriod())
		most := all
		if cut == n {
			most = before
		}
		for i := range cut {
			mine := own(&store.Charge{Key: []byte("key"), Limit: limit}, store.Share{From: arc(i, n), To: arc(i+1, n)})
			high, low := bits.Mul64(uint64(all-seen[i]), mine)
			part, _ := bits.Div64(high, low, uint64(all))
			share := int64(part)
			if alone[i] > share {
				t.Errorf("process %d of %d saw %d of %d hits, and admitted %d; its share is %d", i, n, seen[i], all, alone[i], share)
			}
			most += share
		}
		if total > most {
			t.Errorf("%d processes, %d cut off: %d hits were admitted; the bound is %d", n, cut, total, most)
		}
		beyond += max(0, (total-all)/hit)
		f.are(up)
		f.flush()
		c := store.Charge{Key: []byte("key"), Limit: limit}
		if count := f.hub.count(&c); count != total {
			t.Errorf("%d hits are counted in the end; want all %d", count, total)
		}
	})
	if beyond == 0 {
		t.Error("no fleet admitted more than its limit: the schedules show nothing")
	}
}

// The local store has no hits of leases. So the local store must go on from each lease, or an
// outage would begin with the share of a full key.
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
