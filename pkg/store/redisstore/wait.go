package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// until returns when a request of charges that comes now stops to wait: after three quarters of the
// time to the deadline of ctx. Without a deadline the request waits for the timeout. The caller
// keeps a quarter to answer without Redis. until fails if Redis cannot keep the charges' limits
// exactly.
func (s *Store) until(ctx context.Context, now time.Time, charges []store.Charge) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	for i := range charges {
		if period := charges[i].Limit.Period; period%Granularity != 0 {
			return time.Time{}, fmt.Errorf("%w: period %v must be a whole number of microseconds", store.ErrLimit, period)
		}
	}
	timeout := s.timeout
	if deadline, has := ctx.Deadline(); has {
		timeout = deadline.Sub(now) / 4 * 3
	}
	if timeout <= 0 {
		return time.Time{}, context.DeadlineExceeded
	}
	return now.Add(timeout), nil
}

// do sends calls, waits for them and returns the first error. After an error do not use the calls
// again.
func (s *Store) do(ctx context.Context, until time.Time, calls ...*call) error {
	for _, c := range calls {
		s.put(c.queue(), c, until)
	}
	return s.wait(ctx, until, calls...)
}

// put puts a call into a queue, for a caller who waits until a time. If the store is closed put
// ends the call.
func (s *Store) put(q *queue, c *call, until time.Time) {
	c.put, c.until = time.Now(), until
	q.put(c)
}

// wait waits until the calls have ended, or until a time, and returns the first error. Calls that
// have not been sent by then never are.
func (s *Store) wait(ctx context.Context, until time.Time, calls ...*call) (first error) {
	timer, _ := s.timers.Get().(*time.Timer)
	timer.Reset(time.Until(until))
	defer func() { timer.Stop(); s.timers.Put(timer) }()
	var over error // why the wait is over
	for _, c := range calls {
		if over == nil {
			select {
			case <-c.done:
				c.ended = true
			case <-timer.C:
				over = context.DeadlineExceeded
			case <-ctx.Done():
				over = ctx.Err()
			}
		}
		if !c.ended {
			select {
			case <-c.done: // at the same moment, or before
				c.ended = true
			default:
				c.status.CompareAndSwap(waiting, abandoned)
			}
		}
		switch {
		case first != nil:
		case c.ended: // otherwise c.err still belongs to the queue
			first = c.err
		default:
			s.pulse.miss()
			first = notInTime(over)
		}
	}
	return first
}

// notInTime returns the error of a request that does not wait any longer.
func notInTime(over error) error { return fmt.Errorf("redis has not answered in time: %w", over) }
