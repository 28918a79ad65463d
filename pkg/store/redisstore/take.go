package redisstore

import (
	"context"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Take implements [store.Store]. Besides the errors of ctx and of Redis there are three:
// [ErrUnavailable], if there is no connection; [context.DeadlineExceeded], if Redis has not
// answered in time, but may have charged; [store.ErrLimit], for a period that is no whole number of
// microseconds.
func (s *Store) Take(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	until, err := s.until(ctx, time.Now(), charges)
	if err != nil {
		return false, s.unsent(err, charges)
	}
	if len(charges) == 0 {
		return true, nil
	}
	s.outbox.sendBefore(charges)
	s.outbox.followHolds(charges)
	now := s.now()
	if s.several(now, charges) {
		return s.takeSeveral(ctx, until, now, charges, decisions)
	}
	c := s.call(take, s.locate(&charges[0], now), now, charges)
	if err := s.do(ctx, until, c); err != nil {
		return false, s.unanswered(err, c)
	}
	return s.taken(c, charges, decisions), nil
}

// taken writes the decisions and states of a call that has ended well, gives up the call, and
// returns the verdict.
func (s *Store) taken(c *call, charges []store.Charge, decisions []algorithms.Decision) (admitted bool) {
	copy(decisions, c.decisions)
	for i := range charges {
		s.tell(c, i, &charges[i], &decisions[i])
		c.tellHold(i, &charges[i])
	}
	admitted = c.admitted
	s.calls.Put(c)
	return admitted
}

// Peek implements [store.Store]. Peek fails as Take does.
func (s *Store) Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	until, err := s.until(ctx, time.Now(), charges)
	if err != nil {
		return err
	}
	now, calls := s.now(), make([]*call, len(charges))
	for i := range charges {
		s.outbox.sendBefore(charges[i : i+1])
		calls[i] = s.call(peek, s.locate(&charges[i], now), now, charges[i:i+1])
	}
	if err := s.do(ctx, until, calls...); err != nil {
		return err
	}
	for i, c := range calls {
		decisions[i] = c.decisions[0]
		c.tellHold(0, &charges[i])
		charges[i].TellSource(store.Asked)
		s.calls.Put(c)
	}
	return nil
}

// call returns a call of charges at one location, with the instant by this process's clock.
func (s *Store) call(a action, where location, at algorithms.Instant, charges []store.Charge) *call {
	c, _ := s.calls.Get().(*call)
	c.set(a, where, at, charges)
	c.resets = s.outbox.resetCount.Load()
	return c
}
