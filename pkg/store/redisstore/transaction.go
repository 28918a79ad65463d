package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// transaction is a request, or its part at one location, for which a caller waits.
type transaction struct {
	call

	where   location
	index   []int           // of the charges in the request, if the transaction is a part
	ctx     context.Context //nolint:containedctx // each transaction has its own; nil: its parts end it
	number  int             // there
	over    error           // why the caller waits no longer, and may not read the answer; nil after the end
	resets  uint64          // of the outbox when the transaction was made
	outbox  *outbox
	instead []instead // of the charges; set before status promised
}

func (t *transaction) landed(before int32) {
	if before == promised {
		t.settle()
	} else {
		t.wait.end(t)
	}
}

// outcome returns the error of the transaction, after the wait.
func (t *transaction) outcome() error {
	if t.over != nil {
		return t.over // t.err still belongs to the queue
	}
	return t.err
}

// unsent reports whether the transaction was certainly not applied. Call it after the wait.
func (t *transaction) unsent() bool {
	if t.over == nil {
		return t.refused
	}
	return t.status.Load() == abandoned
}

// wait is a caller that waits for transactions.
type wait struct {
	signal chan struct{} // holds a value when ended has some, or a context has ended
	timer  *time.Timer
	rings  time.Time   // when the timer does; zero: it is stopped
	freed  atomic.Bool // a call may have been released

	mu    sync.Mutex // guards ended
	ended []*transaction

	// Of the caller alone.
	all     []*transaction // by number; nil: the caller does not wait, or no more
	left    int            // transactions that the caller waits for
	seen    []*transaction // transactions that have ended or run out of time
	done    []int          // numbers of decided transactions, see TakeAll
	watched bool           // stops has a function for each context but the first
	stops   []func() bool
}

func newWait() *wait {
	w := &wait{signal: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	return w
}

func (w *wait) end(t *transaction) {
	w.mu.Lock()
	w.ended = append(w.ended, t)
	w.mu.Unlock()
	w.wake()
}

func (w *wait) wake() {
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// release wakes the caller, of which a call was released.
func (w *wait) release() {
	w.freed.Store(true)
	w.wake()
}

// add adds a transaction, which putAll then puts into a queue. nil is decided already.
func (w *wait) add(t *transaction, now, until time.Time) {
	if t != nil {
		t.wait, t.number, t.over = w, len(w.all), nil
		t.put, t.until = now, until
		w.left++
	}
	w.all = append(w.all, t)
}

// putAll puts the calls into the queue of their server: all at once, so that they mostly share a
// flight. A caller who may fly sends the only flight itself, and wakes no worker.
func (w *wait) putAll(to *server, now time.Time, mayFly bool) {
	n, f := to.queue.putAll(now, mayFly, func(yield func(*call) bool) {
		for _, t := range w.all {
			if t != nil && t.where.server == to && !yield(&t.call) {
				return
			}
		}
	})
	if f != nil {
		n.fly(f)
	}
}

// cancels returns a channel that ends with the first context of a transaction; nil: none has one.
// The end of any other context wakes the caller.
func (w *wait) cancels() (first <-chan struct{}) {
	last := first // transactions with one context mostly stand side by side
	for _, t := range w.all {
		if t == nil || t.ctx == nil {
			continue
		}
		done := t.ctx.Done()
		switch {
		case done == nil || done == last:
			continue
		case first == nil:
			first = done
		case !w.watched:
			w.stops = append(w.stops, context.AfterFunc(t.ctx, w.wake))
		}
		last = done
	}
	w.watched = true
	return first
}

// some waits until transactions have ended, and returns these; none at a time, after done, or when
// woken for another reason.
func (w *wait) some(done <-chan struct{}, until time.Time) (ended []*transaction) {
	select {
	case <-w.signal:
	default:
		if !w.rings.Equal(until) { // not before: a timer may wake a thread
			w.timer.Reset(time.Until(until))
			w.rings = until
		}
		select {
		case <-w.signal:
		case <-done:
		case <-w.timer.C:
			w.rings = time.Time{}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = w.seen[:0]
	for _, t := range w.ended {
		if w.all[t.number] == t { // otherwise the caller has not waited for it
			w.all[t.number] = nil
			w.seen = append(w.seen, t)
		}
	}
	w.ended = w.ended[:0]
	return w.seen
}

// abandon adds to some the transactions whose time is over, or which were released. The caller does
// not wait for these. A call that waits in a queue is never sent.
func (w *wait) abandon(some []*transaction, now time.Time) []*transaction {
	for i, t := range w.all {
		if t == nil || t.ctx == nil {
			continue
		}
		over := t.ctx.Err()
		switch {
		case over != nil:
			over = notInTime(over)
		case !now.Before(t.until):
			over = notInTime(context.DeadlineExceeded)
		case t.released.Load():
			over = errReleased
		default:
			continue
		}
		t.over, w.all[i] = over, nil
		t.status.CompareAndSwap(waiting, abandoned)
		some = append(some, t)
	}
	w.seen = some
	return some
}

// next returns when the first of the transactions stops to wait.
func (w *wait) next() (first time.Time) {
	for _, t := range w.all {
		if t != nil && !t.until.IsZero() && (first.IsZero() || t.until.Before(first)) {
			first = t.until
		}
	}
	if first.IsZero() {
		return w.rings // only transactions over several locations are left
	}
	return first
}

func (w *wait) reset() {
	if !w.rings.IsZero() {
		w.timer.Stop()
		w.rings = time.Time{}
	}
	for _, stop := range w.stops {
		stop()
	}
	clear(w.all)
	w.all, w.seen, w.done, w.stops, w.watched = w.all[:0], w.seen[:0], w.done[:0], w.stops[:0], false
}

// do sends transactions, waits for them and returns the first error. After an error do not use the
// transactions again.
func (s *Store) do(ctx context.Context, until time.Time, all ...*transaction) (first error) {
	w, _ := s.waits.Get().(*wait)
	now := time.Now()
	for _, t := range all {
		t.ctx = ctx
		w.add(t, now, until)
	}
	for server := range s.all() {
		w.putAll(server, now, false)
	}
	s.await(w, func(over []*transaction) {
		for _, t := range over {
			first = cmp.Or(first, t.outcome())
		}
	})
	return first
}

// await waits until each transaction has ended, or its time is over, and calls over with some at a
// time.
func (s *Store) await(w *wait, over func(some []*transaction)) {
	whole := true
	for w.left > 0 {
		some := w.some(w.cancels(), w.next())
		if ended := len(some); ended == 0 || w.freed.Load() {
			w.freed.Store(false)
			if some = w.abandon(some, time.Now()); len(some) == 0 {
				continue
			}
			if len(some) > ended {
				whole = false
				s.miss()
			}
		}
		w.left -= len(some)
		over(some)
	}
	if w.reset(); whole {
		s.waits.Put(w) // otherwise calls that were left behind will still end
	}
}

// transaction returns a transaction of charges at one location, with the instant by this process's
// clock.
func (s *Store) transaction(a action, where location, at algorithms.Instant, charges []store.Charge) *transaction {
	t, _ := s.pool.Get().(*transaction)
	t.set(a, where.slot, at, charges)
	t.owner, t.outbox, t.where, t.instead, t.index = t, s.outbox, where, t.instead[:0], t.index[:0]
	t.resets = s.resetCount.Load()
	return t
}

func (s *Store) unsent(err error, charges []store.Charge) error {
	if len(charges) == 0 {
		return err
	}
	t := s.transaction(take, location{}, s.here(), charges)
	t.status.Store(abandoned)
	return &unanswered{err, []*transaction{t}}
}

func notInTime(over error) error { return fmt.Errorf("redis has not answered in time: %w", over) }

// until returns when a request of charges that comes now stops to wait: after three quarters of the
// time to the deadline of ctx. Without a deadline the request waits for the timeout. The caller
// keeps a quarter to answer without Redis. until fails if Redis cannot keep the charges' limits
// exactly.
func (b *base) until(ctx context.Context, now time.Time, charges []store.Charge) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	for i := range charges {
		if period := charges[i].Limit.Period; period%Granularity != 0 {
			return time.Time{}, fmt.Errorf("%w: period %v must be a whole number of microseconds", store.ErrLimit, period)
		}
	}
	timeout := b.timeout
	if deadline, has := ctx.Deadline(); has {
		timeout = deadline.Sub(now) / 4 * 3
	}
	if timeout <= 0 {
		return time.Time{}, context.DeadlineExceeded
	}
	return now.Add(timeout), nil
}

// unanswered is the error of a request without a good answer, with the transactions of the request.
type unanswered struct {
	error

	all []*transaction
}

func (u *unanswered) Unwrap() error { return u.error }

// Instead implements [store.Unanswered].
func (u *unanswered) Instead(hits []int64, parts []store.Part) {
	for _, t := range u.all {
		own := make([]instead, len(t.charges))
		for n := range own {
			i := n
			if len(t.index) > 0 {
				i = t.index[n]
			}
			if own[n].hits = hits[i]; parts != nil {
				own[n].part = parts[i]
			}
		}
		t.decidedElsewhere(own)
	}
}

// Answered implements [store.Unanswered].
func (u *unanswered) Answered(shard int) bool {
	return !slices.ContainsFunc(u.all, func(t *transaction) bool {
		return t.where.server == nil || t.outcome() != nil && t.outbox.numberOf(t.where) == shard
	})
}

// instead is the hits of a charge that were decided elsewhere.
type instead struct {
	hits int64
	at   algorithms.Instant // by the key's clock
	part store.Part
	open *owed.Hits // owes the hits while the outcome is open; may be nil
}

// decidedElsewhere has the difference between hits and the hits that Redis has applied charged,
// when the outcome is known.
func (t *transaction) decidedElsewhere(all []instead) {
	o := t.outbox
	for i, in := range all {
		of := &t.charges[i] // the answer may come, and change Hits and CountRejected of a holder
		c := store.Charge{Key: of.Key, Limit: of.Limit, Hits: in.hits, Hold: of.Hold}
		if c.Hold != nil {
			c.Hits = 0 // the caller tells HoldLater
		}
		counter := o.isCounter(&c)
		in.hits, in.at = c.Hits, whole(o.nowOf(counter))
		if c.Hits > 0 && owed.Chargeable(&c) {
			o.in(c.Key, func(b *owed.Book) { in.open = b.Open(&c, in.at, counter) })
		}
		t.instead = append(t.instead, in)
	}
	if !t.status.CompareAndSwap(underWay, promised) {
		t.settle()
	}
}

// settle has the hits of instead charged that Redis has not applied, and hits given back that Redis
// has applied beyond these. The call is over, or will not be sent.
func (t *transaction) settle() {
	o, unsent := t.outbox, t.status.Load() == abandoned || t.refused
	for i, in := range t.instead {
		c, at := t.charges[i], in.at
		if c.Hold != nil {
			continue
		}
		switch c.Hits = in.hits; {
		case unsent:
		case t.err != nil:
			// Redis may have charged the call, and is charged once more.
			c.Hits = max(c.Hits, 0)
			o.metrics.unknownHits.Add(uint64(max(t.charges[i].Hits, 0) + c.Hits - in.hits))
		default:
			at = t.appliedAt(i)
			c.Hits -= t.hitsOf(i)
			if c.Hits < 0 && !t.allowed(i) && !c.Limit.Algorithm.HasWindows() {
				c.Hits = 0 // Redis may have counted fewer of the denied hits
			}
		}
		if c.Hits < 0 && t.resets != o.resetCount.Load() {
			c.Hits = 0 // the hits are forgotten
		}
		o.in(c.Key, func(b *owed.Book) {
			b.Add(&c, owed.Late{At: at, Here: o.isCounter(&c), Part: in.part})
			if in.open != nil {
				b.Settle(in.open, in.hits)
			}
		})
	}
}

// tell writes the state of a key to the Left of the caller's charge. The state is as the
// transaction left it, with the hits that Redis has yet to be told. charge is charge n of the
// transaction. A list has no state: its decision has less remaining.
func (t *transaction) tell(n int, charge *store.Charge, d *algorithms.Decision) {
	t.tellHold(n, charge)
	to := charge.Left
	if to == nil {
		return
	}
	t.tellState(n, to)
	now := t.now
	if t.counters[n] {
		now = t.at
	}
	hits := t.outbox.owedOf(charge, now)
	switch {
	case hits == 0:
	case charge.Limit.Algorithm.HasState():
		if last, _, _ := to.State.Parts(); t.counters[n] && !to.State.Unused() {
			now = last
		}
		to.Take(charge.Limit, now, hits, true)
	default:
		d.Remaining -= min(d.Remaining, uint64(hits))
	}
}
