package fallback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// successesToClose is how many successes in a row close a half-open breaker.
const successesToClose = 3

var (
	errUnasked = errors.New("no probe has answered yet") // the reason not to ask the primary before
	errSilent  = errors.New("the store has not answered any call")
)

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
	decided uint64        // charges decided without the primary: before away; closed: from away on
	before  *phase        // nil once the watcher has logged the change
	told    time.Time     // closed: until then other processes may not have told their hits of the outage

	count atomic.Int64 // closed: failures since a success; half-open: successes
	from  atomic.Int64 // closed: time of the first of these failures, in nanoseconds since Store.started
	quiet atomic.Int64 // closed: when a request first saw the present silence, likewise; 0: none did
	busy  atomic.Bool  // half-open: a request is at the primary

	telling atomic.Bool // half-open, and closed: told may not have come yet
}

// enter reports whether a request may ask the primary. After the answer the request must call
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

// leave ends a request that is no sign of the primary's health.
func (p *phase) leave() {
	if p.state == HalfOpen {
		p.busy.Store(false)
	}
}

// succeeded ends a request that the primary answered.
func (s *Store) succeeded(p *phase) {
	if p.state == Closed {
		if p.count.Load() != 0 { // hardly ever: a write would pass the cache line between cores
			p.count.Store(0)
		}
		return
	}
	if p.count.Add(1) == successesToClose {
		s.change(p, Closed, nil)
	}
	p.busy.Store(false)
}

// failed ends a request that the primary failed, and returns the error for the caller; nil means
// that the policies should answer.
func (s *Store) failed(ctx context.Context, p *phase, err error) error {
	if errors.Is(err, store.ErrLimit) {
		p.leave()
		return nil
	}
	canceled := errors.Is(ctx.Err(), context.Canceled)
	if canceled && errors.Is(err, context.Canceled) {
		p.leave()
		return err
	}
	s.metrics.countFailure(err, s.unavailable)
	if errors.Is(err, context.DeadlineExceeded) && s.isAlive(p) {
		p.leave()
		if canceled {
			return ctx.Err()
		}
		return nil
	}
	if p.state == HalfOpen || s.lasting(p) {
		s.change(p, Open, err)
	}
	if canceled {
		return ctx.Err()
	}
	return nil
}

// isAlive reports whether the primary has completed a round trip since the first failure of a
// closed phase, or since a half-open phase began. The failures of a closed phase then begin anew.
func (s *Store) isAlive(p *phase) bool {
	if s.answeredAt == nil {
		return false
	}
	since := p.since
	if p.state == Closed {
		if p.count.Load() == 0 {
			return false // the first failure
		}
		since = s.started.Add(time.Duration(p.from.Load()))
	}
	if !s.answeredAt().After(since) {
		return false
	}
	p.count.Store(0) // no successes in a row, either
	if p.state == Closed {
		s.lasting(p) // this failure is the first in a row
	}
	return true
}

// isSilent opens a closed breaker if the primary owes answers for too long, and reports whether it
// does. Two requests must see the same silence, some time apart. After a stall of this process a
// request may run before answers that are there have been read.
func (s *Store) isSilent(p *phase) bool {
	if s.silent == nil || p.state != Closed {
		return false
	}
	silent := s.silent()
	if silent <= s.failingFor {
		return false
	}
	now, seen := int64(time.Since(s.started)), p.quiet.Load()
	if seen == 0 || seen < now-int64(silent) { // the silence before has ended
		p.quiet.CompareAndSwap(seen, max(1, now))
		return false
	}
	if time.Duration(now-seen) < s.failingFor {
		return false
	}
	s.change(p, Open, fmt.Errorf("%w for %v", errSilent, silent.Round(time.Millisecond)))
	return true
}

// lasting counts a failure, and reports whether the failures were many enough for long enough. When
// one server of several fails, its requests fail together; the time keeps such a moment from
// opening the breaker.
func (s *Store) lasting(p *phase) bool {
	now, n := int64(time.Since(s.started)), p.count.Add(1)
	if n == 1 {
		p.from.Store(now)
	}
	return n >= s.failures && time.Duration(now-p.from.Load()) >= s.failingFor
}

// change replaces p with a phase of another state and wakes the watcher, unless another phase has
// replaced p already.
func (s *Store) change(p *phase, to State, reason error) {
	if s.phase.Load() != p {
		return
	}
	now := time.Now()
	n := &phase{state: to, since: now, opened: p.opened, reason: reason, wait: p.wait, away: p.away, decided: p.decided, before: p}
	switch to {
	case Closed:
		n.wait, n.decided = 0, s.metrics.decided()-p.decided
		n.told = now.Add(min(now.Sub(p.away), s.maxOpen+tellingSlack))
		n.telling.Store(!p.first && s.isShared())
	case HalfOpen:
		n.reason = p.reason
		n.telling.Store(s.isShared())
	case Open:
		if p.state == Open {
			n.since = p.since
		}
		if p.state != Open || p.first {
			n.opened++
		}
		if p.state == Closed {
			n.away, n.decided = now, s.metrics.decided()
		}
		n.wait = min(max(2*p.wait, s.minOpen), s.maxOpen)
		n.next = now.Add(n.wait - rand.N(n.wait/4+1)) // many processes should not probe in step
	}
	if !s.phase.CompareAndSwap(p, n) {
		return
	}
	select {
	case s.changed <- struct{}{}:
	default: // the watcher has not looked yet
	}
}

// watch logs the changes of state after the phase logged, and probes when that is due, until ctx
// ends.
func (s *Store) watch(ctx context.Context, logged *phase) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	answered := sync.OnceFunc(func() { close(s.answered) })
	successes := int64(0) // of the phase logged, at the last look
	for {
		p := s.phase.Load()
		if p != logged {
			s.logChanges(ctx, logged, p)
			logged, successes = p, 0
		}
		due := timer.C
		switch p.state {
		case Open:
			timer.Reset(time.Until(p.next))
		case HalfOpen:
			timer.Reset(s.minOpen)
		case Closed:
			due = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
			continue
		case <-due:
		}
		if n := p.count.Load(); p.state == HalfOpen && n != successes {
			successes = n
			continue
		}
		err := s.callProbe(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.change(p, Open, err)
		case p.first || p.state == HalfOpen:
			s.change(p, Closed, nil)
		default:
			s.change(p, HalfOpen, nil)
		}
		answered()
	}
}

func (s *Store) callProbe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	return s.probe(ctx)
}

// logChanges logs the changes of state after the phase logged, up to p.
func (s *Store) logChanges(ctx context.Context, logged, p *phase) {
	var changes []*phase
	for ; p != logged; p = p.before {
		changes = append(changes, p)
	}
	for _, p := range slices.Backward(changes) {
		from := p.before
		p.before = nil
		switch {
		case p.state == Open && from.state == HalfOpen:
			s.logger.LogAttrs(ctx, slog.LevelWarn, "store failed again, limits go on by their on_store_error",
				slog.String("error", p.reason.Error()))
		case p.state == Open && (from.state == Closed || from.first):
			s.logger.LogAttrs(ctx, slog.LevelWarn, "store is away, limits go by their on_store_error",
				slog.String("error", p.reason.Error()))
		case p.state == HalfOpen:
			s.logger.LogAttrs(ctx, slog.LevelInfo, "store answers again, single requests try it")
		case p.state == Closed && from.first:
			s.logger.LogAttrs(ctx, slog.LevelInfo, "store answers, its counts rule")
		case p.state == Closed:
			s.logger.LogAttrs(ctx, slog.LevelInfo, "store is back, its counts rule again",
				slog.Duration("away", p.since.Sub(p.away)),
				slog.Uint64("decided_without", p.decided))
		}
	}
}
