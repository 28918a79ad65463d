package redisstore

import (
	"context"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// part is the charges of a request that lie in one slot.
type part struct {
	call  *call
	index []int // of the charges in the request
}

type split []part

// takeSlots applies a transaction whose keys lie in several slots of a cluster. Each part is reserved at once as if the
// request were admitted, all parts together in one round trip; what would give a key back more than it takes is left out. Then
// the verdict is known, and a second round trip sets right what is not as it should be: nothing, mostly, when the request is
// admitted; what a denied one has reserved is given back. In between a key has less room than it should, never more.
//
// A process that ends between the two leaves the reserved hits taken, as if they had been used.
func (s *Store) takeSlots(
	ctx context.Context, charges []store.Charge, decisions []algorithms.Decision, atMost time.Duration,
) (bool, error) {
	until := time.Now().Add(atMost)
	parts := s.parts(charges)
	var generation uint64
	if s.denials != nil {
		generation = s.denials.generation.Load()
	}
	calls := make([]*call, len(parts))
	for i := range parts {
		calls[i] = parts[i].call
	}
	if err := s.doAll(ctx, calls, atMost); err != nil {
		s.giveBack(parts)
		return false, err
	}
	for i := range parts {
		for n, at := range parts[i].index {
			decisions[at] = parts[i].call.decisions[n]
		}
	}
	passed, v := store.Admitted(charges, decisions), admitted
	if !passed {
		v = denied
	}
	fixes := make([]*call, len(parts)) // nil where nothing is to be set right
	calls = calls[:0]
	for i := range parts {
		if fixes[i] = s.settle(parts[i].call, v); fixes[i] != nil {
			calls = append(calls, fixes[i])
		}
	}
	if !passed {
		parts.left(decisions)
	}
	if len(calls) > 0 {
		if err := s.doAll(ctx, calls, time.Until(until)); err != nil {
			s.unsettled(calls)
			return passed, nil
		}
	}
	if !passed {
		parts.logsLeft(fixes, decisions)
	}
	for i := range parts {
		c := parts[i].call
		if s.denials != nil {
			for n, at := range parts[i].index {
				c.decisions[n] = decisions[at]
			}
			c.generation, c.admitted = generation, passed
			s.denials.learn(c)
		}
		s.calls.Put(c)
	}
	return passed, nil
}

// parts returns the parts of a request.
func (s *Store) parts(charges []store.Charge) split {
	var parts split
	bySlot := make(map[uint16]int)
	for i := range charges {
		slot := slotOf(s.name(&charges[i]))
		n, known := bySlot[slot]
		if !known {
			n = len(parts)
			bySlot[slot] = n
			c, _ := s.calls.Get().(*call)
			c.set(reserve, slot, nil)
			parts = append(parts, part{call: c})
		}
		parts[n].call.add(&charges[i])
		parts[n].index = append(parts[n].index, i)
	}
	for i := range parts {
		parts[i].call.own()
	}
	return parts
}

// verdict is what becomes of a request of several parts.
type verdict uint8

const (
	admitted verdict = iota
	denied           // what counts rejected hits counts
	undone           // it is decided elsewhere
)

// settle returns the call that makes of a part's reservation what the verdict says; nil when that is what it is.
func (s *Store) settle(c *call, v verdict) *call {
	fix, _ := s.calls.Get().(*call)
	fix.set(correct, c.slot, nil)
	seen, wrong := make(map[int]bool, len(c.places)), false
	for i := range c.charges {
		charge, place := c.charges[i], c.places[i]
		counts := charge.CountRejected && v != undone
		if !counts && !(v == admitted && c.decisions[i].Allowed) {
			charge.Hits = 0
		}
		charge.CountRejected = true
		fix.add(&charge)
		var f *correction
		if !seen[place] {
			seen[place] = true
			if f = c.correction(i, v); f != nil {
				wrong = true
			}
		}
		fix.corrections = append(fix.corrections, f)
	}
	if !wrong {
		s.calls.Put(fix)
		return nil
	}
	fix.own()
	return fix
}

// correction returns what is to be set right of the key of charge i, the first of that key; nil when nothing is.
func (c *call) correction(i int, v verdict) *correction {
	charge, place := &c.charges[i], c.places[i]
	is, should := max(c.applied(place), 0), c.applied(place)
	switch v {
	case denied:
		should = c.counted(place)
	case undone:
		should = 0
	case admitted:
	}
	if charge.Limit.Algorithm == algorithms.SlidingWindowLog {
		in := c.added[i]
		if is == should && is == in.hits && !c.refunds(place) && (v == admitted || !c.allows(place)) {
			return nil
		}
		return &correction{at: in.at, difference: -in.hits}
	}
	f := &correction{after: c.after[i].raw(), before: c.before[i].raw()}
	untouched := f.after == f.before && c.keepsLimit(i)
	if is == should && (v == admitted || v == denied && c.countsAll(place) || untouched) {
		return nil
	}
	last, _, _ := c.before[i].state.Parts()
	if c.before[i].state.Unused() {
		last = c.now
	}
	at := max(c.now, last) // an instant earlier than that of the last charge counts as that
	f.at = int64(at) / int64(Granularity)
	f.difference = should - is
	f.deficits = c.before[i].deficitsAt(charge.Limit, at)
	return f
}

// allows reports whether a charge of a key was allowed.
func (c *call) allows(place int) bool {
	for i := range c.charges {
		if c.places[i] == place && c.decisions[i].Allowed {
			return true
		}
	}
	return false
}

// refunds reports whether a charge gives hits back to a key.
func (c *call) refunds(place int) bool {
	for i := range c.charges {
		if c.places[i] == place && c.charges[i].Hits < 0 {
			return true
		}
	}
	return false
}

// countsAll reports whether all charges of a key count though the request is denied.
func (c *call) countsAll(place int) bool {
	for i := range c.charges {
		if c.places[i] == place && !c.charges[i].CountRejected {
			return false
		}
	}
	return true
}

// keepsLimit reports whether the charges of the key of charge i, the first of it, have the limit of its last charge: then those
// that take nothing leave its state as it is.
func (c *call) keepsLimit(i int) bool {
	was := &c.before[i].limit
	for n := range c.charges {
		l := &c.charges[n].Limit
		if c.places[n] == c.places[i] && (l.Requests != was.Requests || l.Capacity() != was.Capacity()) {
			return false
		}
	}
	return true
}

// counted returns the hits of a key's charges that count though the request is denied.
func (c *call) counted(place int) int64 {
	var hits int64
	for i := range c.charges {
		if c.places[i] == place && c.charges[i].CountRejected {
			hits += c.charges[i].Hits
		}
	}
	return hits
}

// left gives the charges that a denied request would have been allowed the decisions of the keys as they are left. Those of
// sliding_window_log are not known yet.
func (p split) left(decisions []algorithms.Decision) {
	for i := range p {
		c := p[i].call
		states := make(map[int]*kept, len(c.places))
		for n := range c.charges {
			if states[c.places[n]] == nil {
				was := c.before[n]
				states[c.places[n]] = &was
			}
		}
		for n, at := range p[i].index {
			charge := &c.charges[n]
			if charge.Limit.Algorithm == algorithms.SlidingWindowLog {
				continue
			}
			hits := charge.Hits
			if !charge.CountRejected {
				hits = 0
			}
			d := states[c.places[n]].take(charge.Limit, c.now, hits, charge.CountRejected)
			keep(&decisions[at], d, charge.CountRejected)
		}
		c.after = c.after[:0]
		for _, place := range c.places {
			c.after = append(c.after, *states[place])
		}
	}
}

// logsLeft is left for sliding_window_log, from what set the parts right.
func (p split) logsLeft(fixes []*call, decisions []algorithms.Decision) {
	for i := range p {
		if fixes[i] == nil {
			continue
		}
		for n, at := range p[i].index {
			if charge := &p[i].call.charges[n]; charge.Limit.Algorithm == algorithms.SlidingWindowLog {
				keep(&decisions[at], fixes[i].decisions[n], charge.CountRejected)
			}
		}
	}
}

// keep makes the decision of a charge of a denied request that of its second evaluation, in which it was charged or looked at:
// unless it was denied in the first.
func keep(first *algorithms.Decision, second algorithms.Decision, charged bool) {
	if !first.Allowed {
		return
	}
	*first = second
	if !charged {
		first.Allowed, first.RetryAfter = true, 0
	}
}

// giveBack gives back, later, what those parts have reserved that were reserved, when others could not be. A call that its
// caller has left is not looked at: what it has done, if anything, stays as if it had been used.
func (s *Store) giveBack(parts split) {
	for i := range parts {
		c := parts[i].call
		if !c.ended || c.err != nil {
			if !c.unsent() {
				s.counts.lostHits.Add(c.size())
			}
			continue
		}
		if fix := s.settle(c, undone); fix != nil {
			s.later(fix)
		}
	}
}

// unsettled has those calls made later that were not made now, when the verdict is known though Redis did not set right in
// time what it should.
func (s *Store) unsettled(fixes []*call) {
	for _, c := range fixes {
		switch {
		case c.kind == peek || c.ended && c.err == nil:
		case c.unsent():
			s.later(c.again())
		default: // it may have been made
			s.counts.lostHits.Add(c.size())
		}
	}
}
