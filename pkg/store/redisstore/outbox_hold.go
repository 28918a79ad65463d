package redisstore

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

const (
	outboxHoldsPerShard = 1024 // holders
	outboxHoldEvents    = 4    // of one holder
	outboxHoldsBefore   = 512  // holders of a key that are sent ahead of a request
)

// owedHolder names a holder of one key.
type owedHolder struct {
	algorithm algorithms.Algorithm
	period    time.Duration
	holder    store.Holder
}

// owedHold is the events of a holder that Redis does not know of, in their order. A call has all
// that wait, and the next call waits for the answer. Without an answer they are sent again: an
// event that Redis knows already has no effect.
type owedHold struct {
	name   owedHolder
	charge store.Charge // Key, Limit and Hold
	events []holdEvent
	under  int // events on the way, the first ones
}

// holdEvent is one charge of a holder.
type holdEvent struct {
	phase  algorithms.HoldPhase
	hits   int64
	limit  algorithms.Limit
	atMost time.Duration
	at     algorithms.Instant // by Redis's clock
	here   algorithms.Instant // by this process's clock, for windows of counters
}

// HoldLater implements [store.Remote]. A begin that waits goes with its end: Redis then charges
// the true cost of a holder that it does not know.
func (s *Store) HoldLater(c *store.Charge, at algorithms.Instant) {
	if c.Hold == nil || c.Hold.Phase == algorithms.HoldBegin {
		return
	}
	at -= at % algorithms.Instant(Granularity)
	e := holdEvent{phase: c.Hold.Phase, hits: c.Hits, limit: c.Limit, atMost: c.Hold.AtMost, at: at}
	if s.isCounter(c) {
		e.here = at - (s.Now(algorithms.Limit{}) - s.now())
	}
	s.outbox.addHold(c, e)
}

// addHold adds an event.
func (o *outbox) addHold(c *store.Charge, e holdEvent) {
	name := owedHolder{c.Limit.Algorithm, c.Limit.Period, c.Hold.Holder}
	sh := o.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	h := sh.holds[string(c.Key)][name]
	switch {
	case o.closed.Load() || c.Limit.Period%Granularity != 0 || h == nil && sh.holdCount >= outboxHoldsPerShard:
		o.store.metrics.lostHolds.Add(1)
		return
	case h == nil:
		h = &owedHold{name: name, charge: store.Charge{Key: slices.Clone(c.Key), Limit: c.Limit, Hold: &store.Hold{Holder: c.Hold.Holder}}}
		o.putHoldLocked(sh, h)
	}
	h.add(o, e)
}

// add adds an event, or puts it in place of the last one.
func (h *owedHold) add(o *outbox, e holdEvent) {
	if n := len(h.events); n > h.under {
		last := &h.events[n-1]
		switch {
		case last.phase == e.phase: // has no effect
			return
		case last.phase == algorithms.HoldBegun:
			*last = e
			return
		}
	}
	if len(h.events) >= outboxHoldEvents {
		o.store.metrics.lostHolds.Add(1)
		return
	}
	h.events = append(h.events, e)
}

func (o *outbox) putHoldLocked(sh *outboxShard, h *owedHold) {
	key := string(h.charge.Key)
	if sh.holds[key] == nil {
		sh.holds[key] = make(map[owedHolder]*owedHold)
	}
	sh.holds[key][h.name] = h
	sh.holdCount++
	o.holds.Add(1)
}

// tidyHoldLocked removes a holder without events, and reports whether it has none.
func (o *outbox) tidyHoldLocked(sh *outboxShard, h *owedHold) (gone bool) {
	if len(h.events) > 0 {
		return false
	}
	key := string(h.charge.Key)
	if sh.holds[key][h.name] != h {
		return true // removed before
	}
	if delete(sh.holds[key], h.name); len(sh.holds[key]) == 0 {
		delete(sh.holds, key)
	}
	sh.holdCount--
	o.holds.Add(-1)
	return true
}

// expireHoldLocked drops waiting events that have no effect any more, and reports whether the
// holder is gone.
func (o *outbox) expireHoldLocked(sh *outboxShard, h *owedHold) (gone bool) {
	now := o.store.Now(algorithms.Limit{}) - algorithms.Instant(deferredOverdue)
	for len(h.events) > h.under {
		e := &h.events[h.under]
		known := now < e.at.Add(e.atMost)
		if known || e.limit.Algorithm != algorithms.Concurrency && !over(e.limit, e.at, now) {
			break
		}
		h.events = slices.Delete(h.events, h.under, h.under+1)
		o.store.metrics.expiredHolds.Add(1)
	}
	return h.under == 0 && o.tidyHoldLocked(sh, h)
}

// call returns a call of the waiting events, which are then on the way. Two events in two windows
// of counters do not fit into one call.
func (h *owedHold) call(s *Store) *call {
	if h.under > 0 || len(h.events) == 0 {
		return nil
	}
	events := h.events
	if events[0].here != 0 {
		events = events[:1]
	}
	c := newCall()
	c.set(correct, s.locate(&h.charge, events[0].here), events[0].here, nil)
	for _, e := range events {
		charge := h.charge
		charge.Limit, charge.Hits = e.limit, e.hits
		charge.Hold = &store.Hold{Phase: e.phase, Holder: h.name.holder, AtMost: e.atMost}
		c.add(&charge)
		c.corrections = append(c.corrections, nil)
	}
	c.own()
	for i, e := range events {
		c.holds[i].since = int64(e.at) / int64(Granularity)
	}
	c.owed = h
	h.under = len(events)
	return c
}

// sendHoldLocked sends the waiting events of a holder through put, which puts a call into a queue.
func (o *outbox) sendHoldLocked(h *owedHold, put func(*call)) (sent bool) {
	c := h.call(o.store)
	if c != nil {
		o.send(c, put, time.Time{})
	}
	return c != nil
}

// sendHoldsBefore sends the waiting events of the keys of charges, ahead of a request for the same
// keys.
func (o *outbox) sendHoldsBefore(charges []store.Charge) {
	if o.holds.Load() == 0 {
		return
	}
	looks := reaches{store: o.store}
	for i := range charges {
		sh := o.shard(charges[i].Key)
		sh.mu.Lock()
		sent := 0
		for _, h := range sh.holds[string(charges[i].Key)] {
			if o.expireHoldLocked(sh, h) {
				continue
			}
			if sent == outboxHoldsBefore || o.full() || looks.of(&h.charge, h.events[0].here) == nobody {
				break
			}
			q := o.store.queueBefore(charges, i)
			put := func(c *call) {
				if q == nil {
					c.queue().putBefore(c)
				} else {
					q.putBefore(c)
				}
			}
			if o.sendHoldLocked(h, put) {
				sent++
			}
		}
		sh.mu.Unlock()
	}
}

// followHolds puts the ends that a request has behind the events of their holders that are on the
// way or wait. A begin without an answer is sent again. If the end of the request has come before,
// only a second end ends the holder.
func (o *outbox) followHolds(charges []store.Charge) {
	if o.holds.Load() == 0 {
		return
	}
	for i := range charges {
		c := &charges[i]
		if c.Hold == nil || c.Hold.Phase == algorithms.HoldBegin || c.Hold.Phase == algorithms.HoldBegun {
			continue
		}
		sh := o.shard(c.Key)
		sh.mu.Lock()
		_, waits := sh.holds[string(c.Key)][owedHolder{c.Limit.Algorithm, c.Limit.Period, c.Hold.Holder}]
		sh.mu.Unlock()
		if waits {
			o.store.HoldLater(c, o.store.Now(algorithms.Limit{}))
		}
	}
}

// lookHoldLocked is lookLocked for a holder.
func (r *round) lookHoldLocked(sh *outboxShard, h *owedHold, send bool) {
	o := r.outbox
	r.seen++
	if o.expireHoldLocked(sh, h) || !send || h.under > 0 {
		return
	}
	switch reach := r.reach.of(&h.charge, h.events[0].here); {
	case reach == nobody:
	case reach == silent && !r.last:
		o.askLocked(&h.charge, h.events[0].here, r.now)
	case !o.full() && o.sendHoldLocked(h, putCall):
		r.sent++
	}
}

// toldHold handles the end of a call about a holder. Without an answer, or after a refusal, its
// events wait again.
func (o *outbox) toldHold(c *call) {
	h := c.owed
	sh := o.shard(h.charge.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	told := h.under
	h.under = 0
	switch {
	case c.err == nil:
		o.store.metrics.toldHolds.Add(uint64(told))
	case !o.resetting(h.charge.Key):
		return
	}
	h.events = slices.Delete(h.events, 0, told)
	o.tidyHoldLocked(sh, h)
}

// resetting reports whether a key is being reset.
func (o *outbox) resetting(key []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.resets[string(key)] != nil
}

// forgetHoldsLocked drops the waiting events of a key; lost counts them. The shard's mu must be
// held.
func (o *outbox) forgetHoldsLocked(sh *outboxShard, key string, lost bool) {
	for _, h := range sh.holds[key] {
		if lost {
			o.store.metrics.lostHolds.Add(uint64(len(h.events) - h.under))
		}
		h.events = h.events[:h.under]
		o.tidyHoldLocked(sh, h)
	}
}
