package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// Reset implements [store.Store]. It fails as Take does.
func (s *Store) Reset(ctx context.Context, charges []store.Charge) (int, error) {
	atMost, err := s.patience(ctx)
	if err != nil {
		return 0, err
	}
	if err := exact(charges); err != nil {
		return 0, err
	}
	s.denials.reset(charges)
	defer s.denials.reset(charges)
	if err := s.paid(ctx, charges, time.Now().Add(atMost)); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	forgotten := 0
	for i := range charges { // one by one: they may lie in several slots
		server := s.serverOf(&charges[i])
		client, err := server.connection.client()
		if err != nil {
			return forgotten, err
		}
		n, err := client.Do(ctx, client.B().Del().Key(server.name(&charges[i])).Build()).AsInt64()
		if err != nil {
			return forgotten, fmt.Errorf("resetting %q: %w", charges[i].Key, lost(err))
		}
		forgotten += int(n)
	}
	return forgotten, nil
}

// paid waits until the lanes have sent what they have for the keys of charges: it puts something behind it. What Redis says to
// that does not matter.
func (s *Store) paid(ctx context.Context, charges []store.Charge, until time.Time) error {
	if s.denials.maxAge == 0 {
		return nil
	}
	var last []*call
	now := s.now()
	for i := range charges {
		where := s.locate(&charges[i], now)
		lanes := where.server.lanes // a key's payment goes in the lane of the request that it comes before
		if where.server.cluster {
			lanes = []*lane{where.server.laneFor(where.slot, nil)}
		}
		for _, l := range lanes {
			c := s.call(peek, where, now, charges[i:i+1])
			s.put(l, c, until)
			last = append(last, c)
		}
	}
	for _, c := range last {
		if err := s.wait(ctx, c, time.Until(until)); err != nil && (!c.ended || c.refused) {
			return err
		}
	}
	return nil
}
