package shared

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

const (
	// askers is how many calls for grants can be under way at a time. A call has the wants of all
	// keys that have come meanwhile.
	askers = 4
	// mostWants bounds the wants of a call.
	mostWants = 256
	// patience is how long a call for grants waits at most. No request waits for such a call, so
	// the bound is long.
	patience = 250 * time.Millisecond
	// tripMemory is how many grants it takes to forget a long round trip.
	tripMemory = 16
)

// wants is the keys that wait to be asked for.
type wants struct {
	signal chan struct{} // holds a value when there are keys

	mu   sync.Mutex // guards keys; locked after a shard's mu
	keys []want
}

// want is a grant that a key wants.
type want struct {
	key   *key
	limit algorithms.Limit
	hits  int64
}

// wantLocked asks for a grant for a key in the background, if the key wants one. The shard's mu
// must be held.
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

// askForLeases asks the shared store for grants until ctx ends.
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

// asking is one call for grants. Memory is reused from call to call.
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
	if !s.breaker.settled() {
		for _, w := range a.wants {
			a.end(s, w, algorithms.Decision{}, &store.State{}, errAway)
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n := len(a.wants)
	a.states = append(a.states[:0], make([]store.State, n)...)
	a.decisions = append(a.decisions[:0], make([]algorithms.Decision, n)...)
	a.charges, a.transactions = a.charges[:0], a.transactions[:0]
	for i, w := range a.wants {
		a.charges = append(a.charges, store.Charge{Key: w.key.name, Hash: w.key.hash, Limit: w.limit, Hits: w.hits, Left: &a.states[i]})
	}
	for i := range a.wants {
		a.transactions = append(a.transactions, store.Transaction{Ctx: ctx, Charges: a.charges[i : i+1], Decisions: a.decisions[i : i+1]})
	}
	s.remote.TakeAll(a.transactions, func(indexes []int) {
		for _, i := range indexes {
			a.end(s, a.wants[i], a.decisions[i], &a.states[i], a.transactions[i].Err)
		}
	})
	clear(a.wants) // releases the keys
	clear(a.charges)
}

// errAway stands for the error of a remote store that was not asked.
var errAway = errors.New("the remote store is away")

// end enters the outcome of a grant.
func (a *asking) end(s *Store, w want, d algorithms.Decision, told *store.State, err error) {
	now := s.now()
	s.learnTrip(now-a.begun, err)
	k := w.key
	k.shard.mu.Lock()
	defer k.shard.mu.Unlock()
	if err != nil {
		back := k.failed(now)
		k.vain = true
		if u, ok := errors.AsType[store.Unanswered](err); ok && back > 0 {
			u.Instead([]int64{0})
		}
		s.metrics.failed.Add(1)
		return
	}
	k.vain = false
	before := k.first.left + k.second.left
	back := k.granted(a.begun, now, d, told)
	if w.limit.Algorithm == algorithms.FixedWindow { // the window may be another clock's than the state's
		k.lease.end(a.begun + untilEnd(w.limit.Period, s.remote.Now(w.limit).Add(a.begun-now)) - slack)
	}
	if d.Allowed {
		k.shard.granted += uint64(k.first.left + k.second.left - before + back.hits)
		s.giveLocked(k, w.limit, now, [2]part{back})
	} else {
		s.metrics.refused.Add(1)
	}
	if told.Now != 0 {
		s.goOnFrom([]store.Charge{{Key: k.name, Hash: k.hash, Limit: w.limit, Hits: w.hits}}, []store.State{*told}, []algorithms.Decision{d})
	}
}

// learnTrip notes the round trip of a call. The next leases make up for the longest of the last
// trips.
func (s *Store) learnTrip(took time.Duration, err error) {
	if errors.Is(err, errAway) {
		return
	}
	trip := s.trip.Load()
	s.trip.Store(max(int64(took), trip-(trip-int64(took))/tripMemory))
}
