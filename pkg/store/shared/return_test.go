package shared

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/test/promise"
)

// beats is how the processes of a fleet learn, one after the other, that all have told their hits.
type beats struct {
	f    *fleet
	told []bool // process i has told its hits since the store was away
}

func newBeats(f *fleet) *beats {
	return &beats{f: f, told: make([]bool, len(f.procs))}
}

// beat lets process i tell its hits, and learn of the others.
func (b *beats) beat(i int) {
	b.told[i] = b.f.procs[i].State() == Closed
	if b.told[i] {
		b.f.links[i].flush()
	}
	b.f.told[i].Store(!slices.Contains(b.told, false))
}

// One process has told its hits, and the next one has not. Then a bucket gains twice: in the store,
// and in the hits that are owed. And the first process that learns of all uses the whole limit,
// while the last one still uses its part.
func TestAReturnAtDifferentMomentsAdmitsLittleTooMuch(t *testing.T) {
	const n, outages, rate = 4, 8, 320
	for _, a := range []algorithms.Algorithm{algorithms.TokenBucket, algorithms.TokenBucketInteger} {
		t.Run(a.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, end := newFleet(t, rand.New(rand.NewPCG(1, 1)), n, 0)
				defer end()
				midnight()
				limit := algorithms.Limit{Algorithm: a, Requests: 200, Period: time.Second}
				limit.Burst = map[algorithms.Algorithm]uint32{algorithms.TokenBucket: limit.Requests}[a]
				b := newBeats(f)
				var history []promise.Request
				for began, step := time.Now(), 0; step < outages*2*rate; step++ {
					if step%rate == 0 { // each second
						f.are([]condition{up, down}[step/rate%2])
					}
					for i := range n {
						if step%(rate/10) == i*7 {
							b.beat(i)
						}
					}
					at := time.Now().UnixNano()
					admitted, _ := f.take(t, f.procs[step%n], []store.Charge{{Key: []byte("key"), Limit: limit, Hits: 1}}, true)
					history = append(history, promise.Request{Sent: at, Received: at, Keys: []int{0}, Admitted: admitted})
					time.Sleep(time.Until(began.Add(time.Duration(step+1) * time.Second / rate)))
				}
				c := promise.Judge([]algorithms.Limit{limit}, history, 0)[0]
				if most := outages * 8; c.Over > most || c.Admitted < c.Expected {
					t.Errorf("%+v; want %d over at most, and as many admitted as expected", c, most)
				}
			})
		})
	}
}

// The first process has learned that all have told their hits, and uses the rest. The other one has
// not, and has its part: it admits no hit that is used.
func TestAProcessThatLearnsLastAdmitsNothingThatTheFirstOneHasUsed(t *testing.T) {
	for _, a := range algorithms.RateAlgorithms() {
		t.Run(a.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, end := newFleet(t, rand.New(rand.NewPCG(1, 1)), 2, 0)
				defer end()
				midnight()
				limit := algorithms.Limit{Algorithm: a, Requests: 100, Period: 24 * time.Hour}
				f.show(t, limit)
				total := 0
				take := func(i, times int) (admitted int) {
					for range times {
						if is, _ := f.take(t, f.procs[i], []store.Charge{{Key: []byte("key"), Limit: limit, Hits: 1}}, true); is {
							admitted++
						}
					}
					total += admitted
					return admitted
				}
				f.are(down)
				take(0, 20)
				take(1, 20)
				time.Sleep(3 * time.Second)
				f.are(up)
				for f.procs[0].State() != Closed || f.procs[1].State() != Closed {
					time.Sleep(time.Millisecond)
				}
				f.told[0].Store(true)
				f.flush()
				if got := take(1, 5); got != 5 {
					t.Errorf("of its part the second process admits %d of 5", got)
				}
				take(0, 100)
				if got := take(1, 30); got > 0 || total > 100 || total < 99 {
					t.Errorf("the second process admits %d of the hits that the first one has used; %d of 100 in all", got, total)
				}
			})
		})
	}
}
