package redisstore

import "github.com/weirproxy/weir/pkg/algorithms"

// verdict is what becomes of a request of several parts.
type verdict uint8

const (
	isAdmitted verdict = iota
	isDenied           // what counts rejected hits counts
	isUndone           // it is decided elsewhere
)

// settle returns the call that makes of a part's reservation what the verdict says; nil when that is what it is.
func (s *Store) settle(c *call, v verdict) *call {
	fix, _ := s.calls.Get().(*call)
	fix.set(correct, c.location, c.at, nil)
	seen, wrong := make(map[int]bool, len(c.places)), false
	for i := range c.charges {
		charge, place := c.charges[i], c.places[i]
		if counts := c.counts(i) && v != isUndone; !counts && !(c.allowed(i) && v == isAdmitted) {
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
	case isDenied:
		should = c.sum(place, c.counts)
	case isUndone:
		should = 0
	case isAdmitted:
	}
	if charge.Limit.Algorithm == algorithms.SlidingWindowLog {
		in := c.added[i]
		if is == should && is == in.hits && !c.any(place, c.refunds) && (v == isAdmitted || !c.any(place, c.allowed)) {
			return nil
		}
		return &correction{at: in.at, difference: -in.hits}
	}
	f := &correction{after: c.after[i].raw(), before: c.before[i].raw()}
	untouched := f.after == f.before && c.keepsLimit(i)
	countsAll := !c.any(place, func(n int) bool { return !c.counts(n) })
	if is == should && (v == isAdmitted || v == isDenied && countsAll || untouched) {
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

// any reports whether one of a key's charges is so.
func (c *call) any(place int, so func(i int) bool) bool {
	for i := range c.charges {
		if c.places[i] == place && so(i) {
			return true
		}
	}
	return false
}

// sum returns the hits of those of a key's charges that are so.
func (c *call) sum(place int, so func(i int) bool) int64 {
	var hits int64
	for i := range c.charges {
		if c.places[i] == place && so(i) {
			hits += c.charges[i].Hits
		}
	}
	return hits
}

func (c *call) allowed(i int) bool { return c.decisions[i].Allowed }
func (c *call) counts(i int) bool  { return c.charges[i].CountRejected }
func (c *call) refunds(i int) bool { return c.charges[i].Hits < 0 }

// applied returns the hits that a reservation has taken from a key, or would have: less than 0 when it gives back more than
// it takes, which waits for the verdict.
func (c *call) applied(place int) int64 {
	return c.sum(place, func(i int) bool { return c.allowed(i) || c.counts(i) })
}

// keepsLimit reports whether the charges of the key of charge i, the first of it, have the limit of its last charge: then those
// that take nothing leave its state as it is.
func (c *call) keepsLimit(i int) bool {
	was := &c.before[i].limit
	return !c.any(c.places[i], func(n int) bool {
		l := &c.charges[n].Limit
		return l.Requests != was.Requests || l.Capacity() != was.Capacity()
	})
}

// left makes the decisions and states of a denied reservation those of the keys as they are left. The decisions of
// sliding_window_log come from fix, which set them right; nil where that is not known.
func (c *call) left(fix *call) {
	states := make(map[int]*kept, len(c.places))
	for i, place := range c.places {
		if states[place] == nil {
			was := c.before[i]
			states[place] = &was
		}
	}
	c.second(func(i int) *kept { return states[c.places[i]] })
	c.after = c.after[:0]
	for i, place := range c.places {
		c.after = append(c.after, *states[place])
		if fix != nil && c.charges[i].Limit.Algorithm == algorithms.SlidingWindowLog {
			c.keep(i, fix.decisions[i])
		}
	}
}
