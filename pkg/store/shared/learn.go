package shared

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// answer ends a question about a transaction with the remote store's answer: the process learns
// from it. Without an answer the policies decide.
func (s *Store) answer(q *question, t, answer *store.Transaction) {
	if q.span != nil {
		q.span(answer.Err)
		q.span = nil
	}
	if t.Err = answer.Err; t.Err != nil {
		s.unanswered(q, t)
	} else {
		t.Admitted = answer.Admitted
		s.learn(q, t)
	}
	s.finish(q, t)
}

// unanswered decides a question that the remote store failed by the policies, unless the error is
// the caller's. There is nothing to go on from then.
func (s *Store) unanswered(q *question, t *store.Transaction) {
	cause := t.Err
	if t.Err = s.breaker.failed(t.Ctx, q.phases, cause); t.Err == nil {
		q.restoreHolders(t.Charges)
		t.Admitted, t.Err = s.without(q.rest, q.decisions, cause)
	}
	q.phases = q.phases[:0]
}

// learn enters the holders and the denials of an answer. Leases and the local store learn from the
// answer in finish.
func (s *Store) learn(q *question, t *store.Transaction) {
	if len(q.known) > 0 {
		s.recalledHolders(q, t)
	}
	if !q.holds {
		s.learnDenials(q, t.Admitted)
	}
	succeeded(q.phases)
}

// learnDenials remembers the keys of a denied request, and forgets the keys of an admitted one.
func (s *Store) learnDenials(q *question, admitted bool) {
	if s.maxAge == 0 || admitted && s.table.denials.Load() == 0 {
		return
	}
	now := s.now()
	for n := range q.rest {
		c := &q.rest[n]
		if q.states[n].Now == 0 {
			continue
		}
		var d *denial
		if !admitted && !repeated(q.rest[:n+1], n) {
			d = newDenial(c, &q.states[n], &q.decisions[n], now)
		}
		sh := s.table.lock(c)
		if d != nil && sh.generation.Load() == q.generations[n] {
			s.rememberDenialLocked(sh, c.Key, d, now)
		} else {
			s.forgetDenialLocked(sh, c.Key) // the memory is older than the answer
		}
		sh.mu.Unlock()
	}
}

// learnLease ends a question about a key: its lease goes on from the state that the remote store
// told, if it told one. The decision about a refund gets the hits that the lease has.
func (s *Store) learnLease(c *store.Charge, told *store.State, to *algorithms.Decision, now time.Duration) {
	sh := s.table.lock(c)
	defer sh.mu.Unlock()
	k := sh.allotments[string(c.Key)].yes
	if k == nil || k.limit != c.Limit {
		return
	}
	if leasable(c) {
		k.under = max(0, k.under-c.Hits)
	}
	if told.Now == 0 {
		return
	}
	k.learn(now, told)
	if c.Hits < 0 && k.held(now) > 0 {
		*to = k.peek(now, 0)
	}
	s.wantLocked(k, now)
}

// goOn has the local store go on from the states of an answer. The other policies need no states
// there. While other processes may have hits or holders to tell, the states lack these: see
// keepShare.
func (s *Store) goOn(q *question, admitted bool) {
	switch {
	case !slices.ContainsFunc(q.phases, (*phase).tells):
	case q.divided():
		s.keepShare(q, admitted)
	default:
		return
	}
	told := false
	for n := range q.rest {
		if !isLocal(&q.rest[n]) {
			q.states[n].Now = 0
		}
		told = told || q.states[n].Now != 0
	}
	if told {
		s.goOnFrom(q.rest, q.states, q.decisions[:len(q.rest)], admitted)
	}
}

// before has the fields that goOnFrom changes.
type before struct {
	limit algorithms.Limit
	hits  int64
	left  uint64
}

// goOnFrom has the local store go on from the states that the remote store told. If others share
// that store, a part of the hits left counts as used. goOnFrom writes to all three, and restores
// the charges and the decisions.
func (s *Store) goOnFrom(charges []store.Charge, states []store.State, decisions []algorithms.Decision, admitted bool) {
	alone := s.breaker.fleet() == 1
	var few [8]before
	were := few[:0]
	for i := range charges {
		were = append(were, before{charges[i].Limit, charges[i].Hits, decisions[i].Remaining})
		if !alone {
			leaveUnseen(&charges[i], &states[i], &decisions[i])
		}
		if charges[i].Limit.Algorithm != algorithms.SlidingWindowLog {
			toUnits(&charges[i], &states[i], &decisions[i])
			continue
		}
		own := ownOf(&charges[i], &decisions[i], admitted, s.breaker.share())
		toUnits(&charges[i], &states[i], &decisions[i])
		states[i].SetOwn(own)
	}
	s.local.Continue(charges, states, decisions)
	for i := range charges {
		charges[i].Limit, charges[i].Hits, decisions[i].Remaining = were[i].limit, were[i].hits, were[i].left
	}
}

// forgetIfBack forgets the denial of a key that a charge may have given hits back to.
func (s *Store) forgetIfBack(c *store.Charge) {
	if c.Hits < 0 || c.IsEnd() {
		s.forget(c, false)
	}
}
