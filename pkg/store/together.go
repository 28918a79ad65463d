package store

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Transaction is the arguments and the results of one Take, for [TakeAll].
type Transaction struct {
	Ctx       context.Context //nolint:containedctx // each transaction has a deadline of its own
	Charges   []Charge
	Decisions []algorithms.Decision // at least as long as Charges

	Admitted bool  // set by TakeAll
	Err      error // the same
}

// Ended returns why the time for the transaction is over; nil while there is time. Unlike Ctx.Err,
// Ended needs no timer behind a deadline.
func (t *Transaction) Ended(now time.Time) error {
	if err := t.Ctx.Err(); err != nil {
		return err
	}
	if deadline, has := t.Ctx.Deadline(); has && !now.Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// Together is a store that decides several independent transactions with one wait.
type Together interface {
	// TakeAll is Take for each transaction, in any order. As soon as transactions are decided, TakeAll
	// calls decided with their indexes, on the calling goroutine. A call may have several indexes, and
	// each index comes once. The slice is valid during the call. TakeAll returns after all are
	// decided. A store may notice the end of a Ctx by its deadline only.
	TakeAll(transactions []Transaction, decided func(indexes []int))
}

// TakeAll lets a store decide transactions as [Together] says. A store without Together decides
// each in a goroutine.
func TakeAll(s Store, transactions []Transaction, decided func(indexes []int)) {
	if t, ok := s.(Together); ok {
		t.TakeAll(transactions, decided)
		return
	}
	if len(transactions) == 1 {
		transactions[0].take(s)
		decided([]int{0})
		return
	}
	type end struct {
		index int
		fault any // with which Take has panicked
	}
	ends := make(chan end, len(transactions))
	for i := range transactions {
		go func() {
			e := end{index: i}
			defer func() {
				if v := recover(); v != nil {
					e.fault = fmt.Sprintf("%v\n%s", v, debug.Stack())
				}
				ends <- e
			}()
			transactions[i].take(s)
		}()
	}
	for range transactions {
		e := <-ends
		if e.fault != nil {
			panic(e.fault) //nolint:forbidigo // on the goroutine of the caller, which may survive
		}
		decided([]int{e.index})
	}
}

// take lets a store decide the transaction alone.
func (t *Transaction) take(s Store) {
	ctx := t.Ctx
	if deadline, has := ctx.Deadline(); has && ctx.Done() == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	t.Admitted, t.Err = s.Take(ctx, t.Charges, t.Decisions)
}

// Rest is the transactions that a store passes on to the store behind it, for implementations of
// [Together]. The zero value is ready, and ready again after Take. One goroutine at a time may use
// it.
type Rest struct {
	transactions []Transaction
	indexes      []int // of the transactions, in the caller's
	done         []int // the same
}

// Decide notes that the caller's transaction i is decided.
func (r *Rest) Decide(i int) { r.done = append(r.done, i) }

// Pass passes t on in place of the caller's transaction i. The charges and decisions of t must stay
// until its answer.
func (r *Rest) Pass(i int, t Transaction) {
	r.transactions, r.indexes = append(r.transactions, t), append(r.indexes, i)
}

// Take reports the decided transactions to the caller, and lets s decide the others. Take calls
// answered with each answer before its report. There i is the index in the caller's transactions,
// and n counts the calls of Pass from 0.
func (r *Rest) Take(s Store, answered func(i, n int, answer *Transaction), decided func(indexes []int)) {
	if len(r.done) > 0 {
		decided(r.done)
	}
	if len(r.transactions) > 0 {
		TakeAll(s, r.transactions, func(indexes []int) {
			r.done = r.done[:0]
			for _, n := range indexes {
				answered(r.indexes[n], n, &r.transactions[n])
				r.Decide(r.indexes[n])
			}
			decided(r.done)
		})
	}
	clear(r.transactions)
	r.transactions, r.indexes, r.done = r.transactions[:0], r.indexes[:0], r.done[:0]
}
