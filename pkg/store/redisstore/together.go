package redisstore

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// together is a caller that waits for several transactions.
type together struct {
	signal   chan struct{} // holds a value when ended has some, or canceled is new
	canceled atomic.Bool   // a context has ended, by its cancellation

	mu    sync.Mutex // guards ended
	ended []int      // numbers of transactions

	// Of the caller alone.
	calls []*call     // by number; nil: decided, or over several locations
	open  []bool      // by number: not decided
	until []time.Time // by number: when the wait for the call is over
	queue []*queue    // by number: where the call is not put yet
	done  []int       // numbers of decided transactions
}

func newTogether() *together { return &together{signal: make(chan struct{}, 1)} }

// end says that a transaction has ended.
func (g *together) end(number int) {
	g.mu.Lock()
	g.ended = append(g.ended, number)
	g.mu.Unlock()
	g.wake()
}

// wake wakes the caller.
func (g *together) wake() {
	select {
	case g.signal <- struct{}{}:
	default:
	}
}

// TakeAll implements [store.Store]. Besides the errors of Ctx and of Redis there are three:
// [ErrUnavailable], if there is no connection; [context.DeadlineExceeded], if Redis has not
// answered in time, but may have charged; [store.ErrLimit], for a period that is no whole number of
// microseconds.
func (s *Store) TakeAll(transactions []store.Transaction, decided func(indexes []int)) {
	g, _ := s.togethers.Get().(*together)
	now := time.Now()
	for i := range transactions {
		g.begin(s, i, &transactions[i], now)
	}
	left := len(transactions) - len(g.done)
	if len(g.done) > 0 {
		decided(g.done)
	}
	g.putAll(s, now)
	stopped := g.watch(transactions)
	whole := g.wait(s, left, transactions, decided)
	whole = stopped() && whole
	g.calls, g.open, g.until, g.queue, g.done = g.calls[:0], g.open[:0], g.until[:0], g.queue[:0], g.done[:0]
	if whole {
		s.togethers.Put(g) // otherwise calls that were left behind will still end
	}
}

// begin makes the call of a transaction, without sending it. A transaction over several locations
// waits in a goroutine of its own.
func (g *together) begin(s *Store, number int, t *store.Transaction, now time.Time) {
	g.calls, g.queue, g.open, g.until = append(g.calls, nil), append(g.queue, nil), append(g.open, false), append(g.until, time.Time{})
	t.Admitted = false
	if g.until[number], t.Err = s.until(t.Ctx, now, t.Charges); t.Err != nil {
		t.Err = s.unsent(t.Err, t.Charges)
	}
	switch {
	case t.Err != nil:
		g.done = append(g.done, number)
		return
	case len(t.Charges) == 0:
		t.Admitted = true
		g.done = append(g.done, number)
		return
	}
	g.open[number] = true
	s.outbox.sendBefore(t.Charges)
	s.outbox.followHolds(t.Charges)
	at := s.now()
	if s.several(at, t.Charges) {
		until := g.until[number]
		go func() {
			t.Admitted, t.Err = s.takeSeveral(t.Ctx, until, at, t.Charges, t.Decisions)
			g.end(number)
		}()
		return
	}
	c := s.call(take, s.locate(&t.Charges[0], at), at, t.Charges)
	c.put, c.until, c.together, c.number = now, g.until[number], g, number
	g.calls[number], g.queue[number] = c, c.queue()
}

// watch has the end of each transaction's context noticed, and returns a function that ends that.
// The function reports whether nothing will use g later.
func (g *together) watch(transactions []store.Transaction) (stopped func() bool) {
	var stops []func() bool
	var last <-chan struct{}
	for i := range transactions {
		over := transactions[i].Ctx.Done()
		if over == nil || over == last || g.calls[i] == nil {
			continue
		}
		last = over // transactions with one context mostly stand side by side
		stops = append(stops, context.AfterFunc(transactions[i].Ctx, func() {
			g.canceled.Store(true)
			g.wake()
		}))
	}
	return func() bool {
		whole := true
		for _, stop := range stops {
			whole = stop() && whole
		}
		return whole
	}
}

// putAll puts the calls into their queues: all calls of a queue at once, so that they mostly share
// a flight. A caller who sends the only flight itself wakes no worker. The caller then waits as
// long as the worker would, so the flight must not wait for a connection.
func (g *together) putAll(s *Store, now time.Time) {
	mayFly := g.alike() && g.until[0].Sub(now) >= s.timeout && g.queue[0].server.steady() && !s.pulse.missed(now)
	for i, q := range g.queue {
		if q == nil {
			continue
		}
		n, f := q.appendAll(now, mayFly, func(yield func(*call) bool) {
			for n := i; n < len(g.queue); n++ {
				if g.queue[n] == q {
					g.queue[n] = nil
					if !yield(g.calls[n]) {
						return
					}
				}
			}
		})
		if f != nil {
			n.fly(f)
		}
	}
}

// alike reports whether all transactions are calls in one queue with one time.
func (g *together) alike() bool {
	for i, q := range g.queue {
		if q == nil || q != g.queue[0] || g.until[i] != g.until[0] {
			return false
		}
	}
	return len(g.queue) > 0
}

// wait waits for the transactions that are left, each until its time at most. wait reports whether
// all calls have ended.
func (g *together) wait(s *Store, left int, transactions []store.Transaction, decided func(indexes []int)) (whole bool) {
	whole = true
	var timer *time.Timer
	for left > 0 {
		over := false
		select {
		case <-g.signal:
		default:
			if timer == nil { // not before: a timer may wake a thread
				timer, _ = s.timers.Get().(*time.Timer)
				defer func() { timer.Stop(); s.timers.Put(timer) }()
				timer.Reset(g.next())
			}
			select {
			case <-g.signal:
			case <-timer.C:
				over = true
			}
		}
		g.collect(s, transactions)
		if over || g.canceled.Swap(false) {
			whole = g.abandon(s, transactions) && whole
		}
		if over {
			timer.Reset(g.next())
		}
		if len(g.done) > 0 {
			left -= len(g.done)
			decided(g.done)
		}
	}
	return whole
}

// collect decides the transactions that have ended.
func (g *together) collect(s *Store, transactions []store.Transaction) {
	g.mu.Lock()
	g.done = append(g.done[:0], g.ended...)
	g.ended = g.ended[:0]
	g.mu.Unlock()
	g.done = slices.DeleteFunc(g.done, func(n int) bool { return !g.open[n] }) // the caller has not waited for them
	for _, n := range g.done {
		t, c := &transactions[n], g.calls[n]
		switch {
		case c == nil: // over several locations: it has its decision
		case c.err != nil:
			t.Err = s.unanswered(c.err, c)
		default:
			t.Admitted = s.taken(c, t.Charges, t.Decisions)
		}
		g.calls[n], g.open[n] = nil, false
	}
}

// next returns how long the first of the calls may still wait.
func (g *together) next() time.Duration {
	var first time.Time
	for i, c := range g.calls {
		if c != nil && (first.IsZero() || g.until[i].Before(first)) {
			first = g.until[i]
		}
	}
	if first.IsZero() {
		return time.Hour // only transactions over several locations are left, which have their own time
	}
	return time.Until(first)
}

// abandon decides the transactions whose time is over, or whose context has ended, and reports whether there was no such
// transaction. A call that waits in a queue is then never sent.
func (g *together) abandon(s *Store, transactions []store.Transaction) (none bool) {
	now, none := time.Now(), true
	for i, c := range g.calls {
		if c == nil {
			continue
		}
		over := transactions[i].Ctx.Err()
		if over == nil && !now.Before(g.until[i]) {
			over = context.DeadlineExceeded
		}
		if over == nil {
			continue
		}
		c.status.CompareAndSwap(waiting, abandoned)
		s.pulse.miss()
		transactions[i].Err = s.unanswered(notInTime(over), c)
		g.calls[i], g.open[i], none = nil, false, false
		g.done = append(g.done, i)
	}
	return none
}
