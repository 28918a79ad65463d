package main

import (
	"errors"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// holds is the holders of one client. The zero value has none.
type holds struct {
	known map[string]algorithms.Hold
	line  []holdEnd // of known, and of some that are known no more; the next to run out first
	used  uint64    // hits of all that hold
}

// holdEnd is the instant at which a holder runs out.
type holdEnd struct {
	holder string
	until  algorithms.Instant
}

// fits returns why a request cannot be decided under the limit.
func (r *replay) fits(q request) error {
	switch {
	case q.phase != 0 && r.atMost == 0:
		return errors.New("a begin or an end needs --at-most")
	case q.phase == 0 && r.limit.Algorithm == algorithms.Concurrency:
		return errors.New("concurrency has no requests without a holder: must be begin or end")
	}
	return nil
}

// hold decides the begin or the end of a holder of a client, as a store does for a request with one
// limit.
func (r *replay) hold(c *client, q request) algorithms.Decision {
	c.holds.expire(c.last)
	was := c.holds.known[string(q.holder)]
	e := was.Effect(q.phase, r.limit, q.hits)
	var d algorithms.Decision
	switch slots := r.limit.Algorithm == algorithms.Concurrency; {
	case slots:
		hits := uint32(max(e.Hits, 0))
		if e.Hits < 0 {
			c.holds.used -= uint64(-e.Hits)
			delete(c.holds.known, string(q.holder))
		}
		d = c.holds.slots().Decide(r.limit, c.last, hits, r.atMost)
		if d.Allowed {
			c.holds.used += uint64(hits)
		}
	case e.Hits < 0:
		r.giveBack(c, e)
		d = r.charge(c, 0, false)
	default:
		d = r.charge(c, e.Hits, e.Forced || r.countRejected)
	}
	if e.Forced {
		d.Allowed, d.RetryAfter = true, 0
	}
	c.holds.set(string(q.holder), was, was.After(q.phase, r.limit, c.last, q.hits, r.atMost, d.Allowed))
	return d
}

// giveBack gives the hits of an effect back to the state of a client.
func (r *replay) giveBack(c *client, e algorithms.Effect) {
	hits := uint32(-e.Hits)
	if !r.limit.Algorithm.HasState() {
		c.log.GiveBack(r.limit, c.last, e.Charged, hits)
		return
	}
	l, tick := r.limit, algorithms.Instant(r.tick)
	l.Period /= r.tick
	c.state, _ = algorithms.GiveBack(l, l, c.state, e.Charged/tick, c.last/tick, hits)
}

// expire forgets the holders that have run out.
func (h *holds) expire(now algorithms.Instant) {
	for len(h.line) > 0 && (h.line[0].until <= now || !h.stands(h.line[0])) {
		if first := h.line[0]; h.stands(first) {
			if hold := h.known[first.holder]; hold.Status == algorithms.HoldHeld {
				h.used -= uint64(hold.Hits)
			}
			delete(h.known, first.holder)
		}
		h.line = h.line[1:]
	}
}

// stands reports whether a holder is still the one in the line.
func (h *holds) stands(e holdEnd) bool {
	hold, known := h.known[e.holder]
	return known && hold.Until == e.until
}

// slots returns the state of concurrency. Only holders that hold are known under it.
func (h *holds) slots() algorithms.Slots {
	for len(h.line) > 0 && !h.stands(h.line[len(h.line)-1]) {
		h.line = h.line[:len(h.line)-1]
	}
	for len(h.line) > 0 && !h.stands(h.line[0]) {
		h.line = h.line[1:]
	}
	s := algorithms.Slots{Used: h.used}
	if len(h.line) > 0 {
		s.First, s.Last = h.line[0].until, h.line[len(h.line)-1].until
	}
	return s
}

// set remembers the hold of a holder. All holders run out in the order in which they came, as a
// client's time does not go back.
func (h *holds) set(holder string, was, next algorithms.Hold) {
	switch {
	case next == algorithms.Hold{}:
		delete(h.known, holder)
		return
	case h.known == nil:
		h.known = make(map[string]algorithms.Hold)
	}
	h.known[holder] = next
	if next.Until != was.Until {
		h.line = append(h.line, holdEnd{holder, next.Until})
	}
}
