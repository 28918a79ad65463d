package shared

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// A limit gets 1.6 times its hits. In an outage four processes go on as one would, from the first
// second on.
func TestAFullKeyStaysInUseWhenAnOutageBegins(t *testing.T) {
	const n, all, rate, seconds = 4, 200, 320, 3
	for _, a := range algorithms.RateAlgorithms() {
		for _, weights := range [][n]int{{1, 1, 1, 1}, {7, 1, 1, 1}} {
			if weights[0] > 1 && (a == algorithms.TokenBucketInteger || a == algorithms.SlidingWindowCounter) {
				continue // costs are whole hits
			}
			t.Run(fmt.Sprint(a, weights), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := rand.New(rand.NewPCG(1, 12))
					f, end := newFleet(t, r, n, 0)
					defer end()
					f.share = shares(weights[:])
					midnight()
					limit := algorithms.Limit{Algorithm: a, Requests: all, Period: time.Second}
					judged := newHub(0)
					begun := time.Now()
					var admitted, over [2 * seconds]int
					for i := 0; ; i++ {
						at := time.Duration(i) * time.Second / rate
						time.Sleep(time.Until(begun.Add(at)))
						second := int(at / time.Second)
						if second == 2*seconds {
							break
						}
						if second == seconds && f.links[0].is.Load() != down {
							f.show(t, limit)
							f.are(down)
						}
						c := store.Charge{Key: []byte("key"), Limit: limit, Hits: 1}
						if is, _ := f.take(t, f.procs[weighted(r, weights[:])], []store.Charge{c}, false); is {
							admitted[second]++
							c.Limit = oracle(limit)
							if !judged.keys.Take([]store.Charge{c}, judged.now()).Admitted {
								over[second]++
							}
						}
					}
					t.Logf("admitted %v, over %v", admitted, over)
					for second, hits := range admitted[seconds:] {
						if hits < all*96/100 {
							t.Errorf("%d of %d hits were admitted in second %d of the outage", hits, all, second)
						}
						if over[seconds+second] > 0 {
							t.Errorf("%d hits were too many in second %d of the outage", over[seconds+second], second)
						}
					}
				})
			})
		}
	}
}

// A limit gets 1.6 times its hits, so a log admits them in a part of each second. An outage may
// begin in the middle of that part. Hits then expire one after the other, and each process sees
// them expire a cell late.
func TestALogStaysInUseWheneverAnOutageBegins(t *testing.T) {
	const n, all, rate = 4, 200, 320
	limit := algorithms.Limit{Algorithm: algorithms.SlidingWindowLog, Requests: all, Period: time.Second}
	for tenth := range 10 {
		synctest.Test(t, func(t *testing.T) {
			f, end := newFleet(t, nil, n, 0)
			defer end()
			for _, k := range f.links {
				k.delay = 300 * time.Microsecond
			}
			midnight()
			admitted, begun, outage := 0, time.Now(), 2*time.Second+time.Duration(tenth)*time.Second/10
			for i := 0; ; i++ {
				at := time.Duration(i) * time.Second / rate
				time.Sleep(time.Until(begun.Add(at)))
				if at >= outage {
					f.are(down)
				}
				if at >= outage+time.Second {
					break
				}
				is, _ := f.take(t, f.procs[i%n], []store.Charge{{Key: []byte("key"), Limit: limit, Hits: 1}}, false)
				if is && at >= outage {
					admitted++
				}
			}
			if admitted < all*89/100 || admitted > all {
				t.Errorf("an outage after %v: %d of %d hits were admitted in its first second", outage, admitted, all)
			}
		})
	}
}

// shares gives each process an arc by its weight.
func shares(weights []int) func(i int) store.Share {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	return func(i int) store.Share {
		before := 0
		for _, w := range weights[:i] {
			before += w
		}
		return store.Share{From: arc(before, sum), To: arc(before+weights[i], sum)}
	}
}

// weighted returns a number by the weights.
func weighted(r *rand.Rand, weights []int) (i int) {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	for at := r.IntN(sum); at >= weights[i]; i++ {
		at -= weights[i]
	}
	return i
}
