package storetest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// modelHolder is a holder of one state.
type modelHolder struct {
	state  string
	holder store.Holder
}

// stateOf returns the name of the state of a charge.
func stateOf(c store.Charge) string {
	return fmt.Sprintf("%x %v %v", c.Key, c.Limit.Algorithm, c.Limit.Period)
}

// settles reports whether a charge tells the fate of a holder: such charges come first, and have no
// effect on the verdict.
func settles(c store.Charge) bool { return c.Hold != nil && c.Hold.Phase != algorithms.HoldBegin }

// find returns the live hold of a charge's holder.
func (m *model) find(c store.Charge, now algorithms.Instant) algorithms.Hold {
	return m.holders[modelHolder{stateOf(c), c.Hold.Holder}].Live(now)
}

// note remembers the hold of a charge's holder after the charge.
func (m *model) note(c store.Charge, now algorithms.Instant, passed bool) {
	after := m.find(c, now).After(c.Hold.Phase, c.Limit, now, c.Hits, c.Hold.AtMost, passed)
	m.holders[modelHolder{stateOf(c), c.Hold.Holder}] = after
}

// effect returns the work of a charge, and tells its Hold the hold before. Without a holder,
// concurrency is asked as by a probe.
func (m *model) effect(c store.Charge, now algorithms.Instant) algorithms.Effect {
	if c.Hold == nil {
		if c.Limit.Algorithm == algorithms.Concurrency {
			return algorithms.Effect{}
		}
		return algorithms.Effect{Hits: c.Hits}
	}
	c.Hold.Was, c.Hold.Now = m.find(c, now), now
	return c.Hold.Was.Effect(c.Hold.Phase, c.Limit, c.Hits)
}

// apply does the work of a charge on its state, but for the slots of concurrency, which follow from
// the holders.
func (m *model) apply(c store.Charge, e algorithms.Effect, now algorithms.Instant) algorithms.Decision {
	var d algorithms.Decision
	switch {
	case c.Limit.Algorithm == algorithms.Concurrency:
		d = m.slots(c, now, max(e.Hits, 0))
	case e.Forced && e.Hits < 0:
		m.giveBack(c, uint32(-e.Hits), e.Charged, now)
		d = m.take(c, 0, now)
	default:
		c.CountRejected = c.CountRejected || e.Forced
		d = m.take(c, e.Hits, now)
	}
	if e.Forced {
		d.Allowed, d.RetryAfter = true, 0
	}
	return d
}

// slots decides on hits of concurrency from a walk over all holders.
func (m *model) slots(c store.Charge, now algorithms.Instant, hits int64) algorithms.Decision {
	var s algorithms.Slots
	for _, h := range m.listed(c, now) {
		if s.Used == 0 {
			s.First = h.Until
		}
		s.Used += uint64(h.Hits)
		s.Last = h.Until
	}
	var atMost algorithms.Instant
	if c.Hold != nil {
		atMost = algorithms.Instant(c.Hold.AtMost)
	}
	return s.Decide(c.Limit, now, uint32(min(hits, algorithms.MaxHits)), atMost.Sub(0))
}

// listed returns the holders of a charge's state that hold, the next one to run out first.
func (m *model) listed(c store.Charge, now algorithms.Instant) []store.Held {
	var all []store.Held
	for key, h := range m.holders {
		if h = h.Live(now); key.state == stateOf(c) && h.Status == algorithms.HoldHeld {
			all = append(all, store.Held{Holder: key.holder, Hits: h.Hits, At: h.At, Until: h.Until})
		}
	}
	slices.SortFunc(all, func(x, y store.Held) int {
		return cmp.Or(cmp.Compare(x.Until, y.Until), slices.Compare(x.Holder[:], y.Holder[:]))
	})
	return all
}

// settle applies the charges that settle, and decides them: always allowed.
func (m *model) settle(charges []store.Charge, decisions []algorithms.Decision, now algorithms.Instant) {
	for i, c := range charges {
		if !settles(c) {
			continue
		}
		e := m.effect(c, now)
		m.note(c, now, true)
		if c.Limit.Algorithm == algorithms.Concurrency {
			e.Hits = 0 // the holders have the hits already
		}
		decisions[i] = m.apply(c, e, now)
	}
}
