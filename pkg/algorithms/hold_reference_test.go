package algorithms

import (
	"maps"
	"math"
	"slices"
	"time"
)

// message is one begin or end of a holder.
type message struct {
	phase         HoldPhase
	holder        string
	hits          int64
	atMost        time.Duration
	deniedByOther bool // another limit denies the request of a begin
	countRejected bool
}

// heldReference is the second implementation of holders: the table of the semantics, over a list of
// holders, without a summary.
type heldReference struct {
	key     *reference // of a rate limit
	limit   Limit
	holders []heldModel
}

// heldModel is the memory of one holder.
type heldModel struct {
	name           string
	says           string // holds, denied or ended
	hits, at, ends num
	atMost         time.Duration // of a begin
}

func newHeldReference(l Limit) *heldReference {
	r := &heldReference{limit: l}
	if l.Algorithm != Concurrency {
		r.key = newReference(l)
	}
	return r
}

// change changes the limit. Holders stay where the algorithm and the period do.
func (r *heldReference) change(to Limit, now Instant) {
	if r.limit = to; r.key != nil {
		r.key.change(to, now)
	}
}

// find returns the memory of a holder, and its place in the list, -1 without one.
func (r *heldReference) find(name string, now Instant) (h heldModel, at int) {
	r.holders = slices.DeleteFunc(r.holders, func(h heldModel) bool { return h.ends.atMost(of(now)) })
	at = slices.IndexFunc(r.holders, func(h heldModel) bool { return h.name == name })
	if at < 0 {
		return heldModel{name: name, hits: of(0)}, at
	}
	return r.holders[at], at
}

// note puts a new memory in place of the old one. Concurrency remembers only holders that hold.
func (r *heldReference) note(h heldModel) {
	r.holders = slices.DeleteFunc(r.holders, func(o heldModel) bool { return o.name == h.name })
	if h.says == "holds" || r.key != nil && h.says != "" {
		r.holders = append(r.holders, h)
	}
}

func (r *heldReference) do(m message, now Instant) Decision {
	h, _ := r.find(m.holder, now)
	hits := of(min(max(m.hits, 0), MaxHits))
	ends := smaller(of(now).plus(of(m.atMost)), of(int64(math.MaxInt64)))
	fresh := heldModel{name: m.holder, hits: hits, at: of(now), ends: ends, atMost: m.atMost}
	switch m.phase {
	case HoldBegin:
		return r.begin(m, h, fresh, now)
	case HoldPair:
		if h.says != "holds" {
			return r.begin(m, h, fresh, now)
		}
	case HoldBegun:
		if h.says == "holds" || h.says == "ended" || m.hits <= 0 {
			return r.forced(now, of(0))
		}
		fresh.says = "holds"
		d := r.forced(now, hits)
		r.note(fresh)
		if r.key == nil {
			d = r.forced(now, of(0))
		}
		return d
	case HoldCancel:
		if h.says == "holds" {
			r.note(heldModel{name: h.name, says: "denied", hits: of(0), at: of(0), ends: h.ends})
			return r.settled(h, of(0), now)
		}
		return r.forced(now, of(0))
	case HoldEnd:
	}
	switch h.says {
	case "holds":
		r.note(heldModel{name: h.name, says: "ended", hits: of(0), at: of(0), ends: h.ends})
		return r.settled(h, hits, now)
	case "":
		if m.hits >= 0 && r.key != nil {
			r.note(heldModel{name: h.name, says: "ended", hits: of(0), at: of(0), ends: ends})
			return r.forced(now, hits)
		}
	}
	return r.forced(now, of(0))
}

// begin decides a begin of a holder of which the list says h.
func (r *heldReference) begin(m message, h, fresh heldModel, now Instant) Decision {
	if h.says == "holds" {
		return r.forced(now, of(0))
	}
	d := r.decide(fresh, now, m.countRejected, !m.deniedByOther)
	switch {
	case m.hits <= 0 && (m.phase == HoldBegin || r.key == nil):
		return d
	case d.Allowed && !m.deniedByOther:
		fresh.says = "holds"
	default:
		fresh.says, fresh.hits, fresh.at = "denied", of(0), of(0)
	}
	r.note(fresh)
	return d
}

// decide decides on the hits of a holder. In a request that is denied a rate limit charges hits
// only if it counts rejected ones.
func (r *heldReference) decide(fresh heldModel, now Instant, countRejected, admitted bool) Decision {
	if r.key == nil {
		return r.slots(fresh, now)
	}
	hits := fresh.hits.integer.Int64()
	if admitted || countRejected {
		return r.key.take(now, hits, countRejected)
	}
	return copied(r.key).take(now, hits, false)
}

// settled charges the difference between the true cost of a holder and the hits that it held.
func (r *heldReference) settled(h heldModel, cost num, now Instant) Decision {
	switch {
	case r.key == nil: // the list no longer has the holder
	case h.hits.less(cost):
		return r.forced(now, cost.minus(h.hits))
	default:
		r.key.giveBack(Instant(h.at.integer.Int64()), now, uint32(h.hits.minus(cost).whole()))
	}
	return r.forced(now, of(0))
}

// forced charges hits even beyond the limit, and allows them.
func (r *heldReference) forced(now Instant, hits num) (d Decision) {
	if r.key == nil {
		d = r.slots(heldModel{hits: of(0), ends: of(0)}, now)
	} else {
		d = r.key.take(now, hits.integer.Int64(), true)
	}
	d.Allowed, d.RetryAfter = true, 0
	return d
}

// slots decides whether the hits of one more holder fit beside all others. Waits are found by
// walking to the instants at which holders run out.
func (r *heldReference) slots(more heldModel, now Instant) Decision {
	limit := of(r.limit.Requests)
	used := func(at num) num {
		sum := of(0)
		for _, h := range r.holders {
			if at.less(h.ends) {
				sum = sum.plus(h.hits)
			}
		}
		return sum
	}
	was := used(of(now))
	d := Decision{Allowed: was.plus(more.hits).atMost(limit), Remaining: limit.minus(was).whole()}
	all := slices.Clone(r.holders)
	if d.Allowed && of(0).less(more.hits) {
		d.Remaining = limit.minus(was).minus(more.hits).whole()
		all = append(all, more)
	}
	reset, next := of(now), of(int64(math.MaxInt64)) // of the last and of the first to run out
	for _, h := range all {
		reset, next = larger(reset, h.ends), smaller(next, h.ends)
	}
	d.ResetAfter = reset.minus(of(now)).duration()
	switch {
	case d.Allowed:
	case was.is(of(0)): // waiting does not help, and nobody runs out
		d.RetryAfter = more.atMost
	case limit.less(more.hits):
		d.RetryAfter = d.ResetAfter
	default:
		d.RetryAfter = next.minus(of(now)).duration()
	}
	return d
}

// copied returns a copy of a key of the reference.
func copied(r *reference) *reference {
	c := *r
	switch m := r.model.(type) {
	case *bucketModel:
		n := *m
		c.model = &n
	case *integerModel:
		n := *m
		c.model = &n
	case *windowModel:
		n := *m
		c.model = &n
	case *counterModel:
		n := *m
		c.model = &n
	case *logModel:
		c.model = &logModel{last: m.last, entries: slices.Clone(m.entries)}
	}
	return &c
}

// heldKey is a key with holders, as a store keeps it.
type heldKey struct {
	*key
	holds map[string]Hold
}

func newHeldKey(l Limit) *heldKey { return &heldKey{newKey(l), map[string]Hold{}} }

// summary returns the slots of all holders that have not run out.
func (k *heldKey) summary(now Instant) (s Slots) {
	for _, h := range k.holds {
		if h = h.Live(now); h.Status != HoldHeld {
			continue
		}
		if s.Used == 0 {
			s.First, s.Last = h.Until, h.Until
		}
		s = Slots{Used: s.Used + uint64(h.Hits), First: min(s.First, h.Until), Last: max(s.Last, h.Until)}
	}
	return s
}

// sweep forgets holders that have run out, for good also if the next instant is an earlier one.
func (k *heldKey) sweep(now Instant) {
	maps.DeleteFunc(k.holds, func(_ string, h Hold) bool { return h.Live(now) == Hold{} })
}

// do applies a message as a store does.
func (k *heldKey) do(m message, now Instant) Decision {
	k.sweep(now)
	l, h := k.limit, k.holds[m.holder]
	if m.phase == HoldPair && h.Status == HoldHeld {
		m.phase = HoldEnd
	}
	e := h.Effect(m.phase, l, m.hits)
	countRejected := m.countRejected || e.Forced
	var d Decision
	switch settles := !m.phase.Begins(); {
	case l.Algorithm == Concurrency && settles:
		k.holds[m.holder] = h.After(m.phase, l, now, m.hits, m.atMost, true)
		d = k.summary(now).Decide(l, now, 0, m.atMost)
	case l.Algorithm == Concurrency:
		d = k.summary(now).Decide(l, now, uint32(e.Hits), m.atMost)
	case e.Hits < 0:
		k.giveBack(e.Charged, now, uint32(-e.Hits))
		d = k.take(now, 0, false)
	case m.deniedByOther && !settles && !m.countRejected:
		d = k.clone().take(now, e.Hits, false)
	default:
		d = k.take(now, e.Hits, countRejected)
	}
	if e.Forced {
		d.Allowed, d.RetryAfter = true, 0
	}
	if m.phase.Begins() || l.Algorithm != Concurrency {
		k.holds[m.holder] = h.After(m.phase, l, now, m.hits, m.atMost, d.Allowed && !m.deniedByOther)
	}
	return d
}
