// Package redisstore keeps rate limit states in Redis or Valkey, so that many processes share one count for each key.
//
// A request is one call of one script (script/*.lua), which reads the states of the request's keys, decides, and writes them:
// Redis runs it alone, so it is atomic. The instant is Redis's own time in microseconds. The script does the arithmetic of
// package algorithms once more, in Lua, on whole numbers; it returns the states as they were, and the decisions are made from
// those by package algorithms itself, to the nanosecond. Requests that wait at the same time share a call (lane, batch).
//
// In a cluster the keys of a request may lie in several slots, and limits of a second may be kept elsewhere. Then each part is
// reserved on its own, and what a request that turns out to be denied has reserved is given back (see takeParts).
//
// A key of Redis is the prefix, Charge.Key, and algorithm and period: "weir:4:edge|4:path=7:/search#token_bucket/1s;2;1000000".
// Its value is 14 to 27 bytes (see parse), for sliding_window_log a list of 12 bytes for each instant at which hits were
// admitted; it expires when the key is as if never used. Fixed windows can be kept under names and as numbers that others count,
// too (see Counters).
package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // the name Redis gives to scripts
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

var _ store.Store = (*Store)(nil)

// Granularity is Redis's unit of time: a limit's period must be a whole number of it.
const Granularity = time.Microsecond

// Defaults of Options, and of the settings that stand for them.
const (
	DefaultPrefix    = "weir:"
	DefaultTimeout   = 10 * time.Millisecond
	DefaultDenyCache = time.Second
)

// Reasons why a request was certainly not charged.
var (
	errLate   = errors.New("redis took the request for one that nobody waits for any more: its clock jumps")
	errBehind = fmt.Errorf("redis has not answered those before in time: %w", context.DeadlineExceeded) // too little is left to ask
)

// Options is what New needs besides a Target. All but that and Logger may be zero.
type Options struct {
	Target    Target
	Prefix    string                  // of every key; "" means DefaultPrefix
	HashTag   func(key []byte) []byte // the part of a Charge.Key by which a cluster places it; nil: the whole key
	Counters  Counters                // fixed windows that others count, too
	Seconds   *Target                 // where limits of a second are kept; nil: where the others are
	Timeout   time.Duration           // longest wait for an answer; 0 means DefaultTimeout
	DenyCache time.Duration           // how long a denial is remembered at most; 0: not at all
	Logger    *slog.Logger
}

// Store keeps states in Redis. All methods are safe for concurrent use. Close it when it is no longer used.
type Store struct {
	prefix     string
	hashTag    func(key []byte) []byte
	counters   Counters
	timeout    time.Duration
	script     string
	sha        string // of script, its name in Redis
	connection *connection
	cluster    bool
	clock      *clocks
	seed       maphash.Seed // of keys
	denials    *denials
	lanes      []*lane
	calls      sync.Pool // of *call
	timers     sync.Pool // of *time.Timer, stopped
	counts     *counts
	seconds    *Store                    // of Options.Seconds; nil where there is none
	given      func() algorithms.Instant // the instant, in tests; nil: Redis's time

	latest  chan *call      // calls of later
	running context.Context // until what Close sends is sent
	stop    func()
}

// New returns a store and starts to connect; it does not wait for that. It fails when an option is out of bounds.
func New(o Options) (*Store, error) {
	var errs []error
	if o.Logger == nil {
		errs = append(errs, errors.New("logger: must not be nil"))
	}
	if o.Target.topology == "" {
		errs = append(errs, errors.New("target: must be one of ParseTarget"))
	}
	if o.Timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout: %v: must be more than 0", o.Timeout))
	}
	if j := o.Counters.Jitter; j < 0 || j > MaxJitter {
		errs = append(errs, fmt.Errorf("jitter of counters: %v: must be 0s to %v", j, MaxJitter))
	}
	if o.DenyCache < 0 {
		errs = append(errs, fmt.Errorf("deny cache: %v: must be at least 0", o.DenyCache))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	script, err := readScript()
	if err != nil {
		return nil, err
	}
	sum := sha1.Sum([]byte(script)) //nolint:gosec // see the import
	s := &Store{
		prefix:     o.Prefix,
		hashTag:    o.HashTag,
		counters:   o.Counters,
		timeout:    o.Timeout,
		script:     script,
		sha:        hex.EncodeToString(sum[:]),
		connection: dial(o.Target, o.Logger),
		seed:       maphash.MakeSeed(),
		counts:     new(counts),
	}
	s.cluster = s.connection.cluster()
	known := 1
	if s.cluster {
		known = slots
	}
	s.clock = newClocks(known)
	s.calls.New = func() any { return newCall() }
	s.timers.New = func() any {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return t
	}
	if o.Seconds != nil {
		second := o
		second.Target, second.Seconds, second.DenyCache = *o.Seconds, nil, 0
		if s.seconds, err = New(second); err != nil {
			s.connection.close()
			return nil, fmt.Errorf("limits of a second: %w", err)
		}
		s.seconds.counts = s.counts
	}
	s.start(o.DenyCache)
	return s, nil
}

// start starts what runs until Close.
func (s *Store) start(denyCache time.Duration) {
	var sending, background sync.WaitGroup
	running, cancel := context.WithCancel(context.Background())
	s.running = running
	lanes := singleLanes
	if s.cluster {
		lanes = clusterLanes
	}
	for range lanes {
		l := newLane(s)
		s.lanes = append(s.lanes, l)
		sending.Go(l.run)
	}
	ctx, end := context.WithCancel(context.Background())
	s.latest = make(chan *call, laterCalls)
	background.Go(func() { s.runLater(ctx) })
	s.denials = newDenials(s, denyCache)
	background.Go(func() { s.denials.run(ctx) })
	s.stop = sync.OnceFunc(func() {
		end()
		background.Wait()
		for _, l := range s.lanes {
			l.close()
		}
		sending.Wait()
		if s.seconds != nil {
			s.seconds.Close()
		}
		cancel()
		s.connection.close()
	})
}

// How many batches may be on their way at once: so many that one waits while another is decided; in a cluster, that each
// server has some of its own.
const (
	singleLanes  = 4
	clusterLanes = 16
)

// Close sends what waits to be sent, ends all that New started and closes the connection. The store must not be used after.
// Closing twice is harmless.
func (s *Store) Close() { s.stop() }

// Await waits until the first attempt to connect has ended, and returns why it failed, if it did. Connecting goes on.
func (s *Store) Await(ctx context.Context) error {
	err := s.connection.first(ctx)
	if s.seconds != nil {
		err = errors.Join(err, s.seconds.Await(ctx))
	}
	return err
}

// Ping asks Redis what requests ask of it, in the time that they have: to run the script and to write, a key that is gone
// after a millisecond. In a cluster that is each time another one, and of two servers one of them, so that a part that is away
// is found in time. It waits for the first attempt to connect.
func (s *Store) Ping(ctx context.Context) error {
	if s.seconds != nil && rand.Uint32()%2 == 0 {
		return s.seconds.Ping(ctx)
	}
	if err := s.connection.first(ctx); err != nil && ctx.Err() != nil {
		return err
	}
	c := store.Charge{
		Key:   fmt.Appendf(nil, "ping%d", rand.Uint32()),
		Limit: algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: algorithms.MaxHits, Period: algorithms.MinPeriod},
		Hits:  1,
	}
	_, err := s.ask(ctx, []store.Charge{c}, make([]algorithms.Decision, 1))
	return err
}

// Forget forgets which keys were denied, as when rules change: the next request for each asks Redis.
func (s *Store) Forget() { s.denials.forget() }

// Take implements [store.Store]. Besides the error of ctx it fails with one that wraps [ErrUnavailable] when there is no
// connection, [context.DeadlineExceeded] when Redis has not answered in time (then it may still have charged),
// [store.ErrLimit] for a period that is no whole number of microseconds, and with what Redis said.
func (s *Store) Take(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if s.Known(charges, decisions) {
		return false, nil
	}
	return s.ask(ctx, charges, decisions)
}

// Known decides a request that is known to be denied without asking Redis, see Options.DenyCache, and reports whether it did.
func (s *Store) Known(charges []store.Charge, decisions []algorithms.Decision) bool {
	return s.denials.deny(charges, decisions)
}

// Asking returns the same store, but that its Take always asks Redis: for who looks at Known apart, as it wants to know
// whether Redis answers.
func (s *Store) Asking() store.Store { return asking{s} }

type asking struct{ *Store }

// Take implements [store.Store].
func (a asking) Take(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	return a.ask(ctx, charges, decisions)
}

// ask is Take of a request that is not known to be denied.
func (s *Store) ask(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	atMost, err := s.patience(ctx)
	if err != nil {
		return false, err
	}
	if len(charges) == 0 {
		return true, nil
	}
	if err := exact(charges); err != nil {
		return false, err
	}
	defer s.denials.refunded(charges)
	now := s.now()
	if s.cluster || s.seconds != nil && len(charges) > 1 {
		if parts := s.parts(now, charges); len(parts) > 1 {
			return s.takeParts(ctx, parts, charges, decisions, atMost)
		}
	}
	c := s.call(take, s.locate(&charges[0], now), now, charges)
	s.denials.begin(c)
	if err := s.do(ctx, c, atMost); err != nil {
		return false, err
	}
	copy(decisions, c.decisions)
	admitted := c.admitted
	s.denials.learn(c)
	s.calls.Put(c)
	return admitted, nil
}

// Peek implements [store.Store]. It fails as Take does.
func (s *Store) Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	atMost, err := s.patience(ctx)
	if err != nil {
		return err
	}
	if err := exact(charges); err != nil {
		return err
	}
	now, calls := s.now(), make([]*call, len(charges))
	for i := range charges {
		s.denials.pay(charges[i : i+1])
		calls[i] = s.call(peek, s.locate(&charges[i], now), now, charges[i:i+1])
	}
	if err := s.doAll(ctx, calls, time.Now().Add(atMost)); err != nil {
		return err
	}
	for i, c := range calls {
		decisions[i] = c.decisions[0]
		s.calls.Put(c)
	}
	return nil
}

// exact returns an error unless Redis can keep the charges' limits exactly.
func exact(charges []store.Charge) error {
	for i := range charges {
		if period := charges[i].Limit.Period; period%Granularity != 0 {
			return fmt.Errorf("%w: period %v must be a whole number of microseconds", store.ErrLimit, period)
		}
	}
	return nil
}

// call returns a call of charges at one location, of that instant by this process's clock.
func (s *Store) call(k kind, where location, at algorithms.Instant, charges []store.Charge) *call {
	c, _ := s.calls.Get().(*call)
	c.set(k, where, at, charges)
	return c
}
