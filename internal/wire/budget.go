package wire

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"
)

// BudgetWait is the longest wait for a part of a Budget.
const BudgetWait = 5 * time.Second

// Budget is an amount that requests share, such as bytes. Safe for concurrent use.
type Budget struct {
	size int64
	left *semaphore.Weighted
}

// NewBudget returns a budget of that size, at least 1.
func NewBudget(size int64) *Budget { return &Budget{size, semaphore.NewWeighted(size)} }

// Take waits for a part of the budget up to BudgetWait, or until ctx ends, first come first served.
// A part above the budget is the whole budget. The caller must Give back the taken amount. Without
// room Take reports false.
func (b *Budget) Take(ctx context.Context, part int64) (taken int64, ok bool) {
	part = min(part, b.size)
	ctx, cancel := context.WithTimeout(ctx, BudgetWait)
	defer cancel()
	if b.left.Acquire(ctx, part) != nil {
		return 0, false
	}
	return part, true
}

// Give gives back the amount of a Take.
func (b *Budget) Give(taken int64) { b.left.Release(taken) }
