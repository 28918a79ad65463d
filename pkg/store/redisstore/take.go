package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// TakeNow implements [store.Store]: it decides nothing, as each transaction needs a round trip.
func (s *Store) TakeNow([]store.Charge, []algorithms.Decision) (admitted, decided bool) {
	return false, false
}

// TakeAll implements [store.Store]. Besides the errors of Ctx and of Redis there are three.
// [ErrUnavailable]: there is no connection. [context.DeadlineExceeded]: Redis has not answered in
// time, but may have charged. [store.ErrLimit]: the period is no whole number of microseconds.
// A caller that sends its call itself waits until the end of its time also when its Ctx is canceled.
func (s *Store) TakeAll(transactions []store.Transaction, decided func(indexes []int)) {
	w, _ := s.waits.Get().(*wait)
	now := time.Now()
	for i := range transactions {
		s.begin(w, &transactions[i], now)
	}
	left, whole := len(transactions)-len(w.done), true
	if len(w.done) > 0 {
		decided(w.done)
	}
	w.putAll(now, s.mayFly(w, now))
	for left > 0 {
		ended := w.some(w.cancels(transactions), w.next())
		w.done = w.done[:0]
		for _, t := range ended {
			w.done = append(w.done, t.number)
			s.taken(t, &transactions[t.number])
		}
		if len(ended) == 0 {
			whole = s.abandon(w, transactions) && whole
		}
		if len(w.done) > 0 {
			left -= len(w.done)
			decided(w.done)
		}
	}
	if w.reset(); whole {
		s.waits.Put(w) // otherwise calls that were left behind will still end
	}
}

// begin makes the call of a transaction, without sending it. A transaction over several locations
// waits in a goroutine of its own.
func (s *Store) begin(w *wait, t *store.Transaction, now time.Time) {
	t.Admitted = false
	until, err := s.until(t.Ctx, now, t.Charges)
	if t.Err = err; err != nil {
		t.Err = s.unsent(err, t.Charges)
	}
	if err != nil || len(t.Charges) == 0 {
		t.Admitted = err == nil
		w.done = append(w.done, len(w.all))
		w.add(nil, nil, now, until)
		return
	}
	s.sendBefore(t.Charges)
	at := s.here()
	if s.several(at, t.Charges) {
		parts := new(transaction)
		w.add(parts, nil, now, time.Time{}) // takeSeveral has its own time
		go func() {
			t.Admitted, t.Err = s.takeSeveral(t.Ctx, until, at, t.Charges, t.Decisions)
			w.end(parts)
		}()
		return
	}
	c := s.transaction(take, s.locate(&t.Charges[0], at), at, t.Charges)
	w.add(c, c.where.queue(&c.call), now, until)
}

// mayFly reports whether all transactions are calls in one queue with one time, so that their
// caller may send them itself. The caller then waits as long as a worker would, so the flight must
// not wait for a connection.
func (s *Store) mayFly(w *wait, now time.Time) bool {
	if len(w.queues) == 0 || w.queues[0] == nil {
		return false
	}
	first := w.all[0]
	for i, q := range w.queues {
		if q != w.queues[0] || w.all[i].until != first.until {
			return false
		}
	}
	return first.until.Sub(now) >= s.timeout && first.where.home.steady() && !s.pulse.missed(now)
}

// cancels returns a channel that ends with the first context of a transaction; nil: none has one.
// The end of any other context wakes the caller.
func (w *wait) cancels(transactions []store.Transaction) (first <-chan struct{}) {
	last := first // transactions with one context mostly stand side by side
	for i, t := range w.all {
		if t == nil || t.where.home == nil {
			continue
		}
		done := transactions[i].Ctx.Done()
		switch {
		case done == nil || done == last:
			continue
		case first == nil:
			first = done
		case !w.watched:
			w.stops = append(w.stops, context.AfterFunc(transactions[i].Ctx, w.wake))
		}
		last = done
	}
	w.watched = true
	return first
}

// taken writes the decisions and states of a transaction that has ended.
func (s *Store) taken(t *transaction, to *store.Transaction) {
	switch {
	case t.where.home == nil: // over several locations: it has its decision
	case t.err != nil:
		if over := to.Ctx.Err(); over != nil && errors.Is(t.err, context.DeadlineExceeded) {
			t.err = notInTime(over)
		}
		to.Err = &unanswered{t.err, []*transaction{t}}
	default:
		copy(to.Decisions, t.decisions)
		for i := range to.Charges {
			t.tell(i, &to.Charges[i], &to.Decisions[i])
		}
		to.Admitted = t.admitted
		s.pool.Put(t)
	}
}

// abandon decides the transactions whose time is over, and reports whether there was no such
// transaction.
func (s *Store) abandon(w *wait, transactions []store.Transaction) (none bool) {
	now, none := time.Now(), true
	for i, t := range w.all {
		if t == nil || t.where.home == nil {
			continue
		}
		over := transactions[i].Ctx.Err()
		if over == nil && now.Before(t.until) {
			continue
		}
		if over == nil {
			over = context.DeadlineExceeded
		}
		w.leave(t)
		s.pulse.miss()
		transactions[i].Err = &unanswered{notInTime(over), []*transaction{t}}
		w.done, none = append(w.done, i), false
	}
	return none
}

// Peek implements [store.Store]. Peek fails as TakeAll does.
func (s *Store) Peek(ctx context.Context, charges []store.Charge, decisions []algorithms.Decision) error {
	until, err := s.until(ctx, time.Now(), charges)
	if err != nil {
		return err
	}
	at, all := s.here(), make([]*transaction, len(charges))
	for i := range charges {
		s.sendBefore(charges[i : i+1])
		all[i] = s.transaction(peek, s.locate(&charges[i], at), at, charges[i:i+1])
	}
	if err := s.do(ctx, until, all...); err != nil {
		return err
	}
	for i, t := range all {
		decisions[i] = t.decisions[0]
		t.tellHold(0, &charges[i])
		charges[i].TellSource(store.Asked)
		s.pool.Put(t)
	}
	return nil
}
