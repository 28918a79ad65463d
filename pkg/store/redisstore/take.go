package redisstore

import (
	"context"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// TakeNow implements [store.Store]: it decides nothing, as each transaction needs a round trip.
func (s *Store) TakeNow([]store.Charge, []algorithms.Decision) (admitted, decided bool) {
	return false, false
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

// Peek implements [store.Store]. Peek fails as TakeAll does.
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
