package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// Reset implements [store.Store]. Reset fails as Take does.
func (s *Store) Reset(ctx context.Context, charges []store.Charge) (forgotten int, err error) {
	until, err := s.until(ctx, charges)
	if err != nil {
		return 0, err
	}
	s.outbox.beginReset(charges)
	defer func() { s.outbox.endReset(charges, err != nil) }()
	defer s.reservations.endReset(s.seed, charges)
	if err := s.reservations.beginReset(ctx, until, s.seed, charges); err != nil {
		return 0, err
	}
	if err := s.outboxAnswered(ctx, charges, until); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for i := range charges { // one by one: keys may lie in several slots
		server := s.serverOf(&charges[i])
		client, err := server.connection.Client()
		if err != nil {
			return forgotten, err
		}
		n, err := client.Do(ctx, client.B().Del().Key(s.name(&charges[i])).Build()).AsInt64()
		if err := server.connection.Report(err); err != nil {
			return forgotten, fmt.Errorf("resetting %q: %w", charges[i].Key, err)
		}
		forgotten += int(n)
	}
	return forgotten, nil
}

// outboxAnswered waits until Redis has answered the outbox's calls about the keys of charges: it puts a call behind them. The answer
// to that call does not matter.
func (s *Store) outboxAnswered(ctx context.Context, charges []store.Charge, until time.Time) error {
	if s.outbox.idle() {
		return nil
	}
	var last []*call
	now := s.now()
	for i := range charges {
		where := s.locate(&charges[i], now)
		queues := where.server.queues // hits of a key go through the queue of the request behind them
		if where.server.cluster {
			queues = []*queue{where.server.queueFor(where.slot, nil)}
		}
		for _, q := range queues {
			c := s.call(peek, where, now, charges[i:i+1])
			s.put(q, c, until)
			last = append(last, c)
		}
	}
	err := s.wait(ctx, until, last...)
	for _, c := range last {
		if !c.ended || c.refused {
			return err
		}
	}
	return nil
}
