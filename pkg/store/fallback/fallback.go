// Package fallback makes one store of two: a primary one, which may be slow or away, and a local one, which never is. While
// the primary serves it decides everything. Where it fails a request, or is not asked as it failed too often, each charge
// goes by its OnError: Local, the local store decides it; Allow, it is allowed; Deny, its hits are denied. The request stays
// one transaction as package store says, whatever its charges' policies.
//
// Nothing is carried over between the two. When the primary is back its counts rule again, as it has them: what was admitted
// without it is not added. States that the local store made in between stay there and expire by themselves; should the
// primary go away again soon, they count. A charge that the primary failed may still have been applied there: a request that
// nobody answered is lost or late, and nothing can tell.
//
// # The breaker
//
//	closed     the primary is asked. Options.Failures failures over Options.FailingFor, without a success in between, open it.
//	open       the primary is not asked. After an interval Options.Probe is, by a goroutine; when it answers well the breaker
//	           is half-open, else the interval doubles, from Options.MinOpen to Options.MaxOpen.
//	half-open  one request at a time is let through, the others go on without the primary. Three successes in a row close the
//	           breaker, or one good probe more when none comes for Options.MinOpen; a failure opens it, for twice as long.
//
// It starts open, with a probe at once, whose outcome decides: closed, or open as after failures. So no request of a process
// without its primary ever waits for it. What began before a change of state has no part in what follows it.
//
// Not a failure of the primary are: what ends by its caller's cancellation, and [store.ErrLimit], for which the policies
// decide that one request. A deadline that passes while the primary is asked is one, also the caller's own; the policies
// then still answer, which takes microseconds.
package fallback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

var _ store.Store = (*Store)(nil)

// Defaults and bounds of Options.
const (
	DefaultFailures   = 5
	DefaultFailingFor = 25 * time.Millisecond
	DefaultMinOpen    = 100 * time.Millisecond
	DefaultMaxOpen    = 5 * time.Second
	LongestOpen       = time.Hour
)

// ProbeTimeout is how long Options.Probe has to answer: longer than an attempt to connect, so that it can say why that failed.
const ProbeTimeout = 3 * time.Second

// Options is what New needs. Primary, Local, Probe and Logger must be given.
type Options struct {
	Primary store.Store // must bound its waits itself, and end them a little before the caller's deadline
	Local   store.Store // must never fail, and take any valid limit
	// Probe asks whether the primary would serve; nil means that it would. It runs in one goroutine and should wait, as long
	// as ctx lasts, for a connection that is being made.
	Probe func(ctx context.Context) error
	// Unavailable is what an error of the primary wraps when there is nothing to ask, for Stats; nil: not told apart.
	Unavailable error

	// Known decides a request, denying it, where that needs no asking of the primary; nil: every request is asked. What it
	// decides says nothing of the primary's health. E.g. redisstore.Store.Known.
	Known func(charges []store.Charge, decisions []algorithms.Decision) bool

	Failures   int           // failures without a success in between that open the breaker; 0 means DefaultFailures
	FailingFor time.Duration // and how long they must have gone on; 0 means DefaultFailingFor
	MinOpen    time.Duration // first interval; the waits drawn from one are three quarters of it to all of it; 0 means DefaultMinOpen
	MaxOpen    time.Duration // longest interval, at most LongestOpen; 0 means DefaultMaxOpen, or MinOpen when that is longer

	Logger *slog.Logger // gets one line per change of the breaker's state
}

// Store is a primary store with a local one beside it. All methods are safe for concurrent use. Close it to end the probes.
type Store struct {
	primary, local   store.Store
	probe            func(context.Context) error
	unavailable      error
	known            func([]store.Charge, []algorithms.Decision) bool
	started          time.Time
	limit            int64         // failures that open the breaker
	failingFor       time.Duration // and for how long
	minOpen, maxOpen time.Duration
	logger           *slog.Logger

	unused   time.Duration // a period that no rule has
	scratch  sync.Pool     // of *[]store.Charge
	phase    atomic.Pointer[phase]
	changed  chan struct{} // tells the watcher that a request changed the phase
	answered chan struct{} // closed when the first probe has ended
	counts   counts
	stop     func()
}

// New returns a store whose breaker is open until the first probe has answered. It waits for nothing. It fails when
// something is not given or out of bounds.
func New(o Options) (*Store, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Failures == 0 {
		o.Failures = DefaultFailures
	}
	if o.FailingFor == 0 {
		o.FailingFor = DefaultFailingFor
	}
	if o.MinOpen == 0 {
		o.MinOpen = DefaultMinOpen
	}
	if o.MaxOpen == 0 {
		o.MaxOpen = max(DefaultMaxOpen, o.MinOpen)
	}
	s := &Store{
		primary:     o.Primary,
		local:       o.Local,
		probe:       o.Probe,
		unavailable: o.Unavailable,
		known:       o.Known,
		started:     time.Now(),
		limit:       int64(o.Failures),
		failingFor:  o.FailingFor,
		minOpen:     o.MinOpen,
		maxOpen:     o.MaxOpen,
		logger:      o.Logger,
		unused:      algorithms.MaxPeriod - (1+rand.N[time.Duration](1<<47))*time.Microsecond,
		changed:     make(chan struct{}, 1),
		answered:    make(chan struct{}),
	}
	s.scratch.New = func() any { return new([]store.Charge) }
	now := time.Now()
	first := &phase{state: Open, first: true, since: now, away: now, next: now, reason: errUnasked}
	s.phase.Store(first)
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(ctx, first) })
	s.stop = func() { cancel(); watching.Wait() }
	return s, nil
}

// validate reports everything that is wrong with the options, joined.
func (o *Options) validate() error {
	var errs []error
	for _, part := range []struct {
		name    string
		missing bool
	}{
		{"primary", o.Primary == nil},
		{"local", o.Local == nil},
		{"probe", o.Probe == nil},
		{"logger", o.Logger == nil},
	} {
		if part.missing {
			errs = append(errs, fmt.Errorf("%s: must be given", part.name))
		}
	}
	if o.Failures < 0 {
		errs = append(errs, fmt.Errorf("failures: %d: must be at least 1", o.Failures))
	}
	if o.FailingFor < 0 {
		errs = append(errs, fmt.Errorf("failing for: %v: must be more than 0", o.FailingFor))
	}
	if o.MinOpen < 0 || o.MinOpen > LongestOpen {
		errs = append(errs, fmt.Errorf("min open: %v: must be more than 0 and at most %v", o.MinOpen, LongestOpen))
	}
	shortest := o.MinOpen
	if shortest <= 0 || shortest > LongestOpen {
		shortest = DefaultMinOpen
	}
	if o.MaxOpen != 0 && (o.MaxOpen < shortest || o.MaxOpen > LongestOpen) {
		errs = append(errs, fmt.Errorf("max open: %v: must be between min open (%v) and %v", o.MaxOpen, shortest, LongestOpen))
	}
	return errors.Join(errs...)
}

// Await waits until the first probe has ended, either way, and fails only when ctx ends before that.
func (s *Store) Await(ctx context.Context) error {
	select {
	case <-s.answered:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the probes and waits until they have. It closes neither store. The store must not be used after. Closing twice
// is harmless.
func (s *Store) Close() { s.stop() }

// Take implements [store.Store]. It fails when ctx has ended before anything was asked or is canceled by its caller while
// the primary is asked, and else only when the local store does.
func (s *Store) Take(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if s.known != nil && s.known(charges, decisions) {
		return false, nil
	}
	if p := s.phase.Load(); p.enter() {
		admitted, err := s.primary.Take(ctx, charges, decisions)
		if err == nil {
			s.succeeded(p)
			return admitted, nil
		}
		if err := s.failed(ctx, p, err); err != nil {
			return false, err
		}
	}
	return s.takeWithout(ctx, charges, decisions)
}

// Peek implements [store.Store]. It fails as Take does.
func (s *Store) Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p := s.phase.Load(); p.enter() {
		err := s.primary.Peek(ctx, charges, decisions)
		if err == nil {
			s.succeeded(p)
			return nil
		}
		if err := s.failed(ctx, p, err); err != nil {
			return err
		}
	}
	return s.peekWithout(ctx, charges, decisions)
}

// Reset implements [store.Store]: it forgets the states in both stores and returns how many the primary had. Where the
// primary cannot be asked or fails, the number is the local store's and the error says why only that was reset; it wraps the
// primary's. When ctx has ended before anything was asked, or is canceled while the primary is, the local store is left as
// it is.
func (s *Store) Reset(ctx context.Context, charges []store.Charge) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	p := s.phase.Load()
	cause := p.reason
	if p.enter() {
		var forgotten int
		if forgotten, cause = s.primary.Reset(ctx, charges); cause == nil {
			s.succeeded(p)
			if _, err := s.local.Reset(context.WithoutCancel(ctx), charges); err != nil {
				return forgotten, fmt.Errorf("reset the local store: %w", err)
			}
			return forgotten, nil
		}
		if err := s.failed(ctx, p, cause); err != nil {
			return 0, err
		}
	}
	forgotten, err := s.local.Reset(context.WithoutCancel(ctx), charges)
	if err != nil {
		return forgotten, errors.Join(fmt.Errorf("reset the store: %w", cause), fmt.Errorf("reset the local store: %w", err))
	}
	return forgotten, fmt.Errorf("only this process's own memory was reset: %w", cause)
}
