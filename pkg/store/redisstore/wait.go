package redisstore

import (
	"context"
	"fmt"
	"time"
)

// patience returns how long a caller can wait: the timeout, or less when its deadline is nearer, of which a part is left for
// it to answer without Redis.
func (s *Store) patience(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	atMost := s.timeout
	if deadline, has := ctx.Deadline(); has {
		atMost = min(atMost, time.Until(deadline)*3/4)
	}
	if atMost <= 0 {
		return 0, context.DeadlineExceeded
	}
	return atMost, nil
}

// do has a call applied. After an error the call must not be used again.
func (s *Store) do(ctx context.Context, c *call, atMost time.Duration) error {
	s.put(c.lane(), c, time.Now().Add(atMost))
	return s.wait(ctx, c, atMost)
}

// doAll has calls applied and returns the first error there is.
func (s *Store) doAll(ctx context.Context, calls []*call, until time.Time) error {
	for _, c := range calls {
		s.put(c.lane(), c, until)
	}
	return s.waitAll(ctx, calls, until)
}

// put puts a call into a lane, for a caller who waits until then. It ends the call when the store is closed.
func (s *Store) put(l *lane, c *call, until time.Time) {
	c.put, c.until = time.Now(), until
	if !l.put(c) {
		c.refused, c.err = true, unavailable(errClosed)
		c.end()
	}
}

// waitAll waits until all calls have ended, and returns the first error there is.
func (s *Store) waitAll(ctx context.Context, calls []*call, until time.Time) error {
	var first error
	for _, c := range calls {
		if err := s.wait(ctx, c, time.Until(until)); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// wait waits until the call has ended, at most that long.
func (s *Store) wait(ctx context.Context, c *call, atMost time.Duration) error {
	timer, _ := s.timers.Get().(*time.Timer)
	timer.Reset(atMost)
	defer func() { timer.Stop(); s.timers.Put(timer) }()
	var err error
	select {
	case <-c.done:
		c.ended = true
		return c.err
	case <-timer.C:
		err = context.DeadlineExceeded
	case <-ctx.Done():
		err = ctx.Err()
	}
	select {
	case <-c.done: // it had ended, and the time had, too
		c.ended = true
		return c.err
	default:
	}
	c.status.CompareAndSwap(waiting, abandoned)
	return fmt.Errorf("redis has not answered in time: %w", err)
}
