package app

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/weirproxy/weir/internal/admin/render"
	"github.com/weirproxy/weir/internal/tracing"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/memstore"
	"github.com/weirproxy/weir/pkg/store/redisstore"
	"github.com/weirproxy/weir/pkg/store/shared"
	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// StoreOptions chooses the store of the counts. Logger must be given.
type StoreOptions struct {
	MaxKeys int // most keys in memory, and most holders; 0 means memstore.DefaultMaxKeys
	OnFull  memstore.OnFull
	Redis   *redisstore.Options // without Logger; nil: counts are in memory alone
	// DenyCache is how long a key that Redis has denied is denied from memory at most; 0: not at all.
	DenyCache time.Duration
	// FleetSize is the number of processes that share Redis, as long as Redis has not counted them; 0:
	// not known. While Redis does not answer they divide the hits that are left.
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
	shared *shared.Store     // nil without Redis
	fleet  fleetSource       // as long as Redis has not counted the processes
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
	s := new(Stores)
	r.Logger, r.CountFleet = o.Logger, true
	redis, err := redisstore.New(r)
	if err != nil {
		return nil, err
	}
	if r.Counters.Name == nil { // windows of counters follow this machine's clock
		options.Now = func() algorithms.Instant { return redis.Now(algorithms.Limit{}) }
		options.Logger = nil // redisstore logs the steps of Redis's clock
	}
	memory, err := memstore.New(options)
	if err != nil {
		redis.Close()
		return nil, err
	}
	s.memory, s.redis = memory, redis
	s.assume(o.FleetSize, 0)
	s.shared, err = shared.New(shared.Options{
		Remote:      redis,
		Local:       memory,
		Denials:     o.DenyCache,
		Unavailable: redisstore.ErrUnavailable,
		Span:        o.Traces.Asked("redis"),
		Logger:      o.Logger,
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	s.Store = s.shared
	return s, nil
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
		_ = s.shared.Await(ctx) // so that the first request is not decided without Redis
		_ = s.redis.AwaitCount(ctx)
	}
	return nil
}

func (s *Stores) register(registry prometheus.Registerer) error {
	if s.redis == nil {
		return nil
	}
	return registry.Register(newRemoteCollector(func() remoteStats {
		return remoteStats{s.shared.Stats(), s.redis.Stats(), s.fleetSource()}
	}))
}

// DecidedWithout returns how many requests were decided without Redis, as it could not be asked.
func (s *Stores) DecidedWithout() uint64 {
	if s.shared == nil {
		return 0
	}
	return s.shared.Stats().Without
}

// Ready returns why the store cannot be asked now, nil when it can.
func (s *Stores) Ready() error {
	if s.shared == nil {
		return nil
	}
	return s.shared.Ready()
}

// Health returns the state of Redis, for people. There must be a Redis.
func (s *Stores) Health() *adminv1.StoreStatus {
	shared, redis := s.shared.Stats(), s.redis.Stats()
	out := &adminv1.StoreStatus{
		Kind: "Redis", Without: shared.Without, Owed: uint32(redis.OwedKeys), Fleet: uint32(redis.Fleet),
		Latency: render.Latency(redis.RoundTrip),
	}
	if err := s.shared.Away(); err != nil {
		out.Reason = err.Error()
	}
	if !shared.Since.IsZero() {
		out.Since = timestamppb.New(shared.Since)
	}
	return out
}

// leave ends all about Redis as Close does, and returns the owed hits and holders.
func (s *Stores) leave() [][]byte {
	if s.redis == nil {
		return nil
	}
	s.shared.Close()
	return s.redis.CloseKeeping(memstore.MaxBesideRecord, memstore.MaxBeside)
}

// Close ends everything that NewStores started. No request may use the store any more.
func (s *Stores) Close() {
	if s.shared != nil {
		s.shared.Close() // gives hits back
	}
	if s.redis != nil {
		s.redis.Close() // sends the requests in its outbox
	}
	s.memory.Close()
}
