package shared

import (
	"context"
	"maps"
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// slots returns the summary of the holders at an instant.
func (k counted) slots(at algorithms.Instant) (s algorithms.Slots) {
	for _, hold := range k.holders {
		if hold = hold.Live(at); hold.Status != algorithms.HoldHeld {
			continue
		}
		if s.Used == 0 {
			s.First = hold.Until
		}
		s.Used += uint64(hold.Hits)
		s.First, s.Last = min(s.First, hold.Until), max(s.Last, hold.Until)
	}
	return s
}

// setHolder remembers the hold of a charge's holder.
func (h *hub) setHolder(c *store.Charge, hold algorithms.Hold) {
	k := h.keys[name(c)]
	if k.holders = maps.Clone(k.holders); k.holders == nil {
		k.holders = map[store.Holder]algorithms.Hold{}
	}
	k.holders[c.Hold.Holder] = hold
	h.keys[name(c)] = k
}

// takeEnds applies the charges that end holders.
func (h *hub) takeEnds(charges []store.Charge, decisions []algorithms.Decision, at algorithms.Instant) {
	for i := range charges {
		if c := &charges[i]; isEnd(c) {
			decisions[i] = h.end(c, at)
		}
	}
}

// end applies a charge of a holder that is no begin.
func (h *hub) end(c *store.Charge, at algorithms.Instant) algorithms.Decision {
	k := h.keys[name(c)]
	was := k.holders[c.Hold.Holder].Live(at)
	c.Hold.Was = was
	e := was.Effect(c.Hold.Phase, c.Limit, c.Hits)
	switch {
	case c.Limit.Algorithm == algorithms.Concurrency:
	case e.Hits < 0 && c.Limit.Algorithm.HasState():
		k.state.State, k.state.Limit = algorithms.GiveBack(k.state.Limit, c.Limit, k.state.State, e.Charged, at, uint32(-e.Hits))
		h.keys[name(c)] = k
	case e.Hits < 0:
		log := new(algorithms.Log)
		for _, entry := range k.log.AppendEntries(nil) {
			log.Restore(c.Limit, entry, at)
		}
		log.GiveBack(c.Limit, at, e.Charged, uint32(-e.Hits))
		k.log = log
		h.keys[name(c)] = k
	case e.Hits > 0:
		h.charge(*c, e.Hits, at)
	}
	h.setHolder(c, was.After(c.Hold.Phase, c.Limit, at, c.Hits, c.Hold.AtMost, true))
	d := h.takeOne(c, 0, at, false)
	d.Allowed, d.RetryAfter = true, 0
	return d
}

// takeBegin decides a charge that ends no holder.
func (h *hub) takeBegin(c *store.Charge, at algorithms.Instant) algorithms.Decision {
	if c.Hold == nil {
		return h.takeOne(c, c.Hits, at, c.CountRejected)
	}
	was := h.keys[name(c)].holders[c.Hold.Holder].Live(at)
	c.Hold.Was = was
	e := was.Effect(c.Hold.Phase, c.Limit, c.Hits)
	d := h.takeOne(c, e.Hits, at, c.CountRejected)
	if e.Forced {
		d.Allowed, d.RetryAfter = true, 0
	}
	return d
}

// hold remembers the holder of a begin.
func (h *hub) hold(c *store.Charge, at algorithms.Instant, passed bool) {
	h.setHolder(c, c.Hold.Was.After(c.Hold.Phase, c.Limit, at, c.Hits, c.Hold.AtMost, passed))
}

// owned returns a copy of a charge.
func owned(c *store.Charge) store.Charge {
	own := *c
	own.Key = slices.Clone(c.Key)
	if c.Hold != nil {
		hold := *c.Hold
		own.Hold = &hold
	}
	return own
}

// HoldLater implements [store.Remote].
func (k *link) HoldLater(c *store.Charge, at algorithms.Instant) {
	later := owned(c)
	k.told = append(k.told, later)
	k.owes = append(k.owes, func() { k.hub.end(&later, at) })
}

// Holders implements [store.Store].
func (k *link) Holders(_ context.Context, c *store.Charge, most int) (held []store.Held, all int, err error) {
	if k.is.Load() != up {
		return nil, 0, errDown
	}
	if c.Limit.Algorithm != algorithms.Concurrency {
		return nil, 0, store.ErrNotListed
	}
	k.flush()
	for holder, hold := range k.hub.keys[name(c)].holders {
		if hold = hold.Live(k.hub.now()); hold.Status == algorithms.HoldHeld {
			held = append(held, store.Held{Holder: holder, Hits: hold.Hits, At: hold.At, Until: hold.Until})
		}
	}
	return held[:min(most, len(held))], len(held), nil
}
