package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

func togetherCases() []Case {
	return []Case{
		{"transactions_taken_together_admit_exactly_the_limit", oneKeyTogether},
		{"transactions_of_different_keys_taken_together_are_decided_as_alone", func(t *testing.T, e Env) { togetherAsModel(t, e, randomCharges) }},
		{"an_ended_context_fails_its_own_transaction_only", endedTogether},
	}
}

// takeAll takes transactions together, and fails the test unless each is decided once.
func (e Env) takeAll(t *testing.T, transactions []store.Transaction) {
	t.Helper()
	times := make([]int, len(transactions))
	e.Store.TakeAll(transactions, func(indexes []int) {
		for _, i := range indexes {
			times[i]++
		}
	})
	for i, n := range times {
		if n != 1 {
			t.Errorf("transaction %d was decided %d times; want once", i, n)
		}
	}
}

// transaction returns a transaction of charges.
func transaction(ctx context.Context, charges ...store.Charge) store.Transaction {
	return store.Transaction{Ctx: ctx, Charges: charges, Decisions: make([]algorithms.Decision, len(charges))}
}

func oneKeyTogether(t *testing.T, e Env) {
	for _, a := range EveryRate() {
		c, other := charge("shared", limit(a, 20)), charge("other", limit(a, 1000))
		var all []store.Transaction
		for i := range 50 {
			charges := []store.Charge{c, other}
			all = append(all, transaction(t.Context(), charges[:1+i%2]...))
		}
		e.takeAll(t, all)
		admitted, pairs := 0, 0
		for i := range all {
			if all[i].Err != nil {
				t.Fatalf("%v: transaction %d failed: %v", a, i, all[i].Err)
			}
			if all[i].Admitted != all[i].Decisions[0].Allowed {
				t.Errorf("%v: transaction %d: admitted %t with %+v", a, i, all[i].Admitted, all[i].Decisions)
			}
			if all[i].Admitted {
				admitted++
				pairs += len(all[i].Charges) - 1
			}
		}
		if !e.exactly(int64(admitted), 20) {
			t.Errorf("%v: %d admitted; want exactly 20", a, admitted)
		}
		e.wantRemaining(t, other, uint64(1000-pairs))
	}
}

func endedTogether(t *testing.T, e Env) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	c := charge("k", limit(algorithms.FixedWindow, 10))
	all := []store.Transaction{
		transaction(t.Context(), c), transaction(ended, c), transaction(t.Context()), transaction(late, c), transaction(t.Context(), c),
	}
	e.takeAll(t, all)
	decided := false
	for i, want := range []error{nil, context.Canceled, nil, context.DeadlineExceeded, nil} {
		if errors.Is(want, context.DeadlineExceeded) && all[i].Err == nil { // decided at once
			want, decided = nil, true
		}
		if !errors.Is(all[i].Err, want) || all[i].Admitted != (want == nil) {
			t.Errorf("transaction %d: got admitted %t, error %v; want the error %v", i, all[i].Admitted, all[i].Err, want)
		}
	}
	if !decided { // otherwise the hit may count later
		e.wantRemaining(t, c, 8)
	}
}
