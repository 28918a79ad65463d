// Package shared is a store over two stores, for a count that several processes share. A remote
// store, such as Redis, decides. A local store goes on while the remote one does not answer. In
// front of both are allotments: the rights of this process to decide alone for one key until an
// instant. One transaction takes five steps, see [Store.TakeAll].
//
// # Near: leases
//
// A lease is several hits of a hot key that the remote store has charged in advance, and that this
// process spends by itself. So a fleet of processes never admits more than one would. The type
// lease has the rules, and says why.
//
// A key that is asked several times in 100 ms gets a lease. A lease has about as many hits as come
// in 100 ms, and never more than a fair part of the rest. The next hits are asked for in the
// background before the last ones are spent. Hits that are not spent go back at the end of the
// lease, after a second at most. A key that is asked rarely, or that is close to its limit, has no
// lease.
//
// Never leased are refunds, charges with Charge.Exact or in quota mode, and charges of
// sliding_window_log. With CountRejected only fixed_window is leased. A request with several
// charges spends leased hits and asks about the others. If the others deny it, the leased hits are
// put back.
//
// # Near: denials
//
// After a denied request the state that the remote store left is remembered for each key. A later
// request is denied if each of its keys is remembered, and package algorithms still denies these
// states. So a flood over a limit costs the remote store nothing. A refund or a reset through this
// store forgets its keys at once; a change of rules forgets all keys. Denials go on while the
// breaker is open, and are no sign of the remote store's health.
//
// # Without the remote store
//
// The type breaker says whether the remote store may be asked. When it may not, or fails a request,
// each charge goes by its OnError. Local: the local store decides the charge. Allow: the charge is
// allowed. Deny: the hits are denied. The request stays one transaction as package store says.
//
// Each answer of the remote store leaves its states in the local store, which goes on from there. A
// key that this process has not seen is full. While the remote store cannot be asked, this process
// admits its share: see cost. The remote store is charged later with the hits that the local store
// applied, also above its limits, and in their own windows only. If a request was not answered,
// [store.Unanswered] charges only the hits that the remote store has not applied itself.
//
// Each process finds out by itself that the remote store is back. The rest is for all, so all
// should charge their hits first. Limits stay divided until all have, for as long as the outage
// was, at most for 1.4 seconds.
//
// # Holders
//
// A transaction with a holder has no allotment: the remote store must remember that the holder was
// denied, or has ended.
//
// A begin that the local store admits holds its share here, and the remote store is told of it
// later. The end of a holder that has begun here is settled here, and the remote store is told. Any
// other holder may have begun in the remote store: the end changes nothing here, and the remote
// store is told under each policy. So slots that were held when it went away stay held here, until
// the last holder runs out at the latest.
//
// The end of a holder that was denied here has no cost, also when the remote store is back. A
// remote store that was asked about the begin, and did not answer, may have admitted the holder.
// The end then cancels the holder there, twice at most, as the second time does nothing.
//
// A begin that is allowed by the policy Allow holds nothing, and the remote store is not told. The
// end is charged with its true cost.
package shared

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

// DefaultDenials is Options.Denials for most users.
const DefaultDenials = time.Second

// AwaitTimeout is how long Await of the remote store has to answer. An attempt to connect
// takes less, so that the error names the failure.
const AwaitTimeout = 3 * time.Second

// Options configures New. Remote, Local and Logger must be given.
type Options struct {
	Remote store.Remote // must tell states, bound its waits itself, and end them a little before the caller's deadline
	Local  store.Local  // keeps its windows by the clock of Remote

	Denials time.Duration // how long a denial is remembered at most; 0: not at all

	// Unavailable marks errors of a remote store without a connection, which wrap it, for Stats.
	// Nil: Stats has no such errors.
	Unavailable error

	// Span is called with the context of a transaction, and the number of its charges, before Remote
	// is asked about it. Span returns the context for Remote, and a function that takes the outcome.
	// Nil: no need.
	Span func(ctx context.Context, charges int) (context.Context, func(error))

	// Now returns the instant by the clock of Remote, for denials. Nil: the instant of a key's last
	// answer, and the time since.
	Now func() algorithms.Instant

	Logger *slog.Logger // gets one line per change of the breaker's state

	pace pace // the zero value, but in tests
}

func (o *Options) validate() error {
	var errs []error
	refuse := func(mistaken bool, format string, args ...any) {
		if mistaken {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(o.Remote == nil, "remote: must be given")
	refuse(o.Local == nil, "local: must be given")
	refuse(o.Logger == nil, "logger: must be given")
	refuse(o.Denials < 0, "denials: %v: must be at least 0", o.Denials)
	return errors.Join(errs...)
}

// Store is a remote store with a local one beside it, and allotments in front of both. All methods
// are safe for concurrent use. Close it when it is no longer used.
type Store struct {
	remote store.Remote
	local  store.Local
	span   func(ctx context.Context, charges int) (context.Context, func(error)) // may be nil

	clock     func() algorithms.Instant // see Options.Now; may be nil
	started   time.Time                 // of the instants of allotments
	maxAge    time.Duration             // of denials
	sweepRest time.Duration             // shortest time between two sweeps of a shard
	table     table
	wants     wants
	trip      atomic.Int64 // see learnTrip, in nanoseconds
	breaker   *breaker

	unused       time.Duration // a period that no rule has
	holdersUntil atomic.Int64  // until then the local store may know holders, in nanoseconds since started

	rounds      sync.Pool // of *round
	questions   sync.Pool // of *question
	substitutes sync.Pool // of *substitutes
	metrics     metrics
	stop        func()
}

// New returns a store without allotments. The breaker is open until the remote store has answered.
// New does not wait, and fails when an option is missing or out of bounds.
func New(o Options) (*Store, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Store{
		remote:    o.Remote,
		local:     o.Local,
		span:      o.Span,
		clock:     o.Now,
		started:   time.Now(),
		maxAge:    o.Denials,
		sweepRest: min(sweepEvery/2, cmp.Or(o.Denials, sweepEvery)),
		wants:     wants{signal: make(chan struct{}, 1)},
		unused:    algorithms.MaxPeriod - (1+rand.N[time.Duration](1<<47))*time.Microsecond,
	}
	s.table.filled = make(chan struct{}, 1)
	s.breaker = newBreaker(o, &s.metrics)
	s.rounds.New = func() any { return newRound(s) }
	s.questions.New = func() any { return new(question) }
	s.substitutes.New = func() any { return new(substitutes) }
	for i := range s.table.shards {
		s.table.shards[i].allotments = make(map[string]allotment)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for range askers {
		running.Go(func() { s.askForLeases(ctx) })
	}
	running.Go(func() { s.sweep(ctx) })
	s.breaker.start()
	s.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		s.breaker.close()
		s.recall()
	})
	return s, nil
}

// Close ends all that New started, and gives the hits of all leases back. Close closes neither of
// the two stores, and must come before the end of both. The store must not be used after. Closing
// twice is harmless.
func (s *Store) Close() { s.stop() }

// Await waits until the remote store has answered once, or has failed, and fails only when ctx ends
// before that.
func (s *Store) Await(ctx context.Context) error {
	return s.breaker.await(ctx)
}

// now returns the instant by the clock of allotments.
func (s *Store) now() time.Duration { return time.Since(s.started) }

// askAlone has the remote store asked about charges, unless the breaker forbids it, and reports
// whether it answered. An error is the caller's.
func (s *Store) askAlone(ctx context.Context, charges []store.Charge, remote func() error) (answered bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	in := s.breaker.enter(charges, nil)
	if in == nil {
		return false, nil
	}
	if err := remote(); err != nil {
		return false, s.breaker.failed(ctx, in, err)
	}
	succeeded(in)
	return true, nil
}

// Peek implements [store.Store]. Peek fails as TakeAll does.
func (s *Store) Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rest, to := charges, decisions // that no lease answers
	var indexes []int
	if s.table.tracked.Load() > 0 {
		rest = nil
		for i := range charges {
			if !s.peekLease(&charges[i], &decisions[i]) {
				rest, indexes = append(rest, charges[i]), append(indexes, i)
			}
		}
		to = make([]algorithms.Decision, len(rest))
	}
	if len(rest) == 0 && len(charges) > 0 {
		return nil
	}
	answered, err := s.askAlone(ctx, rest, func() error { return s.remote.Peek(ctx, rest, to) })
	if err == nil && !answered {
		err = s.peekWithout(rest, to)
	}
	if err != nil {
		return err
	}
	for n, i := range indexes {
		decisions[i] = to[n]
	}
	return nil
}

// peekLease gives a charge the decision of a lease, and reports whether the lease suffices. A lease
// that does not goes back.
func (s *Store) peekLease(c *store.Charge, to *algorithms.Decision) bool {
	if !leasable(c) {
		return false
	}
	now := s.now()
	sh := s.table.lock(c)
	defer sh.mu.Unlock()
	k := s.leaseLocked(sh, c, now)
	if k == nil || k.first.left == 0 {
		return false
	}
	if held := k.held(now); held == 0 || held < c.Hits {
		s.giveLocked(k, k.limit, now, k.release())
		return false
	}
	*to = k.peek(now, c.Hits)
	c.TellSource(store.Lease)
	return true
}

// Reset implements [store.Store]: it forgets the states in both stores and returns how many the
// remote store had. If that cannot be asked or fails, the number is the local store's, and the
// error wraps the reason. The local store keeps its states when ctx has ended before the start, or
// its caller cancels it while the remote store is asked. Leases that other processes hold on the
// keys can be spent until their end, a second later at most.
func (s *Store) Reset(ctx context.Context, charges []store.Charge) (forgotten int, err error) {
	s.reset(charges)
	defer s.reset(charges) // again: an answer that came meanwhile may be of the state before
	var cause error
	answered, err := s.askAlone(ctx, charges, func() error {
		forgotten, cause = s.remote.Reset(ctx, charges)
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
		cause = s.breaker.reason(charges)
	}
	if err != nil {
		return local, errors.Join(fmt.Errorf("reset the store: %w", cause), err)
	}
	return local, fmt.Errorf("only this process's own memory was reset: %w", cause)
}

// Holders implements [store.Store], if the primary does. If the primary cannot be asked or fails,
// the list has the holders that have begun here without it. The zero Holder then has the
// slots that were held when it last answered.
func (s *Store) Holders(ctx context.Context, charge *store.Charge, most int) (held []store.Held, all int, err error) {
	var refused error
	answered, err := s.askAlone(ctx, []store.Charge{*charge}, func() (failed error) {
		held, all, failed = s.remote.Holders(ctx, charge, most)
		if errors.Is(failed, store.ErrNotListed) { // an answer
			refused, failed = failed, nil
		}
		return failed
	})
	if answered || err != nil {
		return held, all, cmp.Or(err, refused)
	}
	held, all, err = s.local.Holders(context.WithoutCancel(ctx), charge, most)
	for i := range held {
		if held[i].Holder != (store.Holder{}) {
			held[i].Hits = uint32(priceOf(charge, s.breaker.share()).buys(uint64(held[i].Hits)))
		} else {
			held[i].Hits /= units(charge.Limit)
		}
	}
	return held, all, err
}

// Forget implements [store.Store]: Forget recalls all leases of this process, and forgets all
// denials.
func (s *Store) Forget() {
	s.recall()
	s.remote.Forget()
	s.local.Forget()
}
