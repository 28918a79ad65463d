package shared

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/model"
	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// running is a request that has begun, admitted or not.
type running struct {
	process  int
	charges  []store.Charge // of its begin
	admitted bool
	decided  []algorithms.Decision
	ends     time.Time // at the latest
}

// end returns the charges of the end, of a true cost for each.
func (q *running) end(cost func() int64) []store.Charge {
	var all []store.Charge
	for i := range q.charges {
		c := owned(&q.charges[i])
		c.Hold.Phase, c.Hits = algorithms.HoldEnd, cost()
		all = append(all, c)
	}
	return all
}

// beginOf returns a begin of a new holder. Numbers make names.
func beginOf(number *int, c store.Charge, atMost time.Duration) store.Charge {
	c.Hold = &store.Hold{Phase: algorithms.HoldBegin, Holder: store.HolderOf(fmt.Append(nil, *number)), AtMost: atMost}
	return c
}

// The truth is the cost of the requests that were admitted, and nothing else.
func TestHoldersAreChargedTheTruthAroundOutages(t *testing.T) {
	begun, denied := 0, 0
	inOutages(t, race.Scale(80), func(t *testing.T, r *rand.Rand) {
		n := 1 + r.IntN(4)
		f, closeAll := newFleet(t, r, n, 0)
		defer closeAll()
		midnight()
		algorithm := []algorithms.Algorithm{
			algorithms.FixedWindow, algorithms.SlidingWindowCounter, algorithms.TokenBucket, algorithms.Concurrency,
		}[r.IntN(4)]
		want, number, active := map[model.Name]int64{}, 0, []*running{}
		charges := map[model.Name]store.Charge{}
		for step := range 400 {
			if r.IntN(10) == 0 {
				f.links[r.IntN(n)].is.Store(r.Int32N(3))
			}
			if r.IntN(60) == 0 {
				f.are(r.Int32N(3))
			}
			time.Sleep(time.Duration(r.Int64N(int64(200 * time.Millisecond))))
			if len(active) > 0 && (r.IntN(2) == 0 || step > 300) {
				i := r.IntN(len(active))
				q := active[i]
				active = append(active[:i], active[i+1:]...)
				for i, c := range q.end(func() int64 { return r.Int64N(12) }) {
					f.take(t, f.procs[q.process], []store.Charge{c}, r.IntN(2) == 0)
					if q.admitted && q.decided[i].Allowed {
						want[model.NameOf(&c)] += c.Hits
					}
				}
				continue
			}
			number++
			q := &running{process: r.IntN(n)}
			for i := range 1 + r.IntN(2) {
				key := 2*r.IntN(2) + i
				c := beginOf(&number, store.Charge{
					Key: fmt.Append(nil, "key ", key), Hits: 1 + r.Int64N(9), Rule: i, Mode: []store.Mode{store.Enforce, store.Enforce, store.Shadow}[r.IntN(3)],
					Limit: algorithms.Limit{Algorithm: algorithm, Requests: uint32(100 + 400*key), Period: 24 * time.Hour},
				}, time.Hour)
				switch c.Limit.Algorithm {
				case algorithms.TokenBucket:
					c.Limit.Period = algorithms.MaxPeriod // no hit comes back in the time of the test
				case algorithms.Concurrency:
					c.Limit.Period, c.Limit.Requests = 0, uint32(n+30*(key+1))
				default:
				}
				if r.IntN(5) == 0 {
					c.OnError = store.OnErrorDeny
				}
				if r.IntN(2) == 0 {
					c.Left = new(store.State)
				}
				charges[model.NameOf(&c)] = c
				q.charges = append(q.charges, c)
			}
			q.admitted, q.decided = f.take(t, f.procs[q.process], q.charges, r.IntN(2) == 0)
			for i := range q.charges {
				if begun++; !q.admitted || !q.decided[i].Allowed {
					denied++
				}
			}
			active = append(active, q)
		}
		f.are(up)
		for _, q := range active {
			for i, c := range q.end(func() int64 { return 7 }) {
				f.take(t, f.procs[q.process], []store.Charge{c}, false)
				if q.admitted && q.decided[i].Allowed {
					want[model.NameOf(&c)] += c.Hits
				}
			}
		}
		f.flush()
		for key, c := range charges {
			d := f.hub.probe(&c)
			got := int64(c.Limit.Capacity() - d.Remaining)
			want := min(want[key], int64(c.Limit.Requests))
			if algorithm == algorithms.Concurrency {
				want = 0 // the slots are free at once
			}
			if got != want {
				t.Errorf("%v: %d hits are counted, want %d of %d", key, got, want, c.Limit.Requests)
			}
		}
	})
	if t.Logf("%d begins, %d denied", begun, denied); denied < begun/20 || denied > begun/2 {
		t.Errorf("%d of %d begins were denied: the schedules show little", denied, begun)
	}
}

// slotsOf returns the slots that are held at a moment.
func slotsOf(active []*running) (held int64) {
	for _, q := range active {
		if q.admitted && time.Now().Before(q.ends) {
			held += q.charges[0].Hits
		}
	}
	return held
}

// Processes that are cut off together, after they have seen the same slots, hold no more slots than
// there are.
func TestHoldersNeverHaveMoreSlotsThanThereAreAroundAnOutage(t *testing.T) {
	without, over, all := 0, 0, 0
	inOutages(t, race.Scale(80), func(t *testing.T, r *rand.Rand) {
		n := 2 + r.IntN(4)
		f, closeAll := newFleet(t, r, n, 0)
		defer closeAll()
		midnight()
		limit := algorithms.Limit{Algorithm: algorithms.Concurrency, Requests: uint32(n + r.IntN(30))}
		atMost := time.Duration(1+r.IntN(20)) * time.Second
		number, active := 0, []*running{}
		work := func(steps int) {
			for range steps {
				time.Sleep(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
				if len(active) > 0 && r.IntN(2) == 0 {
					i := r.IntN(len(active))
					q := active[i]
					active = append(active[:i], active[i+1:]...)
					if r.IntN(5) > 0 { // else the end is lost
						f.take(t, f.procs[q.process], q.end(func() int64 { return 1 }), r.IntN(2) == 0)
						continue
					}
					q.charges = nil
					continue
				}
				number++
				q := &running{process: r.IntN(n), ends: time.Now().Add(atMost)}
				q.charges = []store.Charge{beginOf(&number, store.Charge{Key: []byte("key"), Limit: limit, Hits: 1 + r.Int64N(3)}, atMost)}
				decided := f.procs[q.process].Stats().Without
				q.admitted, _ = f.take(t, f.procs[q.process], q.charges, r.IntN(2) == 0)
				if active = append(active, q); q.admitted {
					without += int(f.procs[q.process].Stats().Without - decided)
				}
				all++
				switch held := slotsOf(active); {
				case !q.admitted || held <= int64(limit.Requests):
				case f.links[0].is.Load() == up:
					over++
				default:
					t.Errorf("%d slots of %d are held in the outage", held, limit.Requests)
				}
			}
		}
		work(50)
		f.show(t, limit)
		f.are(down)
		work(100 + r.IntN(300))
		f.are(up)
		var tells []time.Time // when each process tells its holders, if it does not ask before
		for range f.links {
			tells = append(tells, time.Now().Add(time.Duration(r.Int64N(int64(defaultMaxOpen)))))
		}
		for range 300 {
			work(1)
			for i, at := range tells {
				if time.Now().After(at) {
					f.links[i].flush()
				}
			}
		}
		for _, q := range active {
			if q.charges != nil {
				f.take(t, f.procs[q.process], q.end(func() int64 { return 1 }), false)
			}
		}
		time.Sleep(atMost)
		c := store.Charge{Key: []byte("key"), Limit: limit}
		if used := f.hub.slots(&c); used > 0 {
			t.Errorf("%d slots are held after the holders have run out", used)
		}
	})
	// A process that finds out last still has its share when the first ones ask again.
	if t.Logf("%d of %d begins were one too many on the way back", over, all); over > all/200 {
		t.Errorf("%d of %d begins were one too many on the way back, want one of 200 at most", over, all)
	}
	if without == 0 {
		t.Error("nothing was held without the primary: the schedules show nothing")
	}
}
