// Package leased is a store in front of a shared one. Leased takes several hits of a hot key from
// the shared store at once, and spends them by itself. The shared store charges the hits first, so
// a fleet of such stores never admits more than one store would.
//
// A key that is asked several times in 100 ms gets a lease. A lease has about as many hits as come
// in 100 ms, and never more than a fair part of the rest. The next grant is asked for in the
// background before the last one is spent. Hits that are not spent go back at the end of the lease,
// which lasts a second at most. A key that is asked rarely, or that is close to its limit, has no
// lease: the other store decides each request. The type lease has the rules, and says why leases
// never admit too many.
//
// Never leased are refunds, charges with Charge.Exact or in quota mode, and charges of
// sliding_window_log. With CountRejected only fixed_window is leased. A transaction with a holder
// goes to the other store as it is. A request with several charges spends leased hits and asks
// about the others. If the others deny it, the leased hits are put back.
//
// An answer from a lease has the state that the shared store told last, less the hits spent here
// since.
package leased

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

var _ store.Store = (*Store)(nil)

// Options configures New. Store, Shared and Outbox must be given.
type Options struct {
	Store  store.Store // asked for each request that is not decided from leases; in front of Shared
	Shared store.Store // grants hits; must tell states
	Outbox outbox      // of Shared; gets the hits that go back

	Ready func() bool // whether Shared may be asked for a grant; nil: always
	Fleet func() int  // how many processes share Shared; nil, or less than 1: one
	// Local goes on from the states that Shared told with its grants. Nil: no need.
	Local continuer
	// Late returns how long Shared has owed answers without giving one; 0 as long as that is usual.
	// While Shared is late, a request of a key that waits for a grant goes to Without. Without decides
	// without Shared, so the request does not wait. Nil: such requests ask Store.
	Late    func() time.Duration
	Without func(charges []store.Charge, decisions []algorithms.Decision) (admitted bool, err error)
	// Wall returns the instant by the clock that aligns fixed windows in Shared. Nil: Shared's own
	// clock does.
	Wall func() algorithms.Instant
}

type outbox interface {
	Later(c *store.Charge, at algorithms.Instant)
}

type continuer interface {
	Continue(charges []store.Charge, states []store.State, decisions []algorithms.Decision)
}

// Store spends leases or asks another store. All methods are safe for concurrent use. Close it when
// it is no longer used.
type Store struct {
	store.Store

	options   Options
	started   time.Time // of the instants of leases
	seed      maphash.Seed
	shards    [shards]shard
	keys      atomic.Int64 // tracked
	questions sync.Pool    // of *question
	rests     sync.Pool    // of *rest
	wants     wants
	trip      atomic.Int64 // see learn, in nanoseconds
	metrics   metrics
	stop      func()
}

// New returns a store that holds no lease. New fails when an option is missing.
func New(o Options) (*Store, error) {
	var errs []error
	if o.Store == nil {
		errs = append(errs, errors.New("store: must be given"))
	}
	if o.Shared == nil {
		errs = append(errs, errors.New("shared: must be given"))
	}
	if o.Outbox == nil {
		errs = append(errs, errors.New("outbox: must be given"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s := &Store{Store: o.Store, options: o, started: time.Now(), seed: maphash.MakeSeed()}
	s.wants.signal = make(chan struct{}, 1)
	s.questions.New = func() any { return new(question) }
	s.rests.New = func() any { return new(rest) }
	for i := range s.shards {
		s.shards[i].keys = make(map[string]*key)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for range askers {
		running.Go(func() { s.askForGrants(ctx) })
	}
	running.Go(func() { s.sweep(ctx) })
	s.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		s.recall()
	})
	return s, nil
}

// Close ends all that New started, and gives the hits of all leases back. Close leaves the other
// stores open, and must come before the end of the outbox. Closing twice is harmless.
func (s *Store) Close() { s.stop() }

// now returns the instant by the clock of leases.
func (s *Store) now() time.Duration { return time.Since(s.started) }

// fleet returns how many processes share the store.
func (s *Store) fleet() int {
	if s.options.Fleet == nil {
		return 1
	}
	return max(1, s.options.Fleet())
}

// leasable reports whether a charge may be decided from a lease.
func leasable(c *store.Charge) bool {
	return !c.Exact && c.Hold == nil && c.Hits >= 0 && (c.Mode == store.Enforce || c.Mode == store.Shadow) && c.Limit.Requests > 0 &&
		c.Limit.Algorithm.HasState() && (!c.CountRejected || c.Limit.Algorithm == algorithms.FixedWindow)
}

// maxCharges is the most charges of a request that spends leases, as each is compared with those
// before it.
const maxCharges = 16

// repeated reports whether another charge has the key of charge i.
func repeated(charges []store.Charge, i int) bool {
	for n := range charges {
		if n != i && string(charges[n].Key) == string(charges[i].Key) {
			return true
		}
	}
	return false
}

// may reports whether a request has to do with leases at all.
func (s *Store) may(charges []store.Charge) bool {
	if s.keys.Load() > 0 {
		return true
	}
	for i := range charges {
		if leasable(&charges[i]) {
			return true
		}
	}
	return false
}

// TakeNow implements [store.Store]. TakeNow decides a request if each of its charges is leased.
// Another one is for the other store, if that is Prompt, or is decided without the shared store if
// that does not answer.
func (s *Store) TakeNow(charges []store.Charge, decisions []algorithms.Decision) (admitted, decided bool) {
	holds := store.Holds(charges)
	if !holds && s.spendAll(charges, decisions) {
		return true, true
	}
	if admitted, decided = s.Store.TakeNow(charges, decisions); decided {
		return admitted, true
	}
	if holds {
		return false, false
	}
	return s.without(charges, decisions)
}

// Peek implements [store.Store]. Peek fails as the other store does.
func (s *Store) Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var rest []store.Charge // that no lease answers
	var indexes []int
	for i := range charges {
		if s.keys.Load() == 0 || !s.peek(&charges[i], &decisions[i]) {
			rest, indexes = append(rest, charges[i]), append(indexes, i)
		}
	}
	if len(rest) == len(charges) {
		return s.Store.Peek(ctx, charges, decisions)
	}
	peeked := make([]algorithms.Decision, len(rest))
	if len(rest) > 0 {
		if err := s.Store.Peek(ctx, rest, peeked); err != nil {
			return err
		}
	}
	for n, i := range indexes {
		decisions[i] = peeked[n]
	}
	return nil
}

// Reset implements [store.Store]. Reset fails as the other store does. Leases that other processes
// hold on the keys can be spent until their end, a second later at most.
func (s *Store) Reset(ctx context.Context, charges []store.Charge) (int, error) {
	s.drop(charges)
	defer s.drop(charges) // again: a grant that came meanwhile may be of the state before
	return s.Store.Reset(ctx, charges)
}

// Forget implements [store.Store]: Forget recalls all leases of this process.
func (s *Store) Forget() {
	s.recall()
	s.Store.Forget()
}
