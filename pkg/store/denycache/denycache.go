// Package denycache is a store in front of another one. The cache remembers the keys that the other
// store denied, so that a flood over a limit costs that store nothing.
//
// After a denied request the cache keeps, for each key, the state that the store left
// ([store.Charge].Left). The cache denies a later request if it knows each key, and package
// algorithms still denies these states at the store's instant now. Other processes can only have
// taken more since. So a denial is wrong only after a refund or a reset elsewhere, and only for
// Options.MaxAge. A request for fewer hits than were denied asks the store, and so does a request
// under another limit. Hits that count though they are denied go to an outbox.
//
// A transaction with a holder goes to the store as it is. The store must remember that the holder
// was denied, or has ended.
//
// Keys and age are bounded. A refund or a reset through the cache forgets its keys at once; a
// change of rules forgets all keys. An answer without states teaches the cache nothing: package
// fallback tells none when it decides without its primary.
//
// The cache belongs in front of package fallback. A denial from memory is no sign of a store's
// health, and goes on while the breaker is open.
package denycache

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

var _ store.Store = (*Store)(nil)

// DefaultMaxAge is a MaxAge that most users want.
const DefaultMaxAge = time.Second

// Options configures New. All but Now must be given.
type Options struct {
	Store  store.Store   // asked for each request that memory does not deny; must tell states to be remembered
	Outbox outbox        // gets the hits that count though they are denied
	MaxAge time.Duration // how long a denial is remembered at most; more than 0

	// Now returns the instant by the store's clock. Nil: the instant of a key's last answer, and the
	// time since.
	Now func() algorithms.Instant
}

type outbox interface {
	Later(c *store.Charge, at algorithms.Instant)
}

// Store denies from memory or asks another store. All methods are safe for concurrent use. Close it
// when it is no longer used.
type Store struct {
	store.Store

	outbox    outbox
	maxAge    time.Duration
	now       func() algorithms.Instant // nil: see Options.Now
	started   time.Time
	seed      maphash.Seed
	keys      atomic.Int64 // remembered
	shards    [shards]shard
	questions sync.Pool // of *question
	rests     sync.Pool // of *rest
	denied    atomic.Uint64
	hits      atomic.Uint64
	stop      func()
}

// New returns a store that remembers nothing yet. New fails when an option is missing or out of
// bounds.
func New(o Options) (*Store, error) {
	var errs []error
	if o.Store == nil {
		errs = append(errs, errors.New("store: must be given"))
	}
	if o.Outbox == nil {
		errs = append(errs, errors.New("outbox: must be given"))
	}
	if o.MaxAge <= 0 {
		errs = append(errs, fmt.Errorf("max age: %v: must be more than 0", o.MaxAge))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s := &Store{Store: o.Store, outbox: o.Outbox, maxAge: o.MaxAge, now: o.Now, started: time.Now(), seed: maphash.MakeSeed()}
	s.questions.New = func() any { return new(question) }
	s.rests.New = func() any { return new(rest) }
	for i := range s.shards {
		s.shards[i].known = make(map[string]*denial)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var sweeping sync.WaitGroup
	sweeping.Go(func() { s.sweep(ctx) })
	s.stop = func() { cancel(); sweeping.Wait() }
	return s, nil
}

// Close ends all that New started. Close leaves the other store open. Closing twice is harmless.
func (s *Store) Close() { s.stop() }

// Stats is the store's metrics at one moment.
type Stats struct {
	Denied uint64 // requests denied from memory
	Hits   uint64 // hits of their denied charges
	Keys   int    // remembered now
}

// Stats returns the store's metrics.
func (s *Store) Stats() Stats {
	return Stats{Denied: s.denied.Load(), Hits: s.hits.Load(), Keys: int(s.keys.Load())}
}

// passed forgets the keys of a transaction with a holder that may have given hits back.
func (s *Store) passed(charges []store.Charge) {
	for i := range charges {
		if c := &charges[i]; c.Hits < 0 || c.Hold != nil && c.Hold.Phase != algorithms.HoldBegin {
			s.forget(c.Key)
		}
	}
}

// Reset implements [store.Store]. Reset fails as the other store does.
func (s *Store) Reset(ctx context.Context, charges []store.Charge) (int, error) {
	forget := func() {
		for i := range charges {
			s.forget(charges[i].Key)
		}
	}
	forget()
	defer forget() // again: an answer that came meanwhile is older than the reset
	return s.Store.Reset(ctx, charges)
}

// Forget implements [store.Store].
func (s *Store) Forget() {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.generation.Add(1)
		s.keys.Add(-int64(len(sh.known)))
		clear(sh.known)
		sh.mu.Unlock()
	}
	s.Store.Forget()
}

// deny decides a request that is known to be denied, and reports whether it did.
func (s *Store) deny(charges []store.Charge, decisions []algorithms.Decision) bool {
	if s.keys.Load() == 0 || len(charges) > maxCharges {
		return false
	}
	var at [maxCharges]algorithms.Instant
	for i := range charges {
		known := charges[i].Hits >= 0 && !repeated(charges, i)
		if known {
			at[i], known = s.decide(&charges[i], &decisions[i])
		}
		if !known {
			return false
		}
	}
	if store.Admitted(charges, decisions) {
		return false
	}
	denied := uint64(0)
	for i := range charges {
		c := &charges[i]
		if c.Left != nil {
			*c.Left = store.State{Source: store.Memory}
		}
		if !decisions[i].Allowed {
			denied += uint64(c.Hits)
		}
		switch {
		case c.CountRejected:
			s.count(c, at[i])
		case decisions[i].Allowed && c.Limit.Algorithm.HasState():
			s.look(c, &decisions[i])
		}
	}
	s.denied.Add(1)
	s.hits.Add(denied)
	return true
}

// maxCharges is the most charges of a request that is denied from memory, as each is compared with
// those before it.
const maxCharges = 16

// repeated reports whether an earlier charge has the key of charge i: charge i would be decided on
// top of that one.
func repeated(charges []store.Charge, i int) bool {
	for n := range i {
		if string(charges[n].Key) == string(charges[i].Key) {
			return true
		}
	}
	return false
}

// question is a request to the other store, which tells the states of its keys to the cache.
type question struct {
	charges     []store.Charge
	states      []store.State
	generations []uint64 // of the keys' shards when the request began
}

func (q *question) begin(s *Store, charges []store.Charge) {
	q.charges = append(q.charges[:0], charges...)
	q.states = append(q.states[:0], make([]store.State, len(charges))...)
	q.generations = q.generations[:0]
	for i := range q.charges {
		q.charges[i].Left = &q.states[i]
		q.generations = append(q.generations, s.shard(charges[i].Key).generation.Load())
	}
}

// end passes the states on to the caller. Also after an error, end forgets the keys that the
// request refunds.
func (q *question) end(s *Store, charges []store.Charge) {
	for i := range charges {
		if charges[i].Hits < 0 {
			s.forget(charges[i].Key)
		}
		q.states[i].TellTo(charges[i].Left)
	}
	clear(q.charges) // releases the keys
}
