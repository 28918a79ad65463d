package linear

import (
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// holder is a holder of a key, and its memory.
type holder struct {
	name store.Holder
	hold algorithms.Hold
}

// settles reports whether a charge tells the fate of a holder, so that a transaction applies the
// charge first.
func settles(c *store.Charge) bool { return c.Hold != nil && c.Hold.Phase != algorithms.HoldBegin }

// hold returns the live hold of a charge's holder, the zero value without a holder.
func (k key) hold(c *store.Charge, now algorithms.Instant) algorithms.Hold {
	if c.Hold != nil {
		if i := slices.IndexFunc(k.holders, func(h holder) bool { return h.name == c.Hold.Holder }); i >= 0 {
			return k.holders[i].hold.Live(now)
		}
	}
	return algorithms.Hold{}
}

// note returns the key with the memory of a charge's holder as the charge leaves it.
func (k key) note(c *store.Charge, now algorithms.Instant, passed bool) key {
	if c.Hold == nil {
		return k
	}
	after := k.hold(c, now).After(c.Hold.Phase, c.Limit, now, c.Hits, c.Hold.AtMost, passed)
	k.holders = slices.DeleteFunc(slices.Clone(k.holders), func(h holder) bool { return h.name == c.Hold.Holder })
	if after != (algorithms.Hold{}) {
		k.holders = append(k.holders, holder{c.Hold.Holder, after})
		slices.SortFunc(k.holders, func(x, y holder) int { return slices.Compare(x.name[:], y.name[:]) })
	}
	return k
}

// effect returns the work of a charge.
func (k key) effect(c *store.Charge, now algorithms.Instant) algorithms.Effect {
	switch {
	case c.Hold != nil:
		return k.hold(c, now).Effect(c.Hold.Phase, c.Limit, c.Hits)
	case c.Limit.Algorithm == algorithms.Concurrency:
		return algorithms.Effect{} // asks as a probe
	default:
		return algorithms.Effect{Hits: c.Hits}
	}
}

// apply returns the key after the work of a charge, and the decision. Under Concurrency note does
// the work.
func (k key) apply(c *store.Charge, e algorithms.Effect, now algorithms.Instant) (key, algorithms.Decision) {
	var d algorithms.Decision
	counting := *c
	counting.CountRejected = c.CountRejected || e.Forced
	switch {
	case c.Limit.Algorithm == algorithms.Concurrency:
		d = k.slots(c, uint32(min(max(e.Hits, 0), algorithms.MaxHits)), now)
	case e.Forced && e.Hits < 0:
		k, d = k.giveBack(c, uint32(-e.Hits), e.Charged, now).take(&counting, 0, now)
	default:
		k, d = k.take(&counting, e.Hits, now)
	}
	if e.Forced {
		d.Allowed, d.RetryAfter = true, 0
	}
	return k, d
}

// slots decides on hits of Concurrency.
func (k key) slots(c *store.Charge, hits uint32, now algorithms.Instant) algorithms.Decision {
	var s algorithms.Slots
	for _, h := range k.holders {
		if h := h.hold.Live(now); h.Status == algorithms.HoldHeld {
			if s.Used == 0 {
				s.First, s.Last = h.Until, h.Until
			}
			s = algorithms.Slots{Used: s.Used + uint64(h.Hits), First: min(s.First, h.Until), Last: max(s.Last, h.Until)}
		}
	}
	if c.Hold == nil {
		return s.Decide(c.Limit, now, hits, 0)
	}
	return s.Decide(c.Limit, now, hits, c.Hold.AtMost)
}

// giveBack returns the key after hits have come back that were charged at an instant.
func (k key) giveBack(c *store.Charge, hits uint32, charged, now algorithms.Instant) key {
	if !c.Limit.Algorithm.HasState() {
		k.log = append(slices.Clip(k.log), taken{at: now, hits: int64(hits), limit: c.Limit, back: true, charged: charged})
		return k
	}
	if k.state, k.limit = algorithms.GiveBack(k.limit, c.Limit, k.state, charged, now, hits); k.state.Unused() {
		k.limit = algorithms.Limit{}
	}
	return k
}

// settle returns the key after a charge that settles, and the decision.
func (k key) settle(c *store.Charge, now algorithms.Instant) (key, algorithms.Decision) {
	e, next := k.effect(c, now), k.note(c, now, true)
	if c.Limit.Algorithm == algorithms.Concurrency {
		e.Hits = 0 // the holders have the hits already
	}
	return next.apply(c, e, now)
}
