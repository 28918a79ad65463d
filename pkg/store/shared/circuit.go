package shared

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

	"github.com/weirproxy/weir/internal/loglimit"
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
	probePause        = time.Millisecond       // for each process between two probes
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

// circuit says whether a shard of the remote store may be asked:
//
//	closed     The shard is asked. pace.failures in a row, over pace.failingFor,
//	           open the circuit, and so does a silence of the shard.
//	open       The shard is not asked. After an interval a goroutine calls Await.
//	           After a success the circuit is half-open. After a failure the
//	           interval doubles, from pace.minOpen to longestWait.
//	half-open  One request at a time may ask the shard; the others go on without it.
//	           Three successes in a row close the circuit. A good Await does so too,
//	           if no request comes for pace.minOpen. A failure opens the circuit,
//	           for twice as long.
//
// When the circuit opens, all requests that wait for the shard are released. A request that began
// before a change of state does not count after it.
//
// Two errors are no failures of the store: the caller's cancellation, and [store.ErrLimit], after
// which the policies decide that one request. A deadline that passes while the store is asked is a
// failure, also the caller's own deadline. The policies then still answer, in microseconds.
//
// A slow store is not an absent one. A missed deadline does not count if the shard has completed a
// round trip since the first of the failures in a row ([store.Health].Answered). A shard that owes
// answers and gives none is absent also if no request has failed yet, as callers may wait long
// ([store.Health].Silent).
type circuit struct {
	*breaker

	shard    int
	started  time.Time
	phase    atomic.Pointer[phase]
	changed  chan struct{} // wakes the watcher after a request changed the phase
	answered chan struct{} // closed when the first call of Await has ended, or is not needed

	// Of the watcher.
	lines loglimit.Limiter // a store that comes and goes can cause lines
	loud  bool             // the last failure was logged
	told  bool             // so was a failure of this outage
}

// Of the lines about failures, linesAtOnce pass at once, and then one each linesEvery.
const (
	linesAtOnce = 20
	linesEvery  = 10 * time.Second
)

// newCircuit returns the circuit of a shard. A circuit of the first shards is open, until a call of
// Await has ended. So a request never waits for a store that was away from the start. A shard that
// joins after an answer has a closed circuit. Call watch.
func newCircuit(b *breaker, shard int, first bool) *circuit {
	now := time.Now()
	c := &circuit{breaker: b, shard: shard, started: now, changed: make(chan struct{}, 1), answered: make(chan struct{})}
	p := &phase{of: c, state: Closed, since: now, away: now, next: now}
	if first {
		p.state, p.first, p.reason = Open, true, errUnasked
	} else {
		close(c.answered)
	}
	c.phase.Store(p)
	return c
}

// tellingSlack is the time in which a process charges its hits after it has found out that the
// store is back.
const tellingSlack = time.Second

// tells reports whether other processes may still have hits of an outage that the store has not
// counted.
func (p *phase) tells() bool {
	if p.telling.Load() && p.state == Closed && p.of.Remote.Health(p.of.shard).Told {
		p.telling.Store(false)
	}
	if p.telling.Load() && p.state != HalfOpen && !time.Now().Before(p.told) {
		p.telling.Store(false)
	}
	return p.telling.Load()
}

// outlast reports whether the local store decides all charges of a request until all processes have
// told their hits of an outage. The end of a holder is for the remote store.
func outlast(charges []store.Charge) bool {
	for i := range charges {
		if c := &charges[i]; !isLocal(c) || c.IsEnd() {
			return false
		}
	}
	return len(charges) > 0
}

// phase is the breaker between two changes. A change replaces the phase that it saw, or does
// nothing if another change came first. So a request that began in an earlier phase changes the
// counters of that phase only. Only the counters change, and before, which the watcher clears.
type phase struct {
	of      *circuit
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
	silent  time.Duration // open: how long the shard was silent before; 0: it was not

	freed atomic.Int64 // open: requests that were released
	count atomic.Int64 // closed: failures since a success; half-open: successes
	from  atomic.Int64 // closed: time of the first of these failures, in nanoseconds since breaker.started
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

// succeeded ends a request that the shard answered.
func (p *phase) succeeded() {
	if p.state == Closed {
		if p.count.Load() != 0 { // hardly ever: a write would pass the cache line between cores
			p.count.Store(0)
		}
		return
	}
	if p.count.Add(1) == successesToClose {
		p.of.change(p, Closed, nil)
	}
	p.busy.Store(false)
}

// failed ends a request that the shard failed.
func (p *phase) failed(err error) {
	c := p.of
	if errors.Is(err, context.DeadlineExceeded) && c.isAlive(p) {
		p.leave()
		return
	}
	if p.state == HalfOpen || c.lasting(p) {
		c.change(p, Open, err)
	}
}

// isAlive reports whether the shard has completed a round trip since the first failure of a
// closed phase, or since a half-open phase began. The failures of a closed phase then begin anew.
func (c *circuit) isAlive(p *phase) bool {
	since := p.since
	if p.state == Closed {
		if p.count.Load() == 0 {
			return false // the first failure
		}
		since = c.started.Add(time.Duration(p.from.Load()))
	}
	if !c.Remote.Health(c.shard).Answered.After(since) {
		return false
	}
	p.count.Store(0) // no successes in a row, either
	if p.state == Closed {
		c.lasting(p) // this failure is the first in a row
	}
	return true
}

// lookForSilence opens the circuit if the shard is silent. Requests that have passed before the
// circuit opened may still have to be released.
func (c *circuit) lookForSilence() {
	silent := c.Remote.Health(c.shard).Silent
	switch p := c.phase.Load(); {
	case silent == 0:
	case p.state == Open:
		c.release()
	default:
		c.change(p, Open, fmt.Errorf("%w for %v", errSilent, silent.Round(time.Millisecond)))
	}
}

// release has all requests that wait for the shard be decided without it.
func (c *circuit) release() int {
	n := c.Remote.Release(c.shard)
	c.metrics.released.Add(uint64(n))
	return n
}

// lasting counts a failure, and reports whether the failures were many enough for long enough. When
// one server of several fails, its requests fail together; the time keeps such a moment from
// opening the breaker.
func (c *circuit) lasting(p *phase) bool {
	now, n := int64(time.Since(c.started)), p.count.Add(1)
	if n == 1 {
		p.from.Store(now)
	}
	return n >= int64(c.pace.failures) && time.Duration(now-p.from.Load()) >= c.pace.failingFor
}

// change replaces p with a phase of another state and wakes the watcher, unless another phase has
// replaced p already.
func (c *circuit) change(p *phase, to State, reason error) {
	if c.phase.Load() != p {
		return
	}
	now := time.Now()
	n := &phase{of: c, state: to, since: now, opened: p.opened, reason: reason, wait: p.wait, away: p.away, decided: p.decided, before: p}
	switch to {
	case Closed:
		n.wait, n.decided = 0, c.metrics.decided()-p.decided
		n.told = now.Add(min(now.Sub(p.away), c.pace.maxOpen+tellingSlack))
		n.telling.Store(!p.first && c.fleet() > 1)
	case HalfOpen:
		n.reason = p.reason
		n.telling.Store(c.fleet() > 1)
	case Open:
		if p.state == Open {
			n.since = p.since
		}
		if p.state != Open || p.first {
			n.opened++
		}
		if p.state == Closed {
			n.away, n.decided = now, c.metrics.decided()
		}
		n.wait = min(max(2*p.wait, c.pace.minOpen), c.longestWait())
		n.next = now.Add(n.wait - rand.N(n.wait/4+1)) // many processes should not probe in step
	}
	if to == Open && p.state != Open {
		n.silent = c.Remote.Health(c.shard).Silent
	}
	if !c.phase.CompareAndSwap(p, n) {
		return
	}
	if to == Open && p.state != Open {
		c.metrics.silent.Add(int64(n.silent))
		n.freed.Store(int64(c.release()))
	}
	select {
	case c.changed <- struct{}{}:
	default: // the watcher has not looked yet
	}
}

// longestWait returns the longest interval between two probes. The processes of a small fleet probe
// often, so that they find the store back at nearly the same time. Between the first and the last
// one a bucket gains twice: in the store, and in the hits that others owe.
func (c *circuit) longestWait() time.Duration {
	if n := c.fleet(); n > 1 {
		return min(max(c.pace.minOpen, time.Duration(n)*probePause), c.pace.maxOpen)
	}
	return c.pace.maxOpen
}

// watch logs the changes of state after the phase logged, and probes when that is due, until ctx
// ends.
func (c *circuit) watch(ctx context.Context, logged *phase) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	answered := func() {}
	if logged.first {
		answered = sync.OnceFunc(func() { close(c.answered) })
	}
	successes := int64(0) // of the phase logged, at the last look
	for {
		p := c.phase.Load()
		if p != logged {
			c.logChanges(ctx, logged, p)
			logged, successes = p, 0
		}
		due := timer.C
		switch p.state {
		case Open:
			timer.Reset(time.Until(p.next))
		case HalfOpen:
			timer.Reset(c.pace.minOpen)
		case Closed:
			due = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
			continue
		case <-due:
		}
		if n := p.count.Load(); p.state == HalfOpen && n != successes {
			successes = n
			continue
		}
		err := c.await(ctx)
		c.join(err == nil)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.change(p, Open, err)
		case p.first || p.state == HalfOpen:
			c.change(p, Closed, nil)
		default:
			c.change(p, HalfOpen, nil)
		}
		answered()
	}
}

func (c *circuit) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, AwaitTimeout)
	defer cancel()
	return c.Remote.Await(ctx, c.shard)
}

// logChanges logs the changes of state after the phase logged, up to p.
func (c *circuit) logChanges(ctx context.Context, logged, p *phase) {
	var changes []*phase
	for ; p != logged; p = p.before {
		changes = append(changes, p)
	}
	for _, p := range slices.Backward(changes) {
		from := p.before
		p.before = nil
		switch {
		case p.state == Open && from.state == HalfOpen:
			c.logFailure(ctx, "store failed again, limits go on by their on_store_error", p)
		case p.state == Open && (from.state == Closed || from.first):
			c.logFailure(ctx, "store is away, limits go by their on_store_error", p)
		case p.state == HalfOpen && c.loud:
			c.Logger.LogAttrs(ctx, slog.LevelInfo, "store answers again, single requests try it", c.named()...)
		case p.state == Closed && from.first:
			c.Logger.LogAttrs(ctx, slog.LevelInfo, "store answers, its counts rule", c.named()...)
		case p.state == Closed && c.told:
			c.told = false
			c.Logger.LogAttrs(ctx, slog.LevelInfo, "store is back, its counts rule again",
				c.named(slog.Duration("away", p.since.Sub(p.away)), slog.Uint64("decided_without", p.decided))...)
		}
	}
}

// logFailure logs that a phase has begun in which the store is not asked. The end of an outage is
// logged if a failure of this outage was.
func (c *circuit) logFailure(ctx context.Context, text string, p *phase) {
	missed, due := c.lines.DueOf(linesAtOnce, linesEvery)
	if c.loud = due; !due {
		return
	}
	c.told = true
	attrs := p.causes()
	if missed > 0 {
		attrs = append(attrs, slog.Uint64("not_logged", missed))
	}
	c.Logger.LogAttrs(ctx, slog.LevelWarn, text, c.named(attrs...)...) //nolint:sloglint // one of two texts
}

// causes returns the attributes of a log line of an open circuit.
func (p *phase) causes() []slog.Attr {
	attrs := []slog.Attr{slog.String("error", p.reason.Error())}
	if freed := p.freed.Load(); p.silent > 0 || freed > 0 {
		attrs = append(attrs, slog.Duration("silent", p.silent.Round(time.Millisecond)), slog.Int64("released", freed))
	}
	return attrs
}

// named returns the attributes of a log line, after the name of the shard if there are several.
func (c *circuit) named(attrs ...slog.Attr) []slog.Attr {
	if names := c.Remote.Shards(); len(names) > 1 && c.shard < len(names) {
		return append([]slog.Attr{slog.String("shard", names[c.shard])}, attrs...)
	}
	return attrs
}
