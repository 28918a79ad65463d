package redisstore

import (
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// verdict is the outcome of a request of several parts.
type verdict uint8

const (
	isAdmitted verdict = iota
	isDenied           // charges with CountRejected count
	isUndone           // the request is decided elsewhere, and no charge counts but the begins of holders, which are repaired later
)

// settle plays the charges of a reservation again as the verdict demands. settle returns the call
// that changes Redis accordingly, or nil if Redis needs no change. c then has the states that the
// verdict leaves and, if the request is denied, the decisions. Decisions about lists come with the
// returned call, see look.
func (s *Store) settle(c *call, v verdict) *call {
	fix, _ := s.calls.Get().(*call)
	fix.set(correct, c.location, c.at, nil)
	reserved := slices.Clone(c.after)
	c.findNew()
	switch v {
	case isAdmitted:
		c.again(func(int) bool { return true }, func(int, algorithms.Decision) {})
	case isDenied:
		c.again(c.counts, c.keep)
	case isUndone:
		c.again(c.begun, func(int, algorithms.Decision) {})
	}
	due := func(i int) bool {
		return v == isAdmitted && c.allowed(i) || v != isUndone && c.counts(i) || v == isUndone && c.begun(i)
	}
	c.release(fix, v) // before the corrections, which ask for the hits that came back before
	for i := range c.charges {
		if c.charges[i].Limit.Algorithm == algorithms.Concurrency {
			continue
		}
		if !c.charges[i].Limit.Algorithm.HasState() {
			c.settleList(fix, i, v, due)
			continue
		}
		f := &correction{left: reserved[i].value(), target: c.after[i].value()}
		if c.first(i) == i && f.left != f.target {
			f.at, f.was = c.before[i].seenAt(c.charges[i].Limit, c.now)
			fix.correct(c.charges[i], c.sum(i, due)-max(c.applied(i), 0), f)
		}
	}
	if len(fix.charges) == 0 {
		s.calls.Put(fix)
		return nil
	}
	fix.own()
	c.nameReleases(fix)
	return fix
}

// settleList adds charge i of a list to a fix, and before the first charge of its key the removal
// of the reserved hits. The script charges the list at the instant of the fix, as this process does
// not know the list.
func (c *call) settleList(fix *call, i int, v verdict, due func(i int) bool) {
	in := c.added[i]
	if c.sum(i, due) == in.hits && c.applied(i) == in.hits && !c.any(i, c.refunds) && (v != isDenied || !c.any(i, c.allowed)) {
		return
	}
	charge := c.charges[i]
	if c.first(i) == i {
		fix.correct(charge, -in.hits, &correction{at: in.at})
	}
	if !due(i) {
		charge.Hits = 0
	}
	charge.CountRejected = true
	charge.Rule = i // look finds the charge by this number
	charge.Hold = withoutHolder(charge.Hold)
	fix.add(&charge)
	fix.corrections = append(fix.corrections, nil)
}

// look takes the decisions about lists from the fix of a denied reservation, unless the fix is nil.
func (c *call) look(fix *call) {
	if fix == nil {
		return
	}
	for n, f := range fix.corrections {
		if i := fix.charges[n].Rule; f == nil && !fix.ends(n) {
			c.keep(i, fix.decisions[n])
		}
	}
}

// correct adds a correction of a charge's key: hits to charge, or to give back if negative.
func (c *call) correct(charge store.Charge, hits int64, f *correction) {
	charge.Hits, charge.CountRejected, charge.Hold = hits, true, withoutHolder(charge.Hold)
	c.add(&charge)
	c.corrections = append(c.corrections, f)
}

// again plays the charges once more on the states before: a charge that counts with its hits, any
// other with 0. decided gets the decisions. again leaves out lists.
func (c *call) again(counts func(i int) bool, decided func(i int, d algorithms.Decision)) {
	c.after = append(c.after[:0], c.before...)
	for i := range c.charges {
		hits := c.charges[i].Hits
		if !counts(i) {
			hits = 0
		}
		if c.charges[i].Limit.Algorithm.HasState() && !c.ends(i) {
			decided(i, c.take(i, &c.after[c.first(i)], hits))
		}
	}
	for i := range c.after {
		c.after[i] = c.after[c.first(i)]
	}
}

// keep sets the decision of charge i of a denied transaction, unless the charge was denied before.
func (c *call) keep(i int, d algorithms.Decision) {
	if !c.allowed(i) || c.ends(i) {
		return
	}
	if !c.counts(i) {
		d.Allowed, d.RetryAfter = true, 0
	}
	c.decisions[i] = d
}

// first returns the first charge of the key of charge i.
func (c *call) first(i int) int { return slices.Index(c.places, c.places[i]) }

// any reports whether a condition holds for a charge of the key of charge i.
func (c *call) any(i int, holds func(n int) bool) bool {
	for n, place := range c.places {
		if place == c.places[i] && holds(n) {
			return true
		}
	}
	return false
}

// sum returns the hits of the charges of the key of charge i for which a condition holds.
func (c *call) sum(i int, holds func(n int) bool) (hits int64) {
	for n, place := range c.places {
		if place == c.places[i] && holds(n) {
			hits += c.charges[n].Hits
		}
	}
	return hits
}

func (c *call) allowed(i int) bool { return c.decisions[i].Allowed }
func (c *call) counts(i int) bool  { return c.charges[i].CountRejected }
func (c *call) refunds(i int) bool { return c.charges[i].Hits < 0 }

// applied returns the hits that a transaction takes from the key of charge i if the request is
// admitted. A reservation with a negative sum waits for the verdict.
func (c *call) applied(i int) int64 {
	return c.sum(i, func(n int) bool { return c.allowed(n) || c.counts(n) })
}
