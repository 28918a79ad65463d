package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// arrivals has requests of different keys come at random for a time, so many in a second. arrivals
// returns their number and the errors.
func arrivals(t *testing.T, s *Store, perSecond float64, during, deadline time.Duration) (n int, failed []error) {
	t.Helper()
	var mu sync.Mutex // guards failed
	n = atRandom(perSecond, during, func(n int) {
		ctx := t.Context()
		if deadline > 0 {
			var cancel func()
			ctx, cancel = context.WithTimeout(ctx, deadline)
			defer cancel()
		}
		c := hit(strconv.Itoa(n), perAge(algorithms.FixedWindow, 10))
		if _, err := store.Take(ctx, s, []store.Charge{c}, make([]algorithms.Decision, 1)); err != nil {
			mu.Lock()
			failed = append(failed, err)
			mu.Unlock()
		}
	})
	return n, failed
}

// atRandom calls request on goroutines for a time, at random, so many in a second. atRandom waits
// for all, and returns their number.
func atRandom(perSecond float64, during time.Duration, request func(n int)) int {
	var requests sync.WaitGroup
	random, n := newRand(uint64(perSecond)), 0
	for end := time.Now().Add(during); time.Now().Before(end); n++ {
		time.Sleep(time.Duration(random.ExpFloat64() * float64(time.Second) / perSecond))
		number := n
		requests.Go(func() { request(number) })
	}
	requests.Wait()
	return n
}

func between(r *rand.Rand, least, most time.Duration) func() time.Duration {
	return func() time.Duration { return least + time.Duration(r.Int64N(int64(most-least)+1)) }
}

func TestSlowRedisAnswersEveryRequestInTime(t *testing.T) {
	for _, test := range []struct {
		name        string
		least, most time.Duration
		deadline    time.Duration // of the callers
	}{
		{"6ms", 6 * time.Millisecond, 6 * time.Millisecond, 0},
		{"5ms to 9ms", 5 * time.Millisecond, 9 * time.Millisecond, 0},
		{"10ms to 14ms, callers with 20ms", 10 * time.Millisecond, 14 * time.Millisecond, 20 * time.Millisecond},
		{"30ms, callers with a second", 30 * time.Millisecond, 30 * time.Millisecond, time.Second},
	} {
		for _, perSecond := range []float64{100, 400, 1500, 6000} {
			t.Run(fmt.Sprintf("%s, %v per second", test.name, perSecond), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := &far{trip: between(newRand(1), test.least, test.most)}
					s := away(t, f, Options{})
					n, failed := arrivals(t, s, perSecond, time.Duration(min(4000, 2_000_000/perSecond))*time.Millisecond, test.deadline)
					if len(failed) > 0 {
						t.Errorf("%d of %d requests failed, the first: %v", len(failed), n, failed[0])
					}
					if most := f.most.Load(); most > mostFlights {
						t.Errorf("%d calls were under way at once", most)
					}
					t.Logf("%d requests in %d calls, at most %d at once", n, f.calls.Load(), f.most.Load())
				})
			})
		}
	}
}

func TestFastRedisHasFewCallsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var trip atomic.Int64
		trip.Store(int64(9 * time.Millisecond))
		f := &far{trip: func() time.Duration { return time.Duration(trip.Load()) }}
		s := away(t, f, Options{})
		arrivals(t, s, 2000, 100*time.Millisecond, 0) // Redis was slow
		trip.Store(int64(500 * time.Microsecond))
		arrivals(t, s, 2000, 100*time.Millisecond, 0)
		f.most.Store(0)
		before := f.calls.Load()
		n, failed := arrivals(t, s, 40_000, 100*time.Millisecond, 0)
		if len(failed) > 0 || f.most.Load() > atOnce {
			t.Errorf("%d requests failed, %d calls were under way at once; want at most %d", len(failed), f.most.Load(), atOnce)
		}
		if calls := f.calls.Load() - before; calls > atOnce*200*11/10 {
			t.Errorf("%d requests in %d calls; %d flights have 200 round trips of 500µs each in 100ms", n, calls, atOnce)
		}
	})
}

func TestWorkersOfASlowTimeEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{trip: func() time.Duration { return 9 * time.Millisecond }}
		s := away(t, f, Options{})
		arrivals(t, s, 6000, 200*time.Millisecond, 0)
		if most := f.most.Load(); most <= atOnce {
			t.Fatalf("at most %d calls were under way at once", most)
		}
		time.Sleep(time.Second)
		q := s.main.queue
		q.mu.Lock()
		defer q.mu.Unlock()
		if l := q.nodeQueueLocked(0); l.workers != 1 || l.idle != 1 || len(q.spare) >= mostFlights {
			t.Errorf("%d workers, of which %d wait, and spare memory for %d", l.workers, l.idle, len(q.spare))
		}
	})
}
