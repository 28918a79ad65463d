package redisstore

import (
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

var _ store.Unanswered = (*unanswered)(nil)

// unanswered is the error of a request without a good answer, with the calls of the request.
type unanswered struct {
	error

	store *Store
	calls []*call
}

// unanswered returns err as the error of a request of calls, which must not be used again.
func (s *Store) unanswered(err error, calls ...*call) error {
	return &unanswered{error: err, store: s, calls: calls}
}

// unsent returns err as the error of a request that has not come to be calls.
func (s *Store) unsent(err error, charges []store.Charge) error {
	if len(charges) == 0 {
		return err
	}
	c := s.call(take, location{}, s.now(), charges)
	c.status.Store(abandoned)
	return s.unanswered(err, c)
}

func (u *unanswered) Unwrap() error { return u.error }

// Instead implements [store.Unanswered].
func (u *unanswered) Instead(hits []int64) {
	for _, c := range u.calls {
		own := hits
		if len(c.index) > 0 {
			own = nil
			for _, i := range c.index {
				own = append(own, hits[i])
			}
		}
		u.store.outbox.instead(c, slices.Clone(own))
	}
}

// instead is the hits of a call that were decided elsewhere.
type instead struct {
	hits   []int64              // of each charge
	at     []algorithms.Instant // of each charge: of the hits, by the key's clock
	places []*deferred          // of each charge: owes the hits while the outcome is open; may be nil
}

// instead has the difference between hits and the hits that Redis has applied charged, when the
// outcome of a call is known.
func (o *outbox) instead(c *call, hits []int64) {
	p := &instead{hits: hits, places: make([]*deferred, len(hits))}
	for i := range c.charges {
		charge := c.charges[i]
		if charge.Hold != nil {
			hits[i] = 0 // the caller tells HoldLater
		}
		charge.Hits = hits[i]
		at := o.nowOf(o.store.isCounter(&charge))
		p.at = append(p.at, at-at%algorithms.Instant(Granularity))
		if hits[i] > 0 && chargeable(&charge) {
			sh := o.shard(charge.Key)
			sh.mu.Lock()
			if p.places[i] = o.deferredLocked(sh, &charge, p.at[i]); p.places[i] != nil {
				p.places[i].under += hits[i]
			}
			sh.mu.Unlock()
		}
	}
	c.instead = p
	if !c.status.CompareAndSwap(sent, promised) {
		o.settle(c)
	}
}

// settle has the hits of a call's instead charged that Redis has not applied, and hits given back
// that Redis has applied beyond these. The call is over, or will not be sent.
func (o *outbox) settle(c *call) {
	p, unsent := c.instead, c.status.Load() == abandoned || c.refused
	for i := range c.charges {
		charge, at := c.charges[i], p.at[i]
		if charge.Hold != nil {
			continue
		}
		switch charge.Hits = p.hits[i]; {
		case unsent:
		case c.err != nil:
			charge.Hits = max(charge.Hits, 0)
			o.store.metrics.unknownHits.Add(uint64(charge.Hits))
		default:
			at = o.store.appliedAt(c, i)
			charge.Hits -= c.hitsOf(i)
			if charge.Hits < 0 && !c.allowed(i) && charge.Limit.Algorithm != algorithms.FixedWindow {
				charge.Hits = 0 // Redis may have counted fewer of the denied hits
			}
		}
		if charge.Hits < 0 && c.resets != o.resetCount.Load() {
			charge.Hits = 0 // the hits are forgotten
		}
		o.add(&charge, at)
		if d := p.places[i]; d != nil {
			sh := o.shard(charge.Key)
			sh.mu.Lock()
			d.under -= p.hits[i]
			o.tidyLocked(sh, d)
			sh.mu.Unlock()
		}
	}
}

// appliedAt returns the instant of hits that Redis has applied, by the key's clock.
func (s *Store) appliedAt(c *call, i int) algorithms.Instant {
	switch {
	case c.counters[i]:
		return c.at - c.at%algorithms.Instant(Granularity)
	case !c.charges[i].Limit.Algorithm.HasState():
		return instant(uint64(c.added[i].at))
	}
	return c.now
}

// tell writes the state of a key to charge.Left, as the call left it, and with the hits that Redis
// does not know of. charge is charge n of the call. A list has no state: its decision has less
// remaining.
func (s *Store) tell(c *call, n int, charge *store.Charge, d *algorithms.Decision) {
	to := charge.Left
	if to == nil {
		return
	}
	c.tell(n, to)
	now := c.now
	if c.counters[n] {
		now = c.at
	}
	hits := s.outbox.owed(charge, now)
	switch {
	case hits == 0:
	case charge.Limit.Algorithm.HasState():
		if last, _, _ := to.State.Parts(); c.counters[n] && !to.State.Unused() {
			now = last
		}
		to.Take(charge.Limit, now, hits, true)
	default:
		d.Remaining -= min(d.Remaining, uint32(hits))
	}
}
