package owed

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

type name struct {
	algorithm algorithms.Algorithm
	period    time.Duration
	holder    store.Holder
}

func nameOf(c *store.Charge) name {
	return name{c.Limit.Algorithm, c.Limit.Period, c.Hold.Holder}
}

// Holder is the begins and ends of a holder that Redis has yet to be told of, in their order. A
// call tells all that wait, and the next call waits for the answer.
type Holder struct {
	name   name
	charge store.Charge // Key, Limit and Hold
	events []event
	under  int // events on the way, the first ones
}

type event struct {
	hold  store.Hold
	hits  int64
	limit algorithms.Limit
	at    algorithms.Instant // by Redis's clock
	here  algorithms.Instant // by this process's clock, for windows of counters; 0: no counter
}

// AddEvent adds a charge with a Hold at an instant of Redis's clock. here is the instant by this
// process's clock if the state is a counter, else 0. An end goes with the begin that waits before
// it. Two equal phases in a row are one, and an end takes the place of HoldBegun. Each HoldPair
// stays. Events above the bounds are lost.
func (b *Book) AddEvent(c *store.Charge, at, here algorithms.Instant) {
	h := b.holders[string(c.Key)][nameOf(c)]
	switch {
	case b.closed || c.Limit.Period%Granularity != 0 || h == nil && b.nHolder >= MostHolders:
		b.counts.LostEvents++
		return
	case h == nil:
		h = b.newHolder(c)
	}
	e := event{hold: *c.Hold, hits: c.Hits, limit: c.Limit, at: at, here: here}
	e.hold.Was, e.hold.Now = algorithms.Hold{}, 0
	if n := len(h.events); n > h.under && e.hold.Phase != algorithms.HoldPair {
		switch last := &h.events[n-1]; last.hold.Phase {
		case e.hold.Phase: // has no effect
			return
		case algorithms.HoldBegun:
			*last = e
			return
		default:
		}
	}
	if len(h.events) >= mostEvents {
		b.counts.LostEvents++
		return
	}
	h.events = append(h.events, e)
}

// newHolder puts a holder without events into the book.
func (b *Book) newHolder(c *store.Charge) *Holder {
	h := &Holder{name: nameOf(c), charge: store.Charge{Key: slices.Clone(c.Key), Limit: c.Limit, Hold: &store.Hold{Holder: c.Hold.Holder}}}
	key := string(c.Key)
	if b.holders == nil {
		b.holders = make(map[string]map[name]*Holder)
	}
	if b.holders[key] == nil {
		b.holders[key] = make(map[name]*Holder)
	}
	b.holders[key][h.name] = h
	b.nHolder++
	return h
}

// begun returns the hits that the holder holds once Redis has been told.
func (h *Holder) begun() int64 {
	if last := h.events[len(h.events)-1]; last.hold.Phase == algorithms.HoldBegun {
		return last.hits
	}
	return 0
}

// Knows reports whether events of the holder of a charge wait or are on the way.
func (b *Book) Knows(c *store.Charge) bool { return b.holders[string(c.Key)][nameOf(c)] != nil }

// Charge implements [Entry].
func (h *Holder) Charge() *store.Charge { return &h.charge }

// At implements [Entry].
func (h *Holder) At() algorithms.Instant { return h.events[0].here }

func (h *Holder) waits(Clocks) bool { return h.under == 0 && len(h.events) > 0 }

// Returns implements [Entry]. An event that Redis has applied has no second effect.
func (h *Holder) Returns() bool { return false }

// expire drops waiting events that have no effect any more.
func (h *Holder) expire(b *Book, at Clocks) (gone bool) {
	now := at.Redis - algorithms.Instant(Overdue)
	for len(h.events) > h.under {
		e := &h.events[h.under]
		known := now < e.at.Add(e.hold.AtMost)
		if known || e.limit.Algorithm != algorithms.Concurrency && now < ends(e.limit, e.at) {
			break
		}
		h.events = slices.Delete(h.events, h.under, h.under+1)
		b.counts.ExpiredEvents++
	}
	return h.under == 0 && h.tidy(b)
}

// tell returns the waiting events. Two events in two windows of counters do not fit into one call.
func (h *Holder) tell(Clocks) *Telling {
	events := h.events
	if events[0].here != 0 {
		events = events[:1]
	}
	t := &Telling{Entry: h, Of: events[0].here, Holder: true}
	for _, e := range events {
		c := h.charge
		c.Limit, c.Hits, c.Hold = e.limit, e.hits, &e.hold
		t.Charges, t.Instant = append(t.Charges, c), append(t.Instant, e.at)
	}
	h.under = len(events)
	return t
}

func (h *Holder) told(b *Book, t *Telling, o Outcome, _ Clocks) {
	n := min(h.under, len(t.Charges))
	h.under = 0
	switch {
	case o == Applied:
		b.counts.ToldEvents += uint64(n)
	case b.closed:
		b.counts.LostEvents += uint64(n)
	case b.resets[string(h.charge.Key)] == nil:
		for i := range h.events[:n] { // a HoldPair that Redis has applied would have another effect now
			if e := &h.events[i]; e.hold.Phase == algorithms.HoldPair {
				e.hold.Phase, e.hits = algorithms.HoldBegun, int64(e.hold.Estimate)
			}
		}
		return
	}
	h.events = slices.Delete(h.events, 0, n)
	h.tidy(b)
}

// tidy removes a holder without events from the book, and reports whether it has none.
func (h *Holder) tidy(b *Book) (gone bool) {
	if len(h.events) > 0 {
		return false
	}
	key := string(h.charge.Key)
	if b.holders[key][h.name] != h {
		return true // removed before
	}
	if delete(b.holders[key], h.name); len(b.holders[key]) == 0 {
		delete(b.holders, key)
	}
	b.nHolder--
	return true
}
