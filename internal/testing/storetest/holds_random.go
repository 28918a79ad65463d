package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
		{"random_holders_are_decided_as_a_plain_second_store_decides_them", holdersAgreeWithModel},
		{"random_holders_taken_together_are_decided_as_alone", holdersTogetherAgree},
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
		e.wantRemaining(t, charge("hot", l), uint32(requests))
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
		e.wantRemaining(t, charge("hot", l), requests-uint32(cost.Load()))
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

// randomHolds returns random charges, most of them with one of few holders.
func randomHolds(r *rand.Rand) []store.Charge {
	charges := randomCharges(r)
	for i := range charges {
		c := &charges[i]
		if r.IntN(3) == 0 {
			c.Limit = algorithms.Limit{Algorithm: algorithms.Concurrency, Requests: c.Limit.Requests}
		}
		if r.IntN(5) == 0 {
			continue
		}
		phases := []algorithms.HoldPhase{
			algorithms.HoldBegin, algorithms.HoldBegin, algorithms.HoldBegin, algorithms.HoldEnd, algorithms.HoldEnd, algorithms.HoldBegun, algorithms.HoldCancel,
		}
		atMosts := []time.Duration{time.Millisecond, time.Second, 10 * time.Second, time.Minute, time.Hour}
		c.Hold = &store.Hold{
			Phase:  phases[r.IntN(len(phases))],
			Holder: store.HolderOf([]byte{byte(r.IntN(4))}),
			AtMost: atMosts[r.IntN(len(atMosts))],
		}
	}
	return charges
}

// wases returns the holds that the charges found.
func wases(charges []store.Charge) []algorithms.Hold {
	all := make([]algorithms.Hold, len(charges))
	for i, c := range charges {
		if c.Hold != nil {
			all[i] = c.Hold.Was
		}
	}
	return all
}

func holdersAgreeWithModel(t *testing.T, e Env) {
	seed := uint64(20261123)
	r, m := rand.New(rand.NewPCG(seed, 1)), newModel()
	scale := []time.Duration{0, time.Millisecond, 100 * time.Millisecond, 7 * time.Second, 31 * time.Second, 5 * time.Minute}
	for step := range race.Scale(3000) {
		if pause := scale[r.IntN(len(scale))]; pause > 0 && r.IntN(3) == 0 {
			e.Sleep(pause + time.Duration(r.IntN(1000))*time.Microsecond)
		}
		charges, now := randomHolds(r), e.Now()
		switch r.IntN(20) {
		case 0:
			e.resetAsModel(t, m, charges[0])
		case 1:
			e.peekAsModel(t, m, charges[0], now)
		case 2:
			e.listAsModel(t, m, charges[0], now)
		}
		admitted, decisions := e.take(t, charges...)
		was := wases(charges)
		wantAdmitted, want := m.transaction(charges, now)
		if diff := cmp.Diff(want, decisions) + cmp.Diff(wases(charges), was); diff != "" || admitted != wantAdmitted {
			t.Fatalf("seed %d, step %d: admitted %v; want %v; charges %s; decisions and holds (-want +got):\n%s",
				seed, step, admitted, wantAdmitted, describe(charges), diff)
		}
	}
}

// describe returns charges and their holds as text.
func describe(charges []store.Charge) string {
	var text strings.Builder
	for _, c := range charges {
		fmt.Fprintf(&text, "\n\t%s %+v hits %d rule %d mode %d counts rejected %v", c.Key, c.Limit, c.Hits, c.Rule, c.Mode, c.CountRejected)
		if c.Hold != nil {
			fmt.Fprintf(&text, " phase %d holder %x at most %v was %+v", c.Hold.Phase, c.Hold.Holder[:2], c.Hold.AtMost, c.Hold.Was)
		}
	}
	return text.String()
}

// resetAsModel forgets a state and its holders in the store and in the model.
func (e Env) resetAsModel(t *testing.T, m *model, c store.Charge) {
	t.Helper()
	if _, err := e.Store.Reset(t.Context(), []store.Charge{c}); err != nil {
		t.Fatalf("Reset failed: %v", err)
	}
	delete(m.states, stateOf(c))
	for key := range m.holders {
		if key.state == stateOf(c) {
			delete(m.holders, key)
		}
	}
}

// peekAsModel compares the answers of Peek about a charge.
func (e Env) peekAsModel(t *testing.T, m *model, c store.Charge, now algorithms.Instant) {
	t.Helper()
	got := make([]algorithms.Decision, 1)
	if err := e.Store.Peek(t.Context(), []store.Charge{c}, got); err != nil {
		t.Fatalf("Peek failed: %v", err)
	}
	was := wases([]store.Charge{c})
	want := m.peek(c, now)
	if diff := cmp.Diff(want, got[0]) + cmp.Diff(wases([]store.Charge{c}), was); diff != "" {
		t.Fatalf("peek of %s (-want +got):\n%s", describe([]store.Charge{c}), diff)
	}
}

// listAsModel compares the holders of a state, if the store lists these.
func (e Env) listAsModel(t *testing.T, m *model, c store.Charge, now algorithms.Instant) {
	t.Helper()
	got, all, err := e.Store.Holders(t.Context(), &c, 100)
	if errors.Is(err, store.ErrNotListed) {
		return
	}
	want := m.listed(c, now)
	byHolder := cmp.Transformer("byHolder", func(held []store.Held) map[store.Holder]store.Held { // of the same Until in any order
		by := make(map[store.Holder]store.Held)
		for _, h := range held {
			by[h.Holder] = h
		}
		return by
	})
	if diff := cmp.Diff(want, got, byHolder); err != nil || all != len(want) || diff != "" {
		t.Fatalf("%d holders of %s: %v (-want +got):\n%s", all, describe([]store.Charge{c}), err, diff)
	}
}

func holdersTogetherAgree(t *testing.T, e Env) {
	seed := uint64(20261124)
	r, m := rand.New(rand.NewPCG(seed, 1)), newModel()
	for step := range race.Scale(200) {
		if r.IntN(3) == 0 {
			e.Sleep(time.Duration(r.IntN(40_000)) * time.Millisecond)
		}
		all := make([]store.Transaction, r.IntN(30))
		for i := range all {
			charges := randomHolds(r)
			for n := range charges {
				charges[n].Key = fmt.Appendf(nil, "%d %s", i, charges[n].Key)
			}
			all[i] = transaction(t.Context(), charges...)
		}
		now := e.Now()
		e.takeAll(t, all)
		for i := range all {
			was := wases(all[i].Charges)
			admitted, want := m.transaction(all[i].Charges, now)
			if diff := cmp.Diff(want, all[i].Decisions) + cmp.Diff(wases(all[i].Charges), was); all[i].Err != nil || diff != "" || all[i].Admitted != admitted {
				t.Fatalf("seed %d, step %d, transaction %d: admitted %t, error %v; want %t; charges %s; decisions and holds (-want +got):\n%s",
					seed, step, i, all[i].Admitted, all[i].Err, admitted, describe(all[i].Charges), diff)
			}
		}
	}
}
