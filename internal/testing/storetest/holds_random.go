package storetest

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/weirproxy/weir/internal/testing/race"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func holdRandomCases() []Case {
	return []Case{
		{"64_goroutines_begin_and_end_and_never_hold_more_than_the_limit", neverMoreThanTheLimit},
		{"64_goroutines_that_repeat_begins_admit_exactly_the_limit", repeatsConcurrently},
		{"64_goroutines_that_repeat_begins_and_ends_charge_the_true_cost", trueCostConcurrently},
		{"holders_taken_together_are_held_exactly", holdersTogether},
		{"random_holders_are_decided_as_a_plain_second_store_decides_them", func(t *testing.T, e Env) { asModel(t, e, randomHolds, true) }},
		{"random_holders_taken_together_are_decided_as_alone", func(t *testing.T, e Env) { togetherAsModel(t, e, randomHolds) }},
		{"random_hits_that_come_back_are_those_of_a_plain_second_store", func(t *testing.T, e Env) { asModel(t, e, randomReturns, true) }},
		{"random_hits_that_come_back_do_so_once_of_holders_taken_together", func(t *testing.T, e Env) { togetherAsModel(t, e, randomReturns) }},
	}
}

// one takes a transaction of one charge from any goroutine, and reports whether the store admits
// it.
func (e Env) one(t *testing.T, c store.Charge) bool {
	decisions := make([]algorithms.Decision, 1)
	ok, err := store.Take(t.Context(), e.Store, []store.Charge{c}, decisions)
	if err != nil {
		t.Errorf("Take failed: %v", err)
	}
	return ok
}

func neverMoreThanTheLimit(t *testing.T, e Env) {
	const most = 7
	l := held(algorithms.Concurrency, most)
	var inside, highest, admitted atomic.Int64
	storm(func(w int) {
		for i := range race.Scale(50) {
			holder := fmt.Sprint(w, i)
			if !e.one(t, begin("hot", l, holder, 1)) {
				continue
			}
			now := inside.Add(1)
			for seen := highest.Load(); now > seen && !highest.CompareAndSwap(seen, now); seen = highest.Load() {
			}
			admitted.Add(1)
			e.one(t, begin("hot", l, holder, 1))
			inside.Add(-1)
			e.one(t, end("hot", l, holder, 1))
			e.one(t, end("hot", l, holder, 1))
		}
	})
	if highest.Load() > most || admitted.Load() < most {
		t.Errorf("%d were held at the same time, and %d in all; want at most %d, and more than that", highest.Load(), admitted.Load(), most)
	}
	e.wantRemaining(t, charge("hot", l), most)
}

func repeatsConcurrently(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		holders := 8 * race.Scale(25)
		requests := holders / 2
		l := held(a, uint32(requests))
		admitted := make([]atomic.Bool, holders)
		storm(func(w int) {
			for i := range holders / 8 { // each holder begins 8 times
				n := (w*13 + i) % holders
				if e.one(t, begin("hot", l, fmt.Sprint(n), 1)) {
					admitted[n].Store(true)
				}
			}
		})
		got := 0
		for n := range admitted {
			if admitted[n].Load() {
				got++
				e.one(t, end("hot", l, fmt.Sprint(n), 0))
			}
		}
		if got != requests {
			t.Errorf("%v: %d holders were admitted; want exactly %d", a, got, requests)
		}
		e.wantRemaining(t, charge("hot", l), uint64(requests))
	})
}

func trueCostConcurrently(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, rate bool) {
		const requests = 9000
		l := held(a, requests)
		var cost atomic.Int64
		storm(func(w int) {
			for i := range race.Scale(10) {
				holder, hits := fmt.Sprint(w, i), int64((w+i)%5) // the estimate is 2
				for range 2 {
					if !e.one(t, begin("hot", l, holder, 2)) {
						t.Errorf("%v: a begin was denied", a)
					}
				}
				e.one(t, end("hot", l, holder, hits))
				e.one(t, end("hot", l, holder, hits+1))
				if rate {
					cost.Add(hits)
				}
			}
		})
		e.wantRemaining(t, charge("hot", l), requests-uint64(cost.Load()))
	})
}

func holdersTogether(t *testing.T, e Env) {
	everyHold(t, func(a algorithms.Algorithm, _ bool) {
		l := held(a, 20)
		var begins, ends []store.Transaction
		for i := range 60 { // 30 holders begin twice
			begins = append(begins, transaction(t.Context(), begin("shared", l, fmt.Sprint(i/2), 1)))
		}
		e.takeAll(t, begins)
		admitted := 0
		for i := range begins {
			if begins[i].Err != nil {
				t.Fatalf("%v: transaction %d failed: %v", a, i, begins[i].Err)
			}
			if begins[i].Admitted && begins[i].Charges[0].Hold.Was.Status != algorithms.HoldHeld {
				admitted++
			}
			ends = append(ends, transaction(t.Context(), end("shared", l, fmt.Sprint(i/2), 0)))
		}
		if admitted != 20 {
			t.Errorf("%v: %d holders were admitted; want exactly 20", a, admitted)
		}
		e.takeAll(t, ends)
		e.wantRemaining(t, charge("shared", l), 20)
	})
}
