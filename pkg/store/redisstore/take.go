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
// time, but may have charged. [store.ErrLimit]: the period is no whole number of microseconds. A
// caller that sends its call itself waits until the end of its time also when its Ctx is canceled.
func (s *Store) TakeAll(transactions []store.Transaction, decided func(indexes []int)) {
	w, _ := s.waits.Get().(*wait)
	now := time.Now()
	for i := range transactions {
		s.begin(w, &transactions[i], now)
	}
	if len(w.done) > 0 {
		decided(w.done)
	}
	mayFly := s.mayFly(w, now)
	for server := range s.all() {
		w.putAll(server, now, mayFly)
	}
	s.await(w, func(over []*transaction) {
		w.done = w.done[:0]
		for _, t := range over {
			w.done = append(w.done, t.number)
			s.taken(t, &transactions[t.number])
		}
		decided(w.done)
	})
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
		w.add(nil, now, until)
		return
	}
	s.sendBefore(t.Charges)
	at := s.here()
	if s.several(at, t.Charges) {
		parts := new(transaction)
		w.add(parts, now, time.Time{}) // takeSeveral has its own time
		go func() {
			t.Admitted, t.Err = s.takeSeveral(t.Ctx, until, at, t.Charges, t.Decisions)
			w.end(parts)
		}()
		return
	}
	c := s.transaction(take, s.locate(&t.Charges[0], at), at, t.Charges)
	c.ctx = t.Ctx
	w.add(c, now, until)
}

// mayFly reports whether all transactions are calls to one server with one time, so that their
// caller may send them itself. The caller then waits as long as a worker would, so the flight must
// not wait for a connection. In a cluster a call may be the first to its node.
func (s *Store) mayFly(w *wait, now time.Time) bool {
	if w.left == 0 || w.left != len(w.all) {
		return false
	}
	server, until := w.all[0].where.server, w.all[0].until
	for _, t := range w.all {
		if t.where.server == nil || t.where.server != server || t.until != until {
			return false
		}
	}
	return until.Sub(now) >= s.timeout && !server.cluster && server.connection.Steady() && !s.missed(now) && server.queue.node(0).pulse.prompt(now)
}

func (s *Store) taken(t *transaction, to *store.Transaction) {
	switch {
	case t.ctx == nil: // over several locations: it has its decision
	case t.over != nil:
		to.Err = &unanswered{t.over, []*transaction{t}}
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
