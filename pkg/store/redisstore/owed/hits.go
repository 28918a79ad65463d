package owed

import (
	"math/bits"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Hits is hits of one state that Redis does not count. With windows these are the hits of one
// window. Without windows hits to charge are one entry, and hits to give back are one for each
// instant.
//
// Hits older than a lifetime do not matter. A bucket that gets all hits of the last lifetime at
// their newest instant is never fuller than with each hit at its own instant. Before these hits its
// deficit was at most the gain of a lifetime. So the hits lie in slots of time, and the oldest
// slots drop out. A bucket gets back the hits less the gain since their own instant: a later
// instant would give back too much.
type Hits struct {
	charge store.Charge // Key and Limit
	here   bool         // instants are of this process's clock
	back   bool         // hits to give back, of an algorithm without windows
	fix    Fix          // of hits to give back
	at     algorithms.Instant
	slots  [slotsOfAnItem]int64 // by time, the newest in slot 0; of a window, and to give back, all in slot 0
	under  int64                // hits to charge that are on the way, or of a request whose outcome is open
}

// Chargeable reports whether Redis can have the hits of a charge.
func Chargeable(c *store.Charge) bool {
	return c.Hits != 0 && c.Limit.Period%Granularity == 0 && (c.Limit.Requests > 0 || c.Limit.Algorithm.HasState())
}

// Add adds the hits of a charge at an instant. here says that the instant is of this process's
// clock. fix may be zero. Hits above the bounds are lost, or stay charged.
func (b *Book) Add(c *store.Charge, at algorithms.Instant, here bool, fix Fix) {
	switch {
	case Chargeable(c):
		if h := b.entry(c, at, here, fix); h != nil {
			h.add(c, at)
			return
		}
	case c.Limit.Period%Granularity == 0:
		return
	}
	b.counts.lose(c.Hits)
}

// Open adds the hits of a request whose outcome is open: Owed has them, and no call tells them.
// Call Settle when the outcome is known. Open returns nil if there is no room.
func (b *Book) Open(c *store.Charge, at algorithms.Instant, here bool) *Hits {
	h := b.entry(c, at, here, Fix{})
	if h != nil {
		h.under += c.Hits
	}
	return h
}

// Settle ends an Open of that many hits.
func (b *Book) Settle(h *Hits, hits int64) {
	h.under -= hits
	h.tidy(b)
}

// Owed returns the hits of a key that matter at an instant, and that the answer of Redis at that
// instant does not have.
func (b *Book) Owed(c *store.Charge, now algorithms.Instant) (hits int64) {
	for _, h := range b.hits[string(c.Key)] {
		if l := h.charge.Limit; l.Algorithm == c.Limit.Algorithm && l.Period == c.Limit.Period && !over(l, h.at, now) {
			hits += max(h.waiting(), 0) + h.under
		}
	}
	return min(hits, algorithms.MaxHits)
}

// entry returns the entry of the hits of a charge; nil if there is no room.
func (b *Book) entry(c *store.Charge, at algorithms.Instant, here bool, fix Fix) *Hits {
	all := b.hits[string(c.Key)]
	for _, h := range all {
		if h.takes(c, at, fix) {
			if h.charge.Limit != c.Limit {
				b.rests = time.Time{}
			}
			return h
		}
	}
	if b.closed || b.nHits >= MostHits || c.Hits < 0 && len(all) >= mostBack {
		return nil
	}
	h := &Hits{
		charge: store.Charge{Key: slices.Clone(c.Key), Limit: c.Limit, CountRejected: true, Mode: store.Shadow},
		here:   here, back: c.Hits < 0 && !windowed(c.Limit.Algorithm), at: at,
	}
	b.nHits++
	b.rests = time.Time{}
	if h.back {
		h.fix = fix
		all = append(all, h)
	} else {
		all = slices.Insert(all, 0, h)
	}
	if b.hits == nil {
		b.hits = make(map[string][]*Hits)
	}
	b.hits[string(c.Key)] = all
	return h
}

// takes reports whether hits of a charge belong here.
func (h *Hits) takes(c *store.Charge, at algorithms.Instant, fix Fix) bool {
	l := c.Limit
	switch {
	case h.charge.Limit.Algorithm != l.Algorithm || h.charge.Limit.Period != l.Period:
		return false
	case windowed(l.Algorithm):
		return h.at/algorithms.Instant(l.Period) == at/algorithms.Instant(l.Period)
	case c.Hits < 0:
		return h.back && h.at == at && h.fix == fix
	}
	return !h.back
}

// add adds the hits of a charge that takes has accepted.
func (h *Hits) add(c *store.Charge, at algorithms.Instant) {
	if h.charge.Limit != c.Limit { // the slots of the new limit may have another width
		h.slots = [slotsOfAnItem]int64{h.waiting()}
		h.charge.Limit = c.Limit
	}
	slot := int64(0)
	if windowed(c.Limit.Algorithm) {
		h.at = max(h.at, at)
	} else if !h.back {
		newer := int64(at)/h.width() - int64(h.at)/h.width()
		if newer > 0 {
			newer = min(newer, slotsOfAnItem)
			copy(h.slots[newer:], h.slots[:])
			clear(h.slots[:newer])
		}
		h.at, slot = max(h.at, at), max(-newer, 0)
	}
	if slot < slotsOfAnItem {
		h.slots[slot] = max(min(h.slots[slot]+c.Hits, hitsOfASlot), -hitsOfASlot)
	}
}

// Charge implements [Entry].
func (h *Hits) Charge() *store.Charge { return &h.charge }

// At implements [Entry].
func (h *Hits) At() algorithms.Instant { return h.at }

func (h *Hits) waits() bool { return h.waiting() != 0 }

// Returns implements [Entry].
func (h *Hits) Returns() bool { return h.waiting() < 0 }

// waiting returns the hits that wait to be sent.
func (h *Hits) waiting() (hits int64) {
	for _, n := range h.slots {
		hits += n
	}
	return hits
}

// width returns the nanoseconds of a slot.
func (h *Hits) width() int64 {
	return max(int64(lifetime(h.charge.Limit))/slotsOfALife, int64(Granularity))
}

func (h *Hits) now(at Clocks) algorithms.Instant {
	if h.here {
		return at.Here
	}
	return at.Redis
}

func (h *Hits) expire(b *Book, now Clocks) (gone bool) {
	if over(h.charge.Limit, h.at, h.now(now)-algorithms.Instant(Overdue)) {
		b.counts.Expired += size(h.waiting())
		h.slots = [slotsOfAnItem]int64{}
		return h.tidy(b)
	}
	return false
}

// tell returns all hits at the newest instant. A log gets the hits of each slot at the end of the
// slot's time, so that each hit counts long enough.
func (h *Hits) tell() *Telling {
	t := &Telling{Entry: h, Of: h.at, Fix: h.fix}
	if t.Fix.Left == "" {
		t.Fix.Left = noValue
	}
	if h.charge.Limit.Algorithm != algorithms.SlidingWindowLog || h.back {
		t.late(h, h.waiting(), h.at)
	} else {
		first := int64(h.at) / h.width()
		for n := int64(slotsOfALife); n >= 0; n-- {
			t.late(h, h.slots[n], min(algorithms.Instant((first-n+1)*h.width()-1), h.at))
		}
	}
	h.slots = [slotsOfAnItem]int64{}
	h.under += t.positive()
	return t
}

// late adds hits of an instant to a telling.
func (t *Telling) late(h *Hits, hits int64, at algorithms.Instant) {
	for hits != 0 {
		c := h.charge
		c.Hits = max(min(hits, algorithms.MaxHits), -algorithms.MaxHits)
		hits -= c.Hits
		t.Charges, t.Instant = append(t.Charges, c), append(t.Instant, at-at%algorithms.Instant(Granularity))
	}
}

// positive returns the sum of the hits to charge.
func (t *Telling) positive() (hits int64) {
	for i := range t.Charges {
		hits += max(t.Charges[i].Hits, 0)
	}
	return hits
}

func (h *Hits) told(b *Book, t *Telling, o Outcome) {
	r := b.resets[string(h.charge.Key)]
	for i := range t.Charges {
		switch c := &t.Charges[i]; {
		case o == Applied:
		case r != nil:
			r.dropped.lose(c.Hits)
		case o == Unknown && c.Hits < 0 || b.closed:
			b.counts.lose(c.Hits)
		default:
			if o == Unknown {
				b.counts.Unknown += size(c.Hits)
			}
			b.Add(c, t.Instant[i], h.here, h.fix)
		}
	}
	h.under -= t.positive()
	h.tidy(b)
}

// tidy removes hits from the book if none are left, and reports whether none are.
func (h *Hits) tidy(b *Book) (gone bool) {
	if h.under != 0 || h.slots != [slotsOfAnItem]int64{} {
		return false
	}
	key := string(h.charge.Key)
	all := slices.DeleteFunc(b.hits[key], func(other *Hits) bool { return other == h })
	if len(all) == len(b.hits[key]) {
		return true // removed before
	}
	if b.hits[key] = all; len(all) == 0 {
		delete(b.hits, key)
	}
	b.nHits--
	return true
}

// windowed reports whether all hits of a window matter alike.
func windowed(a algorithms.Algorithm) bool {
	return a == algorithms.FixedWindow || a == algorithms.SlidingWindowCounter
}

// lifetime returns how long hits matter: from the start of their window, or without windows from
// their instant. A bucket in debt fills in two times the time of an empty one.
func lifetime(l algorithms.Limit) time.Duration {
	life := uint64(l.Period)
	switch {
	case l.Algorithm == algorithms.SlidingWindowCounter || l.Algorithm == algorithms.TokenBucketInteger:
		life *= 2
	case l.Algorithm == algorithms.TokenBucket && l.Requests > 0:
		high, low := bits.Mul64(life, 2*uint64(l.Capacity()))
		if high >= uint64(l.Requests) {
			return algorithms.MaxPeriod
		}
		life, _ = bits.Div64(high, low, uint64(l.Requests))
	}
	return time.Duration(min(life, uint64(algorithms.MaxPeriod)))
}

// over reports whether hits at an instant do not matter any more.
func over(l algorithms.Limit, at, now algorithms.Instant) bool { return now >= ends(l, at) }

// ends returns the instant from which hits at an instant do not matter.
func ends(l algorithms.Limit, at algorithms.Instant) algorithms.Instant {
	if windowed(l.Algorithm) {
		at -= at % algorithms.Instant(l.Period)
	}
	return at.Add(lifetime(l))
}
