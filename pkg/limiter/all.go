package limiter

import (
	"context"

	"github.com/weirproxy/weir/pkg/store"
)

// Question is the arguments and the result of one Check, for [Limiter.CheckAll].
type Question struct {
	Ctx     context.Context //nolint:containedctx // each question has a deadline of its own
	Request *Request
	Verdict *Verdict

	Err error // set by CheckAll
}

// Questions is memory for [Limiter.CheckAll], reused from call to call. The zero value is ready. One goroutine at a time may use it.
type Questions struct {
	All []Question

	transactions []store.Transaction
	indexes      []int // in All, of the transactions
	done         []int // indexes in All
}

// CheckAll is [Limiter.Check] for each question in q.All, with one wait where the store can, see [store.Together]. CheckAll calls
// decided with the indexes of decided questions as soon as it can, on the calling goroutine, and with each index once. The slice is
// valid during the call. CheckAll returns after all are decided. The end of a Ctx may be noticed by its deadline only.
func (l *Limiter) CheckAll(q *Questions, decided func(indexes []int)) {
	set := l.current.Load()
	q.transactions, q.indexes, q.done = q.transactions[:0], q.indexes[:0], q.done[:0]
	defer func() { clear(q.transactions) }() // releases the verdicts
	for i := range q.All {
		one := &q.All[i]
		if one.Err = l.begin(set, one.Request, one.Verdict); one.Err == nil && len(one.Verdict.charges) > 0 {
			q.transactions = append(q.transactions, store.Transaction{
				Ctx: one.Ctx, Charges: one.Verdict.charges, Decisions: one.Verdict.decisions,
			})
			q.indexes = append(q.indexes, i)
			continue
		}
		if one.Err == nil {
			l.end(set, one.Request, one.Verdict)
		}
		q.done = append(q.done, i)
	}
	if len(q.done) > 0 {
		decided(q.done)
	}
	if len(q.transactions) == 0 {
		return
	}
	store.TakeAll(l.store, q.transactions, func(indexes []int) {
		q.done = q.done[:0]
		for _, n := range indexes {
			t, i := &q.transactions[n], q.indexes[n]
			one := &q.All[i]
			if one.Err = t.Err; t.Err != nil {
				l.requests.failed.Add(1)
			} else {
				one.Verdict.OverLimit = !t.Admitted
				l.end(set, one.Request, one.Verdict)
			}
			q.done = append(q.done, i)
		}
		decided(q.done)
	})
}
