package fallback

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// enough is how many successes in a row close a half-open breaker.
const enough = 3

// errUnasked is the reason not to ask the primary before the first probe has answered.
var errUnasked = errors.New("it has not answered yet")

// phase is what holds between two events of the breaker. A change makes a new phase and puts it in place of the one it saw,
// or finds that another was quicker; so what began in an earlier phase reaches that one's counters only. All but those is
// set once, and before by the watcher.
type phase struct {
	state   State
	first   bool          // no probe has answered yet
	since   time.Time     // of the last change of state
	opened  uint64        // times the breaker has opened
	reason  error         // open and half-open: the last error
	wait    time.Duration // open and half-open: the interval
	next    time.Time     // open: when the probe is due
	away    time.Time     // when the breaker last left closed
	decided uint64        // charges decided without the primary: up to then; closed: from then on, until it closed
	before  *phase        // until the watcher has told the change

	count atomic.Int64 // closed: failures since a success; half-open: successes
	from  atomic.Int64 // closed: when the first of these failures came, in nanoseconds since Store.started
	busy  atomic.Bool  // half-open: a request is at the primary
}

// enter reports whether a request may ask the primary. One that may calls succeeded or failed after.
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

// leave ends a request that says nothing of the primary's health.
func (p *phase) leave() {
	if p.state == HalfOpen {
		p.busy.Store(false)
	}
}

// succeeded ends a request that the primary answered.
func (s *Store) succeeded(p *phase) {
	if p.state == Closed {
		if p.count.Load() != 0 { // hardly ever, so that cores need not pass the line around
			p.count.Store(0)
		}
		return
	}
	if p.count.Add(1) == enough {
		s.change(p, Closed, nil)
	}
	p.busy.Store(false)
}

// failed ends a request that the primary failed. It returns the error for the caller, or nil when the policies are to answer.
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
	s.countFailure(err)
	if p.state == HalfOpen || s.lasting(p) {
		s.change(p, Open, err)
	}
	if canceled {
		return ctx.Err()
	}
	return nil
}

// lasting counts a failure and reports whether there were enough of them, for long enough. The time keeps requests that fail
// together, as those of one server of several do, from being taken for a primary that does nothing any more.
func (s *Store) lasting(p *phase) bool {
	now, n := int64(time.Since(s.started)), p.count.Add(1)
	if n == 1 {
		p.from.Store(now)
	}
	return n >= s.limit && time.Duration(now-p.from.Load()) >= s.failingFor
}

// change puts a phase of that state in p's place and wakes the watcher, unless p is no longer in force.
func (s *Store) change(p *phase, to State, reason error) {
	if s.phase.Load() != p {
		return
	}
	now := time.Now()
	n := &phase{state: to, since: now, opened: p.opened, reason: reason, wait: p.wait, away: p.away, decided: p.decided, before: p}
	switch to {
	case Closed:
		n.wait, n.decided = 0, s.counts.decided()-p.decided
	case HalfOpen:
		n.reason = p.reason
	case Open:
		if p.state == Open {
			n.since = p.since
		}
		if p.state != Open || p.first {
			n.opened++
		}
		if p.state == Closed {
			n.away, n.decided = now, s.counts.decided()
		}
		n.wait = min(max(2*p.wait, s.minOpen), s.maxOpen)
		n.next = now.Add(n.wait - rand.N(n.wait/4+1)) // so that many processes do not ask in step
	}
	if !s.phase.CompareAndSwap(p, n) {
		return
	}
	select {
	case s.changed <- struct{}{}:
	default: // it is about to look
	}
}

// watch tells the changes of state and asks the probe where the breaker wants to know, until ctx ends.
func (s *Store) watch(ctx context.Context, told *phase) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	answered := sync.OnceFunc(func() { close(s.answered) })
	successes := int64(0) // of the phase told, when last looked at
	for {
		p := s.phase.Load()
		if p != told {
			s.tell(ctx, told, p)
			told, successes = p, 0
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
		err := s.ask(ctx)
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

// ask calls the probe.
func (s *Store) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	return s.probe(ctx)
}

// tell logs the changes of state after the phase told, up to the phase p.
func (s *Store) tell(ctx context.Context, told, p *phase) {
	var changes []*phase
	for ; p != told; p = p.before {
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
