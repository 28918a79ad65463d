package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/server"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/fallback"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/pkg/tracing"
)

// stores is where counts are kept, and what others ask of that.
type stores struct {
	store  store.Store
	memory *memstore.Store   // the store itself, or what stands in for Redis
	redis  *redisstore.Store // nil with --store memory
	guard  *fallback.Store   // nil with --store memory
}

// newStores makes the store that the settings ask for, with spans for what it asks of Redis unless traces is nil. It waits for
// nothing.
func newStores(c *config, logger *slog.Logger, traces *tracing.Tracing) (*stores, error) {
	onFull := memstore.Allow
	if c.OnFull == "deny" {
		onFull = memstore.Deny
	}
	memory, err := memstore.New(memstore.Options{MaxKeys: c.MaxKeys, OnFull: onFull})
	if err != nil {
		return nil, err
	}
	s := &stores{store: memory, memory: memory}
	if c.Store == storeRedis {
		if err := s.share(&c.Redis, logger, traces); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

// share puts Redis before memory.
func (s *stores) share(r *redisConfig, logger *slog.Logger, traces *tracing.Tracing) error {
	o := redisstore.Options{
		Target:    r.target,
		Prefix:    r.Prefix,
		Timeout:   r.Timeout,
		DenyCache: r.DenyCache,
		Logger:    logger,
	}
	if r.HashTag == hashTagDomain {
		o.HashTag = descriptors.KeyDomain
	}
	var err error
	if s.redis, err = redisstore.New(o); err != nil {
		return err
	}
	s.guard, err = fallback.New(fallback.Options{
		Primary:     traces.Store(s.redis.Asking(), "redis"),
		Known:       s.redis.Known,
		Local:       s.memory,
		Probe:       s.redis.Ping,
		Unavailable: redisstore.ErrUnavailable,
		Logger:      logger,
	})
	if err != nil {
		return err
	}
	s.store = shared{s.guard, s.redis}
	return nil
}

// shared is the guarded store for a limiter, which tells it to forget denials when rules change.
type shared struct {
	*fallback.Store
	redis *redisstore.Store
}

// Forget forgets which keys Redis has denied.
func (s shared) Forget() { s.redis.Forget() }

// unfit returns an error when Redis is there and older than what is needed, or not what its URL says: waiting would not help. It gives Redis a second
// to answer.
func (s *stores) unfit(ctx context.Context) error {
	if s.redis == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := s.redis.Await(ctx); errors.Is(err, redisstore.ErrVersion) || errors.Is(err, redisstore.ErrTopology) {
		return err
	}
	return nil
}

// stats returns the figures of memory.
func (s *stores) stats() server.StoreStats { return server.StoreStats(s.memory.Stats()) }

// remote returns what tells the figures of Redis, nil without it.
func (s *stores) remote() func() server.RemoteStats {
	if s.redis == nil {
		return nil
	}
	return func() server.RemoteStats {
		guard, redis := s.guard.Stats(), s.redis.Stats()
		return server.RemoteStats{
			State:         guard.State.String(),
			Up:            guard.State == fallback.Closed,
			Opened:        guard.Opened,
			Timeouts:      guard.Failures.Timeout,
			Unavailable:   guard.Failures.Unavailable,
			Other:         guard.Failures.Other,
			Local:         guard.Decided.Local,
			Allow:         guard.Decided.Allow,
			Deny:          guard.Decided.Deny,
			RoundTrip:     redis.RoundTrip,
			RoundTrips:    redis.RoundTrips,
			Transactions:  redis.Transactions,
			DeniedLocally: redis.DeniedHere,
			DeniedKeys:    redis.Denials,
			DeferredHits:  redis.DeferredHits,
			LostHits:      redis.LostHits,
		}
	}
}

// ready returns what tells whether the store is there, for --ready-requires-store; nil where it always is.
func (s *stores) ready(c *config) func() error {
	if s.guard == nil || !c.ReadyRequiresStore {
		return nil
	}
	return s.guard.Ready
}

// close ends what newStores started. Nobody must ask the store any more.
func (s *stores) close() {
	if s.guard != nil {
		s.guard.Close()
	}
	if s.redis != nil {
		s.redis.Close() // sends what it has put off
	}
	s.memory.Close()
}
