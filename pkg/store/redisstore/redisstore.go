// Package redisstore keeps rate limit states in Redis or Valkey, so that many processes share one
// count for each key.
//
// A request is one run of one script (script/*.lua), which reads the states of the request's keys,
// decides, and writes the states. Redis runs a script alone, so a request is atomic. The instant is
// Redis's time in microseconds. The script does the arithmetic of package algorithms in Lua, on
// whole numbers, and returns the states before. From these, package algorithms makes the decisions,
// to the nanosecond. Requests that wait at the same time share a run of the script (queue, batch).
//
// In a cluster the keys of a request may lie in several slots, and limits of a second may have a
// server of their own. Then each part is reserved alone, and a request that turns out to be denied
// gives its reservations back (see takeSeveral).
//
// A key in Redis is the prefix, Charge.Key, algorithm and period:
// "weir:4:edge|4:path=7:/search#token_bucket/1s;2;1000000". The value has 14 to 27 bytes (see
// parse). For sliding_window_log the value is a list, with 12 bytes for each instant of an
// admission. The value expires when the key is idle. Fixed windows can be kept under the names, and
// as the numbers, of other programs (see Counters).
package redisstore

import (
	"cmp"
	"context"
	cryptorand "crypto/rand"
	"crypto/sha1" //nolint:gosec // the name Redis gives to scripts
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirproxy/weir/internal/redis"
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

var _ store.Remote = (*Store)(nil)

// Defaults of Options, and of the settings that stand for them.
const (
	DefaultPrefix  = "weir:"
	DefaultTimeout = 10 * time.Millisecond
)

// Options configures New. All but Target and Logger may be zero.
type Options struct {
	Target   Target
	Prefix   string                  // of every key; "" means DefaultPrefix
	HashTag  func(key []byte) []byte // the part of a Charge.Key that chooses the slot in a cluster; nil: the whole name
	Counters Counters                // fixed windows that other programs count, too
	Seconds  *Target                 // of limits of a second; nil: these lie on Target
	Timeout  time.Duration           // wait for an answer of a request without a deadline; 0 means DefaultTimeout

	// CountFleet makes this process known on Target under Prefix, and counts the processes there, for
	// [store.Health]. A process that starts is counted within a second, and one that was closed is not
	// counted after a second. A process that was killed is counted for ten seconds. While Redis does
	// not answer the last known number and share stay. Afterwards the number falls only after five
	// seconds, so that the other processes have the time to come back.
	CountFleet bool

	Logger *slog.Logger
}

// Store keeps states in Redis. All methods are safe for concurrent use. Close it when it is no
// longer used.
type Store struct {
	*outbox

	gate  gate
	pool  sync.Pool // of *transaction
	waits sync.Pool // of *wait
	fleet *fleet
	stop  func()

	returned returned
}

// New returns a store and starts to connect, without waiting for the connection. New fails when an
// option is out of bounds.
func New(o Options) (*Store, error) {
	return newStore(o, func(target redis.Target) connection { return redis.Dial(target, o.Logger) })
}

// newStore is New with another way to connect.
func newStore(o Options, connect func(redis.Target) connection) (*Store, error) {
	target, seconds, err := o.parse()
	if err != nil {
		return nil, err
	}
	script, err := scriptOf("transactions", "records", "lone", "holds", "carry", "apply")
	if err != nil {
		return nil, err
	}
	seedScript, err := scriptOf("seed") // puts states back
	if err != nil {
		return nil, err
	}
	sum := sha1.Sum([]byte(script)) //nolint:gosec // see the import
	b := &base{
		timeout:     cmp.Or(o.Timeout, DefaultTimeout),
		script:      script,
		sha:         hex.EncodeToString(sum[:]),
		seedScript:  rueidis.NewLuaScriptNoSha(seedScript), // an ACL need not allow SCRIPT LOAD
		logger:      o.Logger,
		started:     time.Now(),
		silences:    make(chan struct{}, 1),
		hasCounters: o.Counters.Name != nil,
	}
	_, _ = cryptorand.Read(b.name[:]) // never fails
	n := names{prefix: cmp.Or(o.Prefix, DefaultPrefix), hashTag: o.HashTag, counters: o.Counters}
	all := &servers{base: b, main: newServer(b, n, target, connect(target))}
	if o.Seconds != nil {
		all.seconds = newServer(b, n, seconds, connect(seconds))
	}
	s := newStoreOf(all)
	if s.fleet, err = newFleet(s.main); err != nil {
		return nil, err
	}
	s.fleet.wasReset = s.forgetSeeds
	s.fleet.owes = func() bool { return s.fleet.lost.Load() > 0 && s.owesOfOutage() }
	s.start(o.CountFleet)
	return s, nil
}

// newStoreOf returns a store whose outbox does not run.
func newStoreOf(all *servers) *Store {
	s := &Store{outbox: &outbox{servers: all, settled: make(chan struct{}, 1), back: make(chan struct{}, 1)}}
	s.pool.New = func() any { return new(transaction) }
	s.waits.New = func() any { return newWait() }
	return s
}

// parse returns the targets, or all mistakes in the options, joined. Without Seconds the second
// target is zero.
func (o *Options) parse() (target, seconds redis.Target, err error) {
	var errs []error
	if o.Logger == nil {
		errs = append(errs, errors.New("logger: must not be nil"))
	}
	if target, err = redis.Options(o.Target).Parse(); err != nil {
		errs = append(errs, fmt.Errorf("target: %w", err))
	}
	if o.Seconds != nil {
		if seconds, err = redis.Options(*o.Seconds).Parse(); err != nil {
			errs = append(errs, fmt.Errorf("target of limits of a second: %w", err))
		}
	}
	if o.Timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout: %v: must be more than 0", o.Timeout))
	}
	if j := o.Counters.Jitter; j < 0 || j > MaxJitter {
		errs = append(errs, fmt.Errorf("jitter of counters: %v: must be 0s to %v", j, MaxJitter))
	}
	return target, seconds, errors.Join(errs...)
}

// start starts the outbox and the count of the fleet, which run until Close.
func (s *Store) start(countFleet bool) {
	var background sync.WaitGroup
	ctx, end := context.WithCancel(context.Background())
	background.Go(func() { s.outbox.run(ctx) })
	background.Go(func() { s.seed(ctx) })
	if countFleet {
		background.Go(func() { s.fleet.run(ctx) })
	}
	s.stop = sync.OnceFunc(func() {
		before := s.metrics.lostHits.Load()
		end()
		background.Wait()
		for server := range s.all() {
			server.queue.close()
		}
		for server := range s.all() {
			server.connection.Close()
		}
		if lost := s.metrics.lostHits.Load() - before; lost > 0 {
			s.logger.LogAttrs(context.Background(), slog.LevelWarn,
				"hits are lost, as redis could not be told of them before the end", slog.Uint64("hits", lost))
		}
	})
}

// Close sends the waiting calls and the outbox, ends all that New started and closes the
// connections. The store must not be used after. Closing twice is harmless.
func (s *Store) Close() { s.stop() }

// Assume sets the least number of processes that share Redis until Redis has counted all of them,
// some five seconds after the first count. See Options.CountFleet.
func (s *Store) Assume(processes int) { s.assumed.Store(int64(processes)) }

// Follow makes the share of this process follow its load, see [store.Share]. requests returns the
// requests since the start, and is called at any time, by one goroutine. Without Follow the load is
// 0. A process with a small load has a 16th of the mean share.
func (s *Store) Follow(requests func() uint64) { s.fleet.demand.Store(&requests) }

// Name returns the name under which Redis counts this process, in hexadecimal digits. Until Redis
// has counted this process, it is the name of the one before, "" without one.
func (s *Store) Name() string {
	name := s.former.Load()
	if s.processes.Load() > 0 {
		name = &s.base.name
	}
	if name == nil {
		return ""
	}
	return hex.EncodeToString(name[:])
}

// Succeed says that this process goes on for one that has ended. That one could not take itself out
// of the count while Redis was away. name is its [Store.Name]; any other text has no effect.
func (s *Store) Succeed(name string) {
	if raw, err := hex.DecodeString(name); err == nil && len(raw) == len(s.base.name) {
		s.former.Store((*[8]byte)(raw))
	}
}

// AwaitCount waits until this process has made itself known for the first time, or has failed to,
// and fails only when ctx ends before that. Options.CountFleet must be set.
func (s *Store) AwaitCount(ctx context.Context) error {
	select {
	case <-s.fleet.begun:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Connected waits for the end of the first attempt to connect, and returns its error. Attempts go
// on after an error.
func (s *Store) Connected(ctx context.Context) error {
	var errs []error
	for server := range s.all() {
		errs = append(errs, server.connection.Await(ctx))
	}
	return errors.Join(errs...)
}

// Await implements [store.Remote]. Await waits for the first attempt to connect. Then Redis runs
// the script, within the time that a request with the deadline of ctx has. The script writes a key
// that expires after a millisecond.
func (s *Store) Await(ctx context.Context, shard int) error {
	server, node := s.shardOf(shard)
	if err := server.connection.Await(ctx); err != nil && ctx.Err() != nil {
		return err
	}
	server.seed(ctx)
	c, where := server.ping(node)
	if c == nil {
		return nil // nobody can miss a shard without slots
	}
	until, err := s.until(ctx, time.Now(), nil)
	if err != nil {
		return err
	}
	s.fleet.away()
	t := s.transaction(take, where, s.here(), []store.Charge{*c})
	t.stays = true
	if err := s.do(ctx, until, t); err != nil {
		return err
	}
	now := s.clocks()
	s.regained.Store(&now)
	s.fleet.returned()
	s.outbox.returned()
	return nil
}

// ping returns a charge in one of the slots of a node; nil if the node has none.
func (s *server) ping(node int) (*store.Charge, location) {
	c := &store.Charge{
		Limit: algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: algorithms.MaxHits, Period: algorithms.MinPeriod},
		Hits:  1,
	}
	nodes := s.connection.Nodes()
	if nodes != nil && !slices.Contains(nodes[:], uint16(node)) {
		return nil, location{}
	}
	for n := 0; ; n++ {
		domain := fmt.Sprintf("ping%d", rand.Uint32()) // which may choose the slot, see Options.HashTag
		c.Key = fmt.Appendf(nil, "%d:%s|", len(domain), domain)
		if where := s.locate(c, s.here()); nodes == nil || int(nodes[where.slot]) == node || n == pings {
			return c, where
		}
	}
}

// pings is the random keys of which one mostly lies in a node, also if it has a single slot.
const pings = 10 * slots

// Stats returns the store's metrics.
func (s *Store) Stats() Stats {
	var invalid, evicted uint64
	for server := range s.all() {
		invalid += server.connection.InvalidReplies()
		evicted += server.connection.EvictedKeys()
	}
	return Stats{
		RoundTrips:   s.metrics.calls.Load(),
		Transactions: s.metrics.transactions.Load(),
		RoundTrip:    s.metrics.roundTrip.Snapshot(),
		DeferredHits: s.metrics.deferredHits.Load(),
		LostHits:     s.metrics.lostHits.Load(),
		UnknownHits:  s.metrics.unknownHits.Load(),
		ExpiredHits:  s.metrics.expiredHits.Load(),
		OwedKeys:     int(s.keys.Load()),

		ToldHolds:    s.metrics.toldHolds.Load(),
		LostHolds:    s.metrics.lostHolds.Load(),
		ExpiredHolds: s.metrics.expiredHolds.Load(),
		OwedHolders:  int(s.holders.Load()),

		Fleet:        s.fleetSize(),
		FleetCounted: s.processes.Load() > 0,
		OtherZones:   int(s.fleet.zones.others.Load()),

		Disagreements: s.metrics.disagreements.Load(),

		InvalidReplies: invalid,
		SeededKeys:     s.metrics.seeded.Load(),
		EvictedKeys:    evicted,
	}
}

// Run runs a script of the caller on the main server, for data beside the states, and returns the
// texts of its answer. Run puts Options.Prefix before each key. In a cluster all keys must lie in
// one slot. Before a connection Run fails with [ErrUnavailable]. When Redis falls silent Run fails
// before the end of ctx. An error of ctx, of silence, or of a lost connection, does not say whether
// the script ran.
func (s *Store) Run(ctx context.Context, script string, keys, args []string) ([]string, error) {
	client, err := s.main.connection.Client()
	if err != nil {
		return nil, err
	}
	named := make([]string, len(keys))
	for i, key := range keys {
		named[i] = s.main.prefix + key
	}
	slot := uint16(0)
	if s.main.cluster && len(named) > 0 {
		slot = slotOf(named[0])
	}
	ctx, done := s.main.queue.of(slot).command(ctx)
	answer, err := rueidis.NewLuaScript(script).Exec(ctx, client, named, args).AsStrSlice()
	return answer, s.main.connection.Report(done(err))
}

// Forget implements [store.Store]: Redis decides each request. A Redis that loses its data gets no
// state back that it told before.
func (s *Store) Forget() { s.forgetSeeds() }
