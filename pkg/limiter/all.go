package limiter

import (
	"context"

	"github.com/weirproxy/weir/pkg/store"
)

// Question is the arguments and the result of one Check, for [Limiter.CheckAll].
type Question struct {
	Ctx      context.Context //nolint:containedctx // each question has a deadline of its own
	Request  *Request
	Verdict  *Verdict
	Prepared bool // [Limiter.CheckNow] has prepared Verdict for Request, and has not decided it

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
	for i := range q.All {
		one := &q.All[i]
		one.Err = nil
		if !one.Prepared {
			one.Err = l.prepare(one.Request, one.Verdict)
		}
		if v := one.Verdict; one.Err == nil && len(v.charges) > 0 {
			q.rest.Pass(i, store.Transaction{Ctx: one.Ctx, Charges: v.charges, Decisions: v.decisions})
			continue
		}
		if one.Err == nil {
			one.Err = l.finish(one.Request, one.Verdict, true, nil)
		}
		q.rest.Decide(i)
	}
	q.rest.Take(l.store, func(i, _ int, answer *store.Transaction) {
		one := &q.All[i]
		one.Err = l.finish(one.Request, one.Verdict, answer.Admitted, answer.Err)
	}, decided)
}
