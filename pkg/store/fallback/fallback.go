// Package fallback makes one store of two: a primary store, which may be slow or away, and a local
// store, which never is. While the primary serves, it decides everything. When the primary fails a
// request, or is not asked because it failed too often, each charge goes by its OnError. Local: the
// local store decides the charge. Allow: the charge is allowed. Deny: the hits are denied. The
// request stays one transaction as package store says, also with charges of several policies.
//
// # Counts
//
// The two stores share their counts as far as they can. Each answer of the primary leaves its
// states in the local store, so the local store goes on where the primary was last seen
// ([store.Local]). A key that this process has not seen is full.
//
// While the primary cannot be asked, this process admits its share. In the local store each hit
// costs as many hits as there are processes (Options.Fleet). So if all have seen the same states
// and are cut off together, they admit at most the hits that were left. A process that has not seen
// the hits of others can admit its share of these again. A limit below the number of processes
// counts as that many processes, so that a full key admits at least one hit in each. If Fleet is
// too small, the processes admit more in the proportion; if it is too large, they admit less.
//
// The primary is charged later with the hits that the local store applied (Options.Outbox), also
// above its limits, and in their own windows only. If a request was not answered,
// [store.Unanswered] charges only the hits that the primary has not applied itself. Each process
// finds out by itself that the primary is back. The rest is for all, so all should tell their hits
// first. Limits of a minute and more stay divided for as long as the outage was, at most for
// Options.MaxOpen and a second.
//
// Requests without a charge by Local carry nothing back. A refund gives back its own hits in the
// local store, and later in the primary.
//
// # Holders
//
// A begin that the local store admits holds its share here, and the primary is told of it later
// (Options.Outbox, if that is a [store.Remote]). The end of a holder that has begun here is
// settled here, and the primary is told. Any other holder may have begun in the primary: the end
// changes nothing here, and the primary is told under each policy. So slots that were held when the
// primary went away stay held here, until the last holder runs out at the latest.
//
// The end of a holder that was denied here has no cost, also when the primary is back. A primary
// that was asked about the begin, and did not answer, may have admitted the holder. The end then
// tells the primary to cancel the holder. The primary may be told twice, as the second time does
// nothing. So the outcome of a late request need not be known.
//
// A begin that is allowed by the policy Allow holds nothing, and the primary is not told. The end
// is charged with its true cost.
//
// # The breaker
//
//	closed     the primary is asked. Options.Failures failures over Options.FailingFor, without a success in between, open the breaker.
//	open       the primary is not asked. After an interval a goroutine calls Options.Probe. After a success the breaker is
//	           half-open; after a failure the interval doubles, from Options.MinOpen to Options.MaxOpen.
//	half-open  one request at a time may ask the primary; the others go on without it. Three successes in a row close the
//	           breaker, and so does a good probe if no request comes for Options.MinOpen. A failure opens the breaker, for twice as long.
//
// The breaker starts open, with a probe at once. The outcome closes the breaker, or opens it as
// failures do. So a request never waits for a primary that was away from the start. A request that
// began before a change of state does not count after it.
//
// Two errors are no failures of the primary: the caller's cancellation, and [store.ErrLimit], after
// which the policies decide that one request. A deadline that passes while the primary is asked is
// a failure, also the caller's own deadline. The policies then still answer, in microseconds.
//
// A slow primary is not an absent one. A missed deadline does not count if the primary has
// completed a round trip since the first of the failures in a row (Options.Answered). A primary
// that owes answers and gives none is absent also if no request has failed yet, as callers may wait
// long (Options.Silent).
package fallback

import (
	"cmp"
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

// Store is a primary store with a local one beside it. All methods are safe for concurrent use.
// Close it to end the probes.
type Store struct {
	primary, local   store.Store
	probe            func(context.Context) error
	unavailable      error
	answeredAt       func() time.Time     // may be nil
	silent           func() time.Duration // may be nil
	continuer        store.Local          // the local store; nil if it cannot go on from states
	fleet            func() int           // may be nil
	outbox           outbox               // may be nil
	holders          holdOutbox           // may be nil
	holdersUntil     atomic.Int64         // until then the local store may know holders, in nanoseconds since started
	now              func() algorithms.Instant
	started          time.Time
	failures         int64
	failingFor       time.Duration
	minOpen, maxOpen time.Duration
	logger           *slog.Logger

	unused    time.Duration // a period that no rule has
	withouts  sync.Pool     // of *without
	names     sync.Pool     // of *names
	questions sync.Pool     // of *question
	instead   sync.Pool     // of *[]int64
	askings   sync.Pool     // of *asking
	phase     atomic.Pointer[phase]
	changed   chan struct{} // wakes the watcher after a request changed the phase
	answered  chan struct{} // closed when the first probe has ended
	metrics   metrics
	stop      func()
}

type outbox interface {
	Later(c *store.Charge, at algorithms.Instant)
}

type holdOutbox interface {
	HoldLater(c *store.Charge, at algorithms.Instant)
}

// Forget implements [store.Store].
func (s *Store) Forget() { s.primary.Forget() }

// New returns a store whose breaker is open until the first probe has answered. New does not wait,
// and fails when an option is missing or out of bounds.
func New(o Options) (*Store, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	minOpen := cmp.Or(o.MinOpen, DefaultMinOpen)
	s := &Store{
		primary:     o.Primary,
		local:       o.Local,
		probe:       o.Probe,
		unavailable: o.Unavailable,
		answeredAt:  o.Answered,
		silent:      o.Silent,
		fleet:       o.Fleet,
		outbox:      o.Outbox,
		now:         o.Now,
		started:     time.Now(),
		failures:    int64(cmp.Or(o.Failures, DefaultFailures)),
		failingFor:  cmp.Or(o.FailingFor, DefaultFailingFor),
		minOpen:     minOpen,
		maxOpen:     cmp.Or(o.MaxOpen, max(DefaultMaxOpen, minOpen)),
		logger:      o.Logger,
		unused:      algorithms.MaxPeriod - (1+rand.N[time.Duration](1<<47))*time.Microsecond,
		changed:     make(chan struct{}, 1),
		answered:    make(chan struct{}),
	}
	s.continuer, _ = o.Local.(store.Local)
	s.holders, _ = o.Outbox.(holdOutbox)
	if s.now == nil {
		s.now = func() algorithms.Instant { return algorithms.Instant(time.Now().UnixNano()) }
	}
	s.withouts.New = func() any { return new(without) }
	s.names.New = func() any { return new(names) }
	s.questions.New = func() any { return new(question) }
	s.instead.New = func() any { return new([]int64) }
	s.askings.New = func() any { return new(asking) }
	now := time.Now()
	first := &phase{state: Open, first: true, since: now, away: now, next: now, reason: errUnasked}
	s.phase.Store(first)
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(ctx, first) })
	s.stop = func() { cancel(); watching.Wait() }
	return s, nil
}

// Await waits until the first probe has ended, either way, and fails only when ctx ends before
// that.
func (s *Store) Await(ctx context.Context) error {
	select {
	case <-s.answered:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the probes and waits for their end. Close closes neither of the two stores. The store
// must not be used after. Closing twice is harmless.
func (s *Store) Close() { s.stop() }

// enter returns the phase in which a request may ask the primary; nil if it may not. After the
// answer the request must call succeeded or failed.
func (s *Store) enter(charges []store.Charge) *phase {
	p := s.phase.Load()
	if p.telling.Load() && p.isTelling() && outlast(charges) {
		return nil
	}
	if p.enter() && !s.isSilent(p) {
		return p
	}
	return nil
}

// ask has the primary asked, unless the breaker forbids it, and reports whether the primary
// answered. An error is the caller's.
func (s *Store) ask(ctx context.Context, primary func() error) (answered bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	p := s.enter(nil)
	if p == nil {
		return false, nil
	}
	if err := primary(); err != nil {
		return false, s.failed(ctx, p, err)
	}
	s.succeeded(p)
	return true, nil
}

// Peek implements [store.Store]. Peek fails as Take does.
func (s *Store) Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	answered, err := s.ask(ctx, func() error { return s.primary.Peek(ctx, charges, decisions) })
	if answered || err != nil {
		return err
	}
	return s.peekWithout(ctx, charges, decisions)
}

// Reset implements [store.Store]: it forgets the states in both stores and returns how many the
// primary had. If the primary cannot be asked or fails, the number is the local store's, and the
// error wraps the reason. The local store keeps its states when ctx has ended before the start, or
// its caller cancels it while the primary is asked.
func (s *Store) Reset(ctx context.Context, charges []store.Charge) (forgotten int, err error) {
	var cause error
	answered, err := s.ask(ctx, func() error {
		forgotten, cause = s.primary.Reset(ctx, charges)
		return cause
	})
	if err != nil {
		return 0, err
	}
	local, err := s.local.Reset(context.WithoutCancel(ctx), charges)
	if err != nil {
		err = fmt.Errorf("reset the local store: %w", err)
	}
	if answered {
		return forgotten, err
	}
	if cause == nil { // nobody asked
		cause = cmp.Or(s.phase.Load().reason, errUnasked)
	}
	if err != nil {
		return local, errors.Join(fmt.Errorf("reset the store: %w", cause), err)
	}
	return local, fmt.Errorf("only this process's own memory was reset: %w", cause)
}
