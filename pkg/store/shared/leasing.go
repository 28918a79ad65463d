package shared

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

const (
	askers     = 4                      // calls for leases under way at a time
	mostWants  = 256                    // of a call
	patience   = 250 * time.Millisecond // of a call, for which no request waits
	tripMemory = 16                     // calls that it takes to forget a long round trip
)

type wants struct {
	signal chan struct{} // holds a value when there are keys

	mu   sync.Mutex // guards keys; locked after a shard's mu
	keys []want
}

// want is hits that a lease should have next.
type want struct {
	key   *key
	limit algorithms.Limit
	hits  int64
}

// wantLocked asks for hits for the lease of a key in the background, if it should have more. The
// shard's mu must be held.
func (s *Store) wantLocked(k *key, now time.Duration) {
	if !k.due(now) { // on the way of each request: before the fleet is asked for
		return
	}
	k.trip = time.Duration(s.trip.Load())
	hits := k.want(now, s.breaker.fleet())
	if hits == 0 {
		return
	}
	s.wants.mu.Lock()
	s.wants.keys = append(s.wants.keys, want{k, k.limit, hits})
	s.wants.mu.Unlock()
	s.wants.wake()
}

func (w *wants) wake() {
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// take moves wants to a slice. Another asker wakes up for the rest.
func (w *wants) take(to []want) []want {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.keys), mostWants)
	to = append(to, w.keys[:n]...)
	left := copy(w.keys, w.keys[n:])
	clear(w.keys[left:])
	w.keys = w.keys[:left]
	if left > 0 {
		w.wake()
	}
	return to
}

// askForLeases asks the remote store for hits of leases until ctx ends.
func (s *Store) askForLeases(ctx context.Context) {
	var a asking
	for {
		select {
		case <-s.wants.signal:
			a.wants = s.wants.take(a.wants[:0])
			a.ask(s)
		case <-ctx.Done():
			return
		}
	}
}

// asking is one call for leases. The memory is used again.
type asking struct {
	begun        time.Duration
	wants        []want
	transactions []store.Transaction
	charges      []store.Charge
	states       []store.State
	decisions    []algorithms.Decision
}

func (a *asking) ask(s *Store) {
	a.begun = s.now()
	a.wants = slices.DeleteFunc(a.wants, func(w want) bool {
		settled := s.breaker.settled(&store.Charge{Key: w.key.name, Limit: w.limit})
		if !settled {
			s.failed(w, a.begun, nil)
		}
		return !settled
	})
	if len(a.wants) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n := len(a.wants)
	a.states = append(a.states[:0], make([]store.State, n)...)
	a.decisions = append(a.decisions[:0], make([]algorithms.Decision, n)...)
	a.charges = append(a.charges[:0], make([]store.Charge, n)...)
	a.transactions = a.transactions[:0]
	for i, w := range a.wants {
		a.charges[i] = store.Charge{Key: w.key.name, Hash: w.key.hash, Limit: w.limit, Hits: w.hits, Left: &a.states[i]}
		a.transactions = append(a.transactions, store.Transaction{Ctx: ctx, Charges: a.charges[i : i+1], Decisions: a.decisions[i : i+1]})
	}
	s.remote.TakeAll(a.transactions, func(indexes []int) {
		for _, i := range indexes {
			a.end(s, i)
		}
	})
	clear(a.wants) // releases the keys
	clear(a.charges)
}

// end enters the outcome of a transaction into its lease, and notes the round trip. The next leases
// make up for the longest of the last trips.
func (a *asking) end(s *Store, i int) {
	w, t, told, now := a.wants[i], &a.transactions[i], &a.states[i], s.now()
	took, trip := int64(now-a.begun), s.trip.Load()
	s.trip.Store(max(took, trip-(trip-took)/tripMemory))
	if t.Err != nil {
		s.failed(w, now, t.Err)
		return
	}
	k, d := w.key, t.Decisions[0]
	k.shard.mu.Lock()
	defer k.shard.mu.Unlock()
	before := k.first.left + k.second.left
	back := k.charged(a.begun, now, d, told)
	if w.limit.Algorithm.HasWindows() { // the window may be another clock's than the state's
		k.lease.end(a.begun + untilEnd(w.limit, s.remote.Now(w.limit).Moved(a.begun-now)) - slack)
	}
	if d.Allowed {
		k.shard.charged += uint64(k.first.left + k.second.left - before + back.hits)
		s.giveLocked(k, w.limit, now, [2]taken{back})
	} else {
		s.metrics.refused.Add(1)
	}
	if told.Now != 0 {
		s.goOnFrom(t.Charges, a.states[i:i+1], t.Decisions, t.Admitted)
	}
}

// failed enters into a lease that the remote store has given no answer, or was not asked: err is
// nil then.
func (s *Store) failed(w want, now time.Duration, err error) {
	w.key.shard.mu.Lock()
	defer w.key.shard.mu.Unlock()
	back := w.key.failed(now)
	if u, ok := errors.AsType[store.Unanswered](err); ok && back > 0 {
		u.Instead([]int64{0}, nil)
	}
	s.metrics.failed.Add(1)
}
