package app

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/internal/admin"
	"github.com/weirproxy/weir/internal/tracing"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/denycache"
	"github.com/weirproxy/weir/pkg/store/fallback"
	"github.com/weirproxy/weir/pkg/store/leased"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/pkg/store/redisstore"
)

// StoreOptions chooses the store of the counts. Logger must be given.
type StoreOptions struct {
	MaxKeys int // most keys in memory, and most holders; 0 means memstore.DefaultMaxKeys
	OnFull  memstore.OnFull
	Redis   *redisstore.Options // without Logger; nil: counts are in memory alone
	// DenyCache is how long a key that Redis has denied is denied from memory at most; 0: not at all.
	DenyCache time.Duration
	// FleetSize is the number of processes that share Redis and divide the hits that are left while
	// Redis does not answer; 0: count the processes.
	FleetSize int
	Savable   bool // the counts in memory can be saved
	Logger    *slog.Logger
	Traces    *tracing.Tracing // of calls to Redis; nil: no spans
}

// MaxFleetSize is the largest StoreOptions.FleetSize.
const MaxFleetSize = 100_000

// Stores is the store of the counts, with its status.
type Stores struct {
	Store  store.Store
	memory *memstore.Store   // the store itself, or the substitute for Redis
	redis  *redisstore.Store // nil without Redis
	guard  *fallback.Store   // nil without Redis
	denied *denycache.Store  // nil without Redis, and where denials are not remembered
	leases *leased.Store     // nil without Redis
	fleet  func() int        // the number of processes that share Redis; nil: not known
}

// NewStores makes the store and waits for no connection. The caller closes the Stores.
func NewStores(o StoreOptions) (*Stores, error) {
	most := cmp.Or(o.MaxKeys, memstore.DefaultMaxKeys)
	options := memstore.Options{MaxKeys: most, MaxHolds: most, OnFull: o.OnFull, Savable: o.Savable, Logger: o.Logger}
	if o.Redis == nil {
		memory, err := memstore.New(options)
		if err != nil {
			return nil, err
		}
		return &Stores{Store: memory, memory: memory}, nil
	}
	r := *o.Redis
	r.Logger, r.CountFleet = o.Logger, o.FleetSize == 0
	redis, err := redisstore.New(r)
	if err != nil {
		return nil, err
	}
	if r.Counters.Name == nil { // windows of counters follow this machine's clock
		options.Now, options.Logger = func() algorithms.Instant { return redis.Now(algorithms.Limit{}) }, nil // redisstore logs the steps of Redis's clock
	}
	memory, err := memstore.New(options)
	if err != nil {
		redis.Close()
		return nil, err
	}
	s := &Stores{memory: memory, redis: redis}
	if err := s.share(o); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// share puts Redis before memory.
func (s *Stores) share(o StoreOptions) (err error) {
	if s.fleet = func() int { return s.redis.Health(nil).Fleet }; o.FleetSize > 0 {
		s.fleet = func() int { return o.FleetSize }
	}
	s.guard, err = fallback.New(fallback.Options{
		Primary:     o.Traces.Store(s.redis, "redis"),
		Local:       s.memory,
		Probe:       s.redis.Await,
		Unavailable: redisstore.ErrUnavailable,
		Answered:    func() time.Time { return s.redis.Health(nil).Answered },
		Silent:      func() time.Duration { return s.redis.Health(nil).Silent },
		Fleet:       s.fleet,
		Outbox:      s.redis,
		Now:         func() algorithms.Instant { return s.redis.Now(algorithms.Limit{}) },
		Logger:      o.Logger,
	})
	if err != nil {
		return err
	}
	s.Store = s.guard
	if o.DenyCache > 0 {
		s.denied, err = denycache.New(denycache.Options{Store: s.guard, Outbox: s.redis, MaxAge: o.DenyCache})
		if err != nil {
			return err
		}
		s.Store = s.denied
	}
	return s.lease(o)
}

// lease puts leases before all else. Only rules and requests say which limits are leased.
func (s *Stores) lease(o StoreOptions) (err error) {
	var wall func() algorithms.Instant
	if o.Redis.Counters.Name != nil {
		wall = func() algorithms.Instant { return algorithms.Instant(time.Now().UnixNano()) }
	}
	s.leases, err = leased.New(leased.Options{
		Store:   s.Store,
		Shared:  s.redis,
		Outbox:  s.redis,
		Ready:   s.guard.Settled,
		Fleet:   s.fleet,
		Local:   s.guard,
		Late:    func() time.Duration { return s.redis.Health(nil).Late },
		Without: s.guard.TakeWithout,
		Wall:    wall,
	})
	if err != nil {
		return err
	}
	s.Store = s.leases
	return nil
}

// Granularity returns the unit of time of the store: a period must be a whole multiple. 0 allows
// any period.
func (s *Stores) Granularity() time.Duration {
	if s.redis == nil {
		return 0
	}
	return redisstore.Granularity
}

// Unfit returns an error when Redis answers and is too old, or has another topology than the URL.
// Waiting would not help. Redis has a second to answer.
func (s *Stores) Unfit(ctx context.Context) error {
	if s.redis == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	switch err := s.redis.Connected(ctx); {
	case errors.Is(err, redisstore.ErrVersion), errors.Is(err, redisstore.ErrTopology):
		return err
	case err == nil:
		_ = s.guard.Await(ctx) // so that the first request is not decided without Redis
	}
	return nil
}

// Memory returns the counts of the store in memory.
func (s *Stores) Memory() memstore.Stats { return s.memory.Stats() }

// register registers the metrics of Redis, if there is one.
func (s *Stores) register(registry prometheus.Registerer) error {
	if s.redis == nil {
		return nil
	}
	return registry.Register(newRemoteCollector(func() remoteStats {
		return remoteStats{s.guard.Stats(), s.redis.Stats(), s.deniedStats(), s.leases.Stats()}
	}))
}

// DeniedLocally returns how many hits were denied from memory without asking Redis.
func (s *Stores) DeniedLocally() uint64 { return s.deniedStats().Hits }

func (s *Stores) deniedStats() denycache.Stats {
	if s.denied == nil {
		return denycache.Stats{}
	}
	return s.denied.Stats()
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

// Health returns the state of Redis, for people. There must be a Redis.
func (s *Stores) Health() admin.StoreHealth {
	guard, redis := s.guard.Stats(), s.redis.Stats()
	return admin.StoreHealth{
		Kind: "Redis", Err: s.guard.Ready(), Since: guard.Since, Without: guard.Without, Owed: redis.OwedKeys, Fleet: guard.Fleet, Spent: redis.RoundTrip,
	}
}

// Close ends everything that NewStores started. No request may use the store any more.
func (s *Stores) Close() {
	if s.leases != nil {
		s.leases.Close() // gives hits back
	}
	if s.denied != nil {
		s.denied.Close()
	}
	if s.guard != nil {
		s.guard.Close()
	}
	if s.redis != nil {
		s.redis.Close() // sends the requests in its outbox
	}
	s.memory.Close()
}
