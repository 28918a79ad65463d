package serving

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/weirproxy/weir/pkg/server"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/fallback"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/pkg/tracing"
)

// StoreOptions is where counts are to be kept. Logger must be given.
type StoreOptions struct {
	MaxKeys int // most in memory; 0 means memstore.DefaultMaxKeys
	OnFull  memstore.OnFull
	Redis   *redisstore.Options // without Logger; nil: there is none, and counts are in memory alone
	Logger  *slog.Logger
	Traces  *tracing.Tracing // of what is asked of Redis; nil: no spans
}

// Stores is where counts are kept, and what others ask of that.
type Stores struct {
	Store  store.Store
	memory *memstore.Store   // the store itself, or what stands in for Redis
	redis  *redisstore.Store // nil without Redis
	guard  *fallback.Store   // nil without Redis
}

// NewStores makes the store that was asked for. It waits for nothing. Close it when it is no longer used.
func NewStores(o StoreOptions) (*Stores, error) {
	memory, err := memstore.New(memstore.Options{MaxKeys: cmp.Or(o.MaxKeys, memstore.DefaultMaxKeys), OnFull: o.OnFull})
	if err != nil {
		return nil, err
	}
	s := &Stores{Store: memory, memory: memory}
	if o.Redis != nil {
		if err := s.share(*o.Redis, o.Logger, o.Traces); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// share puts Redis before memory.
func (s *Stores) share(r redisstore.Options, logger *slog.Logger, traces *tracing.Tracing) error {
	r.Logger = logger
	var err error
	if s.redis, err = redisstore.New(r); err != nil {
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
	s.Store = shared{s.guard, s.redis}
	return nil
}

// shared is the guarded store for a limiter, which tells it to forget denials when rules change.
type shared struct {
	*fallback.Store
	redis *redisstore.Store
}

// Forget forgets which keys Redis has denied.
func (s shared) Forget() { s.redis.Forget() }

// Granularity returns what periods must be whole multiples of for the store to count them, 0 where any period will do.
func (s *Stores) Granularity() time.Duration {
	if s.redis == nil {
		return 0
	}
	return redisstore.Granularity
}

// Unfit returns an error when Redis is there and older than what is needed, or not what its URL says: waiting would not help. It gives Redis a second
// to answer.
func (s *Stores) Unfit(ctx context.Context) error {
	if s.redis == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	switch err := s.redis.Await(ctx); {
	case errors.Is(err, redisstore.ErrVersion), errors.Is(err, redisstore.ErrTopology):
		return err
	case err == nil:
		_ = s.guard.Await(ctx) // so that the first request is not decided without Redis
	}
	return nil
}

// Stats returns the figures of memory.
func (s *Stores) Stats() server.StoreStats { return server.StoreStats(s.memory.Stats()) }

// Remote returns what tells the figures of Redis, nil without it.
func (s *Stores) Remote() func() server.RemoteStats {
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

// DeniedLocally returns how many hits were denied from memory without asking Redis.
func (s *Stores) DeniedLocally() uint64 {
	if s.redis == nil {
		return 0
	}
	return s.redis.Stats().DeniedHits
}

// DecidedWithout returns how many requests were decided without Redis, as it could not be asked.
func (s *Stores) DecidedWithout() uint64 {
	if s.guard == nil {
		return 0
	}
	return s.guard.Stats().Without
}

// Ready returns why the store cannot be asked now, nil when it can.
func (s *Stores) Ready() error {
	if s.guard == nil {
		return nil
	}
	return s.guard.Ready()
}

// Close ends what NewStores started. Nobody must ask the store any more.
func (s *Stores) Close() {
	if s.guard != nil {
		s.guard.Close()
	}
	if s.redis != nil {
		s.redis.Close() // sends what it has put off
	}
	s.memory.Close()
}
