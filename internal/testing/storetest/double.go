package storetest

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Double is a stand-in for a store. Of its other methods a test gives only the ones that it needs.
type Double interface {
	Take(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error)
}

// Of makes a store of a double. TakeAll calls Take in a goroutine for each transaction; a panic
// there is one of TakeAll. A method that the double lacks does nothing and returns zeros, but for
// Holders, which returns [store.ErrNotListed]. A double that waits ends at the deadline of its ctx.
func Of(d Double) store.Store { return &whole{d, []int{0}} }

// whole is the store of a double.
type whole struct {
	Double

	first []int // the index of a transaction that is alone
}

// TakeNow implements [store.Store].
func (w *whole) TakeNow(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	if d, ok := w.Double.(interface {
		TakeNow(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool)
	}); ok {
		return d.TakeNow(charges, decisions)
	}
	return false, false
}

// TakeAll implements [store.Store].
func (w *whole) TakeAll(transactions []store.Transaction, decided func(indexes []int)) {
	if d, ok := w.Double.(interface {
		TakeAll(transactions []store.Transaction, decided func(indexes []int))
	}); ok {
		d.TakeAll(transactions, decided)
		return
	}
	if len(transactions) == 1 {
		w.take(&transactions[0])
		decided(w.first)
		return
	}
	type end struct {
		index int
		fault any // of a panic
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
			w.take(&transactions[i])
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

func (w *whole) take(t *store.Transaction) {
	ctx := t.Ctx
	if deadline, has := ctx.Deadline(); has && ctx.Done() == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	t.Admitted, t.Err = w.Take(ctx, t.Charges, t.Decisions)
}

// Peek implements [store.Store].
func (w *whole) Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	if d, ok := w.Double.(interface {
		Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error
	}); ok {
		return d.Peek(ctx, charges, decisions)
	}
	return nil
}

// Reset implements [store.Store].
func (w *whole) Reset(ctx context.Context, charges []store.Charge) (int, error) {
	if d, ok := w.Double.(interface {
		Reset(ctx context.Context, charges []store.Charge) (int, error)
	}); ok {
		return d.Reset(ctx, charges)
	}
	return 0, nil
}

// Holders implements [store.Store].
func (w *whole) Holders(ctx context.Context, charge *store.Charge, most int) (held []store.Held, all int, err error) {
	if d, ok := w.Double.(interface {
		Holders(ctx context.Context, charge *store.Charge, most int) (held []store.Held, all int, err error)
	}); ok {
		return d.Holders(ctx, charge, most)
	}
	return nil, 0, store.ErrNotListed
}

// Forget implements [store.Store].
func (w *whole) Forget() {
	if d, ok := w.Double.(interface{ Forget() }); ok {
		d.Forget()
	}
}
