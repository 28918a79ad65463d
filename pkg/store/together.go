package store

import (
	"context"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Transaction is the arguments and the results of one Take, for TakeAll.
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

// Rest is the transactions that a store passes on to the store behind it, for implementations of
// TakeAll. The zero value is ready, and ready again after Take. One goroutine at a time may use
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
// and n counts the calls of Pass from 0. An answer for that answered returns false is not reported.
func (r *Rest) Take(s Store, answered func(i, n int, answer *Transaction) bool, decided func(indexes []int)) {
	if len(r.done) > 0 {
		decided(r.done)
	}
	if len(r.transactions) > 0 {
		s.TakeAll(r.transactions, func(indexes []int) {
			r.done = r.done[:0]
			for _, n := range indexes {
				if answered(r.indexes[n], n, &r.transactions[n]) {
					r.Decide(r.indexes[n])
				}
			}
			if len(r.done) > 0 {
				decided(r.done)
			}
		})
	}
	clear(r.transactions)
	r.transactions, r.indexes, r.done = r.transactions[:0], r.indexes[:0], r.done[:0]
}
