package shared

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// State is a state of the breaker.
type State uint8

// The states.
const (
	Closed   State = iota // the store is asked
	Open                  // the store is not asked
	HalfOpen              // one request at a time asks the store
)

// String returns the name in metrics: closed, open or half_open.
func (s State) String() string {
	if names := [...]string{"closed", "open", "half_open"}; int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Constants of the breaker, and the defaults of pace.
const (
	successesToClose  = 3 // in a row, of a half-open breaker
	defaultFailures   = 5
	defaultFailingFor = 25 * time.Millisecond
	defaultMinOpen    = 100 * time.Millisecond
	defaultMaxOpen    = 400 * time.Millisecond // and defaultMinOpen of half-open: half a second
)

// pace is how fast the state changes. A zero field means the default.
type pace struct {
	failures   int           // without a success in between that open the breaker
	failingFor time.Duration // shortest time from the first of these failures to the last
	minOpen    time.Duration // first interval, of which three quarters to all are waited
	maxOpen    time.Duration // longest interval
}

var (
	errUnasked = errors.New("no probe has answered yet") // the reason before the first answer of Await
	errSilent  = errors.New("the store has not answered any call")
)

// breaker says whether the remote store may be asked:
//
//	closed     The store is asked. pace.failures in a row, over pace.failingFor,
//	           open the breaker.
//	open       The store is not asked. After an interval a goroutine calls Await.
//	           After a success the breaker is half-open. After a failure the
//	           interval doubles, from pace.minOpen to pace.maxOpen.
//	half-open  One request at a time may ask the store; the others go on without it.
//	           Three successes in a row close the breaker. A good Await does so too,
//	           if no request comes for pace.minOpen. A failure opens the breaker,
//	           for twice as long.
//
// The breaker starts open, with a call of Await at once. The outcome closes the breaker, or opens
// it as failures do. So a request never waits for a store that was away from the start. A request
// that began before a change of state does not count after it.
//
// Two errors are no failures of the store: the caller's cancellation, and [store.ErrLimit], after
// which the policies decide that one request. A deadline that passes while the store is asked is a
// failure, also the caller's own deadline. The policies then still answer, in microseconds.
//
// A slow store is not an absent one. A missed deadline does not count if the store has completed a
// round trip since the first of the failures in a row ([store.Health].Answered). A store that owes
// answers and gives none is absent also if no request has failed yet, as callers may wait long
// ([store.Health].Silent).
type breaker struct {
	Options

	metrics  *metrics
	started  time.Time
	phase    atomic.Pointer[phase]
	changed  chan struct{} // wakes the watcher after a request changed the phase
	answered chan struct{} // closed when the first call of Await has ended
}

// newBreaker returns a breaker that is open. Call watch.
func newBreaker(o Options, m *metrics) *breaker {
	p := &o.pace
	p.failures = cmp.Or(p.failures, defaultFailures)
	p.failingFor = cmp.Or(p.failingFor, defaultFailingFor)
	p.minOpen = cmp.Or(p.minOpen, defaultMinOpen)
	p.maxOpen = cmp.Or(p.maxOpen, max(defaultMaxOpen, p.minOpen))
	now := time.Now()
	b := &breaker{Options: o, metrics: m, started: now, changed: make(chan struct{}, 1), answered: make(chan struct{})}
	b.phase.Store(&phase{state: Open, first: true, since: now, away: now, next: now, reason: errUnasked})
	return b
}

// fleet returns the number of processes that share the remote store, at least 1.
func (b *breaker) fleet() int { return max(1, b.Remote.Health(nil).Fleet) }

// enter returns the phase in which a request of charges may ask the store; nil if it may not. After
// the answer the request must call succeeded or failed, or leave the phase.
func (b *breaker) enter(charges []store.Charge) *phase {
	if p := b.phase.Load(); p.enter() && !b.isSilent(p, charges) {
		return p
	}
	return nil
}

// enterTransaction is enter for a transaction. While other processes may have hits of an outage
// that the store has not counted, the local store decides where these hits matter.
func (b *breaker) enterTransaction(charges []store.Charge) *phase {
	if b.tells(b.phase.Load()) && outlast(charges) {
		return nil
	}
	return b.enter(charges)
}

// settled reports whether the store decides all requests: the breaker is closed, and all processes
// have charged their hits of the last outage.
func (b *breaker) settled() bool {
	p := b.phase.Load()
	return p.state == Closed && !b.tells(p)
}

// untilAsked returns the wait until the store may be asked again, in whole seconds, at least one.
func (b *breaker) untilAsked() time.Duration {
	wait := time.Second
	if p := b.phase.Load(); p.state == Open {
		wait = max(wait, time.Until(p.next))
	}
	return (wait + time.Second - 1).Truncate(time.Second)
}

const (
	// tellingSlack is the time in which a process charges its hits after it has found out that the
	// store is back.
	tellingSlack = time.Second
	// tellingPeriod is the shortest period of limits that wait for the hits of other processes. In
	// a shorter one few of these hits matter.
	tellingPeriod = time.Minute
)

// tells is tells of the phase, until the remote store says that all have told.
func (b *breaker) tells(p *phase) bool {
	if p.telling.Load() && p.state == Closed && b.Remote.Health(nil).Told {
		p.telling.Store(false)
	}
	return p.tells()
}

// tells reports whether other processes may still have hits of an outage that the store has not
// counted.
func (p *phase) tells() bool {
	if p.telling.Load() && p.state != HalfOpen && !time.Now().Before(p.told) {
		p.telling.Store(false)
	}
	return p.telling.Load()
}

// outlast reports whether hits of an outage matter to all charges of a request long after the
// outage. The local store then decides them. Holders of slots matter until their end. The end of a
// holder is for the remote store.
func outlast(charges []store.Charge) bool {
	for i := range charges {
		c := &charges[i]
		if !isLocal(c) || isEnd(c) || c.Limit.Period < tellingPeriod && c.Limit.Algorithm != algorithms.Concurrency {
			return false
		}
	}
	return len(charges) > 0
}

// phase is the breaker between two changes. A change replaces the phase that it saw, or does
// nothing if another change came first. So a request that began in an earlier phase changes the
// counters of that phase only. Only the counters change, and before, which the watcher clears.
type phase struct {
	state   State
	first   bool          // no probe has answered yet
	since   time.Time     // of the last change of state
	opened  uint64        // times that the breaker opened
	reason  error         // open and half-open: the last error
	wait    time.Duration // open and half-open: the interval
	next    time.Time     // open: time of the probe
	away    time.Time     // when the breaker last left closed
	decided uint64        // charges decided without the store: before away; closed: from away on
	before  *phase        // nil once the watcher has logged the change
	told    time.Time     // closed: until then other processes may not have told their hits of the outage

	count atomic.Int64 // closed: failures since a success; half-open: successes
	from  atomic.Int64 // closed: time of the first of these failures, in nanoseconds since breaker.started
	quiet atomic.Int64 // closed: when a request first saw the present silence, likewise; 0: none did
	busy  atomic.Bool  // half-open: a request is at the store

	telling atomic.Bool // half-open, and closed: told may not have come yet
}

// enter reports whether a request may ask the store. After the answer the request must call
// succeeded or failed.
func (p *phase) enter() bool {
	switch p.state {
	case Closed:
		return true
	case HalfOpen:
		return p.busy.CompareAndSwap(false, true)
	default:
		return false
	}
}

// leave ends a request that is no sign of the store's health.
func (p *phase) leave() {
	if p.state == HalfOpen {
		p.busy.Store(false)
	}
}

// succeeded ends a request that the store answered.
func (b *breaker) succeeded(p *phase) {
	if p.state == Closed {
		if p.count.Load() != 0 { // hardly ever: a write would pass the cache line between cores
			p.count.Store(0)
		}
		return
	}
	if p.count.Add(1) == successesToClose {
		b.change(p, Closed, nil)
	}
	p.busy.Store(false)
}

// failed ends a request that the store failed, and returns the error for the caller; nil means
// that the policies should answer.
func (b *breaker) failed(ctx context.Context, p *phase, charges []store.Charge, err error) error {
	if errors.Is(err, store.ErrLimit) {
		p.leave()
		return nil
	}
	canceled := errors.Is(ctx.Err(), context.Canceled)
	if canceled && errors.Is(err, context.Canceled) {
		p.leave()
		return err
	}
	b.metrics.countFailure(err, b.Unavailable)
	if errors.Is(err, context.DeadlineExceeded) && b.isAlive(p, charges) {
		p.leave()
		if canceled {
			return ctx.Err()
		}
		return nil
	}
	if p.state == HalfOpen || b.lasting(p) {
		b.change(p, Open, err)
	}
	if canceled {
		return ctx.Err()
	}
	return nil
}

// isAlive reports whether the store has completed a round trip since the first failure of a
// closed phase, or since a half-open phase began. The failures of a closed phase then begin anew.
func (b *breaker) isAlive(p *phase, charges []store.Charge) bool {
	since := p.since
	if p.state == Closed {
		if p.count.Load() == 0 {
			return false // the first failure
		}
		since = b.started.Add(time.Duration(p.from.Load()))
	}
	if !b.Remote.Health(charges).Answered.After(since) {
		return false
	}
	p.count.Store(0) // no successes in a row, either
	if p.state == Closed {
		b.lasting(p) // this failure is the first in a row
	}
	return true
}

// isSilent opens a closed breaker if the store owes answers for too long, and reports whether it
// does. Two requests must see the same silence, some time apart. After a stall of this process a
// request may run before answers that are there have been read.
func (b *breaker) isSilent(p *phase, charges []store.Charge) bool {
	if p.state != Closed {
		return false
	}
	silent := b.Remote.Health(charges).Silent
	if silent <= b.pace.failingFor {
		return false
	}
	now, seen := int64(time.Since(b.started)), p.quiet.Load()
	if seen == 0 || seen < now-int64(silent) { // the silence before has ended
		p.quiet.CompareAndSwap(seen, max(1, now))
		return false
	}
	if time.Duration(now-seen) < b.pace.failingFor {
		return false
	}
	b.change(p, Open, fmt.Errorf("%w for %v", errSilent, silent.Round(time.Millisecond)))
	return true
}

// lasting counts a failure, and reports whether the failures were many enough for long enough. When
// one server of several fails, its requests fail together; the time keeps such a moment from
// opening the breaker.
func (b *breaker) lasting(p *phase) bool {
	now, n := int64(time.Since(b.started)), p.count.Add(1)
	if n == 1 {
		p.from.Store(now)
	}
	return n >= int64(b.pace.failures) && time.Duration(now-p.from.Load()) >= b.pace.failingFor
}

// change replaces p with a phase of another state and wakes the watcher, unless another phase has
// replaced p already.
func (b *breaker) change(p *phase, to State, reason error) {
	if b.phase.Load() != p {
		return
	}
	now := time.Now()
	n := &phase{state: to, since: now, opened: p.opened, reason: reason, wait: p.wait, away: p.away, decided: p.decided, before: p}
	switch to {
	case Closed:
		n.wait, n.decided = 0, b.metrics.decided()-p.decided
		n.told = now.Add(min(now.Sub(p.away), b.pace.maxOpen+tellingSlack))
		n.telling.Store(!p.first && b.fleet() > 1)
	case HalfOpen:
		n.reason = p.reason
		n.telling.Store(b.fleet() > 1)
	case Open:
		if p.state == Open {
			n.since = p.since
		}
		if p.state != Open || p.first {
			n.opened++
		}
		if p.state == Closed {
			n.away, n.decided = now, b.metrics.decided()
		}
		n.wait = min(max(2*p.wait, b.pace.minOpen), b.pace.maxOpen)
		n.next = now.Add(n.wait - rand.N(n.wait/4+1)) // many processes should not probe in step
	}
	if !b.phase.CompareAndSwap(p, n) {
		return
	}
	select {
	case b.changed <- struct{}{}:
	default: // the watcher has not looked yet
	}
}

// watch logs the changes of state after the phase logged, and probes when that is due, until ctx
// ends.
func (b *breaker) watch(ctx context.Context, logged *phase) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	answered := sync.OnceFunc(func() { close(b.answered) })
	successes := int64(0) // of the phase logged, at the last look
	for {
		p := b.phase.Load()
		if p != logged {
			b.logChanges(ctx, logged, p)
			logged, successes = p, 0
		}
		due := timer.C
		switch p.state {
		case Open:
			timer.Reset(time.Until(p.next))
		case HalfOpen:
			timer.Reset(b.pace.minOpen)
		case Closed:
			due = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-b.changed:
			continue
		case <-due:
		}
		if n := p.count.Load(); p.state == HalfOpen && n != successes {
			successes = n
			continue
		}
		err := b.await(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			b.change(p, Open, err)
		case p.first || p.state == HalfOpen:
			b.change(p, Closed, nil)
		default:
			b.change(p, HalfOpen, nil)
		}
		answered()
	}
}

func (b *breaker) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, AwaitTimeout)
	defer cancel()
	return b.Remote.Await(ctx)
}

// logChanges logs the changes of state after the phase logged, up to p.
func (b *breaker) logChanges(ctx context.Context, logged, p *phase) {
	var changes []*phase
	for ; p != logged; p = p.before {
		changes = append(changes, p)
	}
	for _, p := range slices.Backward(changes) {
		from := p.before
		p.before = nil
		switch {
		case p.state == Open && from.state == HalfOpen:
			b.Logger.LogAttrs(ctx, slog.LevelWarn, "store failed again, limits go on by their on_store_error",
				slog.String("error", p.reason.Error()))
		case p.state == Open && (from.state == Closed || from.first):
			b.Logger.LogAttrs(ctx, slog.LevelWarn, "store is away, limits go by their on_store_error",
				slog.String("error", p.reason.Error()))
		case p.state == HalfOpen:
			b.Logger.LogAttrs(ctx, slog.LevelInfo, "store answers again, single requests try it")
		case p.state == Closed && from.first:
			b.Logger.LogAttrs(ctx, slog.LevelInfo, "store answers, its counts rule")
		case p.state == Closed:
			b.Logger.LogAttrs(ctx, slog.LevelInfo, "store is back, its counts rule again",
				slog.Duration("away", p.since.Sub(p.away)),
				slog.Uint64("decided_without", p.decided))
		}
	}
}
