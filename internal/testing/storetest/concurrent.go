package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func concurrentCases() []Case {
	return []Case{
		{"64_goroutines_on_one_key_admit_exactly_the_limit", oneKeyConcurrently},
		{"64_goroutines_on_crossing_pairs_admit_exactly_the_limit", crossingPairs},
		{"concurrent_charges_and_refunds_balance", chargesAndRefunds},
	}
}

const goroutines = 64

// storm runs work on many goroutines at once and waits for all.
func storm(work func(worker int)) {
	var begin, all sync.WaitGroup
	begin.Add(1)
	for w := range goroutines {
		all.Go(func() {
			begin.Wait()
			work(w)
		})
	}
	begin.Done()
	all.Wait()
}

func oneKeyConcurrently(t *testing.T, e Env) {
	requests := race.Scale(1000)
	for _, a := range EveryRate() {
		c := charge("hot", limit(a, uint32(requests)))
		var admitted atomic.Int64
		storm(func(int) {
			decisions := make([]algorithms.Decision, 1)
			for range race.Scale(50) {
				if ok, err := store.Take(t.Context(), e.Store, []store.Charge{c}, decisions); err != nil {
					t.Errorf("Take failed: %v", err)
				} else if ok {
					admitted.Add(1)
				}
			}
		})
		if got := admitted.Load(); !e.exactly(got, int64(requests)) {
			t.Errorf("%v: %d admitted; want exactly %d", a, got, requests)
		}
	}
}

func crossingPairs(t *testing.T, e Env) {
	const keys = 8
	requests := race.Scale(300)
	for _, a := range EveryRate() {
		var admitted [keys]atomic.Int64
		storm(func(w int) {
			decisions := make([]algorithms.Decision, 3)
			for i := range race.Scale(50) {
				x, y, z := (w+i)%keys, (w+3*i+1)%keys, (w*5+i)%keys
				charges := make([]store.Charge, 3)
				for n, k := range []int{x, y, z} {
					charges[n] = charge(fmt.Sprintf("key %d", k), limit(a, uint32(requests)))
					charges[n].Rule = n
				}
				ok, err := store.Take(t.Context(), e.Store, charges, decisions)
				if err != nil {
					t.Errorf("Take failed: %v", err)
				} else if ok {
					for _, k := range []int{x, y, z} {
						admitted[k].Add(1)
					}
				}
			}
		})
		for k := range admitted {
			got := admitted[k].Load()
			left := e.remaining(t, charge(fmt.Sprintf("key %d", k), limit(a, uint32(requests))))
			if !e.exactly(got+int64(left), int64(requests)) {
				t.Errorf("%v: key %d admitted %d and has %d left; want %d together", a, k, got, left, requests)
			}
		}
	}
}

func chargesAndRefunds(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		storm(func(w int) {
			decisions := make([]algorithms.Decision, 1)
			c := charge("shared", limit(a, goroutines))
			for range race.Scale(20) {
				c.Hits = 1
				ok, err := store.Take(t.Context(), e.Store, []store.Charge{c}, decisions)
				if err != nil || !ok && !e.InAdvance {
					t.Errorf("%v: worker %d was denied though each gives its hits back: %v", a, w, err)
				}
				if !ok {
					continue
				}
				c.Hits = -1
				if _, err := store.Take(t.Context(), e.Store, []store.Charge{c}, decisions); err != nil {
					t.Errorf("refund failed: %v", err)
				}
			}
		})
		if e.InAdvance {
			e.Sleep(2 * time.Second) // hits that were taken in advance go back
		}
		e.wantRemaining(t, charge("shared", limit(a, goroutines)), goroutines)
	}
}
