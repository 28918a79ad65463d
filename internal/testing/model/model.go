// Package model is the plain model of a store: package algorithms, one transaction after another.
// A test takes the same charges from the store under test and from a model, and compares:
//
//	m := model.Keys{}
//	admitted, err := store.Take(ctx, s, charges, decisions)
//	want := m.Take(charges, now) // want.Admitted, want.Decisions, and want.Found for each Hold.Was
//
// The same goes for Peek, Reset and Held. m[model.NameOf(charge)] shows a state. A Key is a value
// that a model replaces and never changes. So [maps.Clone] of a model is a model of its own.
//
// A model takes any instants. It is not safe for concurrent use. The package is for tests.
package model

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Keys is the keys that are remembered.
type Keys map[Name]Key

// Name says which state a charge goes to.
type Name struct {
	Key       string
	Algorithm algorithms.Algorithm
	Period    time.Duration
}

// NameOf returns the name of a charge's state.
func NameOf(c *store.Charge) Name { return Name{string(c.Key), c.Limit.Algorithm, c.Limit.Period} }

// Answer is the answer to a transaction.
type Answer struct {
	Admitted  bool
	Decisions []algorithms.Decision
	Found     []algorithms.Hold // for each charge the live hold of its holder

	// Phases has the phase of each charge, 0 without a holder. The phase of an end of HoldPair is
	// HoldEnd.
	Phases []algorithms.HoldPhase
}

// Copy returns charges with holds of their own, as a store may change both.
func Copy(charges []store.Charge) []store.Charge {
	all := slices.Clone(charges)
	for i := range all {
		if h := all[i].Hold; h != nil {
			hold := *h
			all[i].Hold = &hold
		}
	}
	return all
}

// PhasesOf returns the phases of charges.
func PhasesOf(charges []store.Charge) []algorithms.HoldPhase {
	all := make([]algorithms.HoldPhase, len(charges))
	for i := range charges {
		if h := charges[i].Hold; h != nil {
			all[i] = h.Phase
		}
	}
	return all
}

// Take applies the charges as package store says. Take does not change them.
func (m Keys) Take(charges []store.Charge, now algorithms.Instant) Answer {
	return m.TakeWith(charges, now, func(_ Name, _ Key, d algorithms.Decision) algorithms.Decision { return d })
}

// TakeWith is Take by a store that may decide otherwise. Before the verdict, decide gets each key
// as its charge leaves it, and the decision of the charge.
func (m Keys) TakeWith(
	charges []store.Charge, now algorithms.Instant, decide func(Name, Key, algorithms.Decision) algorithms.Decision,
) Answer {
	charges = Copy(charges)
	m.runOut(charges, now)
	m.carry(charges, now, false)
	defer m.carry(charges, now, true)
	m.pair(charges, now)
	a := Answer{Phases: PhasesOf(charges), Decisions: make([]algorithms.Decision, len(charges)), Found: make([]algorithms.Hold, len(charges))}
	for i := range charges {
		if c := &charges[i]; settles(c) {
			a.Found[i] = m[NameOf(c)].hold(c, now)
			a.Decisions[i] = m.settle(c, now)
		}
	}
	settled, effects := Keys{}, make([]algorithms.Effect, len(charges))
	for i := range charges {
		name := NameOf(&charges[i])
		settled[name] = m[name]
	}
	for i := range charges {
		c := &charges[i]
		if settles(c) {
			continue
		}
		name := NameOf(c)
		a.Found[i], effects[i] = m[name].hold(c, now), m[name].effect(c, now)
		after, d := m[name].apply(c, effects[i], now)
		a.Decisions[i] = decide(name, after, d)
		m.put(name, after.note(c, now, a.Decisions[i].Allowed)) // as far as the next charges can see
	}
	a.Admitted = admits(charges, a.Decisions)
	for name, was := range settled {
		if k := m[name]; a.Admitted {
			k.holds = was.holds
			was = k
		}
		m.put(name, was)
	}
	if !a.Admitted {
		m.deny(charges, effects, a.Decisions, now)
	}
	for i := range charges {
		if c := &charges[i]; !settles(c) {
			m.put(NameOf(c), m[NameOf(c)].note(c, now, a.Admitted && a.Decisions[i].Allowed))
		}
	}
	return a
}

// runOut gives hits back whose holders have run out. A store may wait with a state until a charge
// that gives back comes to it, if the hits then are the same.
func (m Keys) runOut(charges []store.Charge, now algorithms.Instant) {
	for i := range charges {
		if name := NameOf(&charges[i]); len(m[name].holds) > 0 {
			m.put(name, m[name].runOut(now))
		}
	}
}

// pair says which charges of HoldPair are ends: all of a holder that holds under one of these.
func (m Keys) pair(charges []store.Charge, now algorithms.Instant) {
	var pairs, ends []int
	for i := range charges {
		if h := charges[i].Hold; h != nil && h.Phase == algorithms.HoldPair {
			pairs = append(pairs, i)
		}
	}
	for _, i := range pairs {
		for _, j := range pairs {
			if charges[i].Hold.Holder == charges[j].Hold.Holder && m[NameOf(&charges[j])].hold(&charges[j], now).Status == algorithms.HoldHeld {
				ends = append(ends, i)
			}
		}
	}
	for _, i := range pairs {
		if slices.Contains(ends, i) {
			charges[i].Hold.Phase = algorithms.HoldEnd
		} else {
			charges[i].Hits = int64(charges[i].Hold.Estimate)
		}
	}
}

// settle applies a charge that settles, and decides it.
func (m Keys) settle(c *store.Charge, now algorithms.Instant) algorithms.Decision {
	name := NameOf(c)
	e, k := m[name].effect(c, now), m[name].note(c, now, true)
	if c.Limit.Algorithm == algorithms.Concurrency {
		e.Hits = 0 // the holders have the hits already
	}
	k, d := k.apply(c, e, now)
	m.put(name, k)
	return d
}

// deny applies the charges of a denied request that count rejected hits, and decides the charges
// that were allowed. Nothing is held, so only rate limits can count rejected hits.
func (m Keys) deny(charges []store.Charge, effects []algorithms.Effect, decisions []algorithms.Decision, now algorithms.Instant) {
	for i := range charges {
		c := &charges[i]
		if settles(c) {
			continue
		}
		e := effects[i]
		if !c.CountRejected || c.Limit.Algorithm == algorithms.Concurrency {
			e = algorithms.Effect{Forced: true}
		}
		k, d := m[NameOf(c)].apply(c, e, now)
		m.put(NameOf(c), k)
		if decisions[i].Allowed {
			decisions[i] = d
		}
	}
}

// put makes k the key of a name. A key that says nothing is forgotten.
func (m Keys) put(name Name, k Key) {
	if k.Equal(Key{}) {
		delete(m, name)
	} else {
		m[name] = k
	}
}

// Peek returns the decision that the charge alone would get, and the live hold of its holder.
func (m Keys) Peek(c *store.Charge, now algorithms.Instant) (algorithms.Decision, algorithms.Hold) {
	m.carry([]store.Charge{*c}, now, false)
	alone, peek := Keys{NameOf(c): m[NameOf(c)]}, *c
	peek.Before = nil
	a := alone.Take([]store.Charge{peek}, now)
	return a.Decisions[0], a.Found[0]
}

// Reset forgets the states of the charges' keys and returns their number.
func (m Keys) Reset(charges []store.Charge) (forgotten int) {
	before := len(m)
	for i := range charges {
		delete(m, NameOf(&charges[i]))
	}
	return before - len(m)
}

// Held returns the holders of a charge's state that hold, the next one to run out first.
func (m Keys) Held(c *store.Charge, now algorithms.Instant) []store.Held {
	var all []store.Held
	for _, h := range m[NameOf(c)].holds {
		if live := h.hold.Live(now); live.Status == algorithms.HoldHeld {
			all = append(all, store.Held{Holder: h.holder, Hits: live.Hits, At: live.At, Until: live.Until})
		}
	}
	slices.SortFunc(all, func(x, y store.Held) int {
		return cmp.Or(cmp.Compare(x.Until, y.Until), slices.Compare(x.Holder[:], y.Holder[:]))
	})
	return all
}

// settles reports whether a charge tells the fate of a holder: such charges come first, and have no
// effect on the verdict.
func settles(c *store.Charge) bool { return c.Hold != nil && !c.Hold.Phase.Begins() }

// admits is the verdict, written from the text: any enforcing denial, or all quota rules over.
func admits(charges []store.Charge, decisions []algorithms.Decision) bool {
	quotas := map[int]bool{}
	for i := range charges {
		c, denied := &charges[i], !decisions[i].Allowed
		switch {
		case settles(c):
		case c.Mode == store.Enforce && denied:
			return false
		case c.Mode == store.Quota:
			quotas[c.Rule] = quotas[c.Rule] || denied
		case c.Mode == store.ShadowQuota:
			quotas[c.Rule] = false
		}
	}
	for _, over := range quotas {
		if !over {
			return true
		}
	}
	return len(quotas) == 0
}
