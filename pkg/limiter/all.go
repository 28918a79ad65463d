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

// Questions is memory for [Limiter.CheckAll], reused from call to call. The zero value is ready.
// One goroutine at a time may use it.
type Questions struct {
	All []Question

	rest store.Rest
}

// CheckAll is [Limiter.Check] for each question in q.All, with one wait where the store can, see
// [store.Store]. CheckAll calls decided with the indexes of decided questions as soon as it can,
// on the calling goroutine, and with each index once. The slice is valid during the call. CheckAll
// returns after all are decided. The end of a Ctx may be noticed by its deadline only.
func (l *Limiter) CheckAll(q *Questions, decided func(indexes []int)) {
	set := l.current.Load()
	for i := range q.All {
		one := &q.All[i]
		if one.Err = l.begin(set, one.Request, one.Verdict); one.Err == nil {
			if v := one.Verdict; len(v.charges) > 0 {
				q.rest.Pass(i, store.Transaction{Ctx: one.Ctx, Charges: v.charges, Decisions: v.decisions})
				continue
			}
			l.end(set, one.Request, one.Verdict)
		}
		q.rest.Decide(i)
	}
	q.rest.Take(l.store, func(i, _ int, answer *store.Transaction) {
		one := &q.All[i]
		if one.Err = answer.Err; one.Err != nil {
			l.requests.failed.Add(1)
			return
		}
		one.Verdict.OverLimit = !answer.Admitted
		l.end(set, one.Request, one.Verdict)
	}, decided)
}
