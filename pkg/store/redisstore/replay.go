package redisstore

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// errDisagrees says that the script and package algorithms decided differently, which no test has seen them do.
var errDisagrees = errors.New("the script and this program decide differently")

// finish gives each call its decisions, from what the script returned. It reports the instant of it, and whether it was too
// late, in which case nothing was done and no call has decisions.
func (b *batch) finish(reply string) (us int64, tooLate bool, err error) {
	a := answer{rest: reply}
	tooLate = a.uint(1) == late
	us = int64(a.uint(8))
	if tooLate {
		return us, true, a.check()
	}
	for i := range b.states {
		b.states[i].raw = a.bytes(int(a.uint(1)))
	}
	now := instant(uint64(us))
	for i := range b.all {
		b.all[i].decide(b, &a, now)
	}
	return us, false, a.check()
}

// decide plays the transactions of a group again, on the states as the script found them.
func (g *group) decide(b *batch, a *answer, now algorithms.Instant) {
	passed, admitted := int(a.uint(4)), 0
	for c := g.first; c != nil; c = c.next {
		c.now = now
		switch {
		case c.kind == correct:
			c.admitted = true
			for i := range c.charges {
				if c.charges[i].Limit.Algorithm == algorithms.SlidingWindowLog {
					c.decisions[i], _ = a.decision()
				}
			}
		case len(c.charges) == 1:
			c.err = b.single(c, a)
		default:
			c.err = b.several(c, a, passed == 1)
		}
		if c.admitted {
			admitted++
		}
	}
	if g.first.kind == correct || admitted == passed {
		return
	}
	for c := g.first; c != nil; c = c.next {
		if c.err == nil {
			c.err = errDisagrees
		}
	}
}

// state returns what is kept of the key of charge i of a call.
func (b *batch) state(c *call, i int) (*kept, error) {
	p := &b.states[c.places[i]]
	if !p.parsed && p.raw != "" {
		var err error
		read := parse
		if c.counters[i] {
			read = parseCounter
		}
		if p.kept, err = read(p.raw, c.charges[i].Limit); err != nil {
			return nil, fmt.Errorf("key %q: %w", b.keys[c.places[i]], err)
		}
	}
	p.parsed = true
	return &p.kept, nil
}

// take takes hits of charge i from the state of its key.
func (c *call) take(i int, k *kept, hits int64) algorithms.Decision {
	l, now := c.charges[i].Limit, c.now
	if c.counters[i] {
		now = k.enter(l, c.at, now)
	}
	return k.take(l, now, hits, c.charges[i].CountRejected)
}

func (b *batch) single(c *call, a *answer) error {
	charge, d := &c.charges[0], &c.decisions[0]
	if charge.Limit.Algorithm == algorithms.SlidingWindowLog {
		c.added = append(c.added[:0], added{})
		*d, c.added[0] = a.decision()
		c.before, c.after = append(c.before[:0], kept{}), append(c.after[:0], kept{})
	} else {
		k, err := b.state(c, 0)
		if err != nil {
			return err
		}
		was := *k
		*d = c.take(0, k, charge.Hits)
		c.before = append(c.before[:0], was)
		if c.kind == peek || c.kind == reserve && charge.Hits < 0 {
			*k = was
		}
		c.after = append(c.after[:0], *k)
	}
	c.admitted = d.Allowed || charge.Mode.Shadows()
	return nil
}

// several plays a transaction of several charges again: as package store says, or up to the verdict when that lies with the
// caller. Decisions of sliding_window_log are those of the script.
func (b *batch) several(c *call, a *answer, admitted bool) error {
	logs := false
	c.before = c.before[:0]
	c.added = append(c.added[:0], make([]added, len(c.charges))...)
	for i := range c.charges {
		if c.charges[i].Limit.Algorithm == algorithms.SlidingWindowLog {
			logs = true
			c.decisions[i], c.added[i] = a.decision()
			c.before = append(c.before, kept{})
			continue
		}
		k, err := b.state(c, i)
		if err != nil {
			return err
		}
		c.before = append(c.before, *k)
		c.decisions[i] = c.take(i, k, c.charges[i].Hits)
	}
	c.admitted = admitted
	if c.kind == reserve {
		b.hold(c)
	} else {
		if !logs {
			c.admitted = store.Admitted(c.charges, c.decisions)
		}
		if !c.admitted {
			b.undo(c)
			c.second(func(i int) *kept { return &b.states[c.places[i]].kept })
		}
	}
	c.after = c.after[:0]
	for _, place := range c.places {
		c.after = append(c.after, b.states[place].kept)
	}
	return nil
}

// undo puts the states of a call's keys back.
func (b *batch) undo(c *call) {
	for i, place := range slices.Backward(c.places) { // the first charge of a key has its state as it was
		b.states[place].kept = c.before[i]
	}
}

// hold puts those states back that the script held back: of keys that would be given back more than taken.
func (b *batch) hold(c *call) {
	for i, place := range slices.Backward(c.places) {
		if c.applied(place) < 0 {
			b.states[place].kept = c.before[i]
		}
	}
}

// second is the second half of a denied transaction, on the states of the keys before it: what counts rejected hits is
// charged, and the rest is looked at. state gives that of charge i's key. Those of sliding_window_log are the script's.
func (c *call) second(state func(i int) *kept) {
	for i := range c.charges {
		charge := &c.charges[i]
		if charge.Limit.Algorithm == algorithms.SlidingWindowLog {
			continue
		}
		hits := charge.Hits
		if !charge.CountRejected {
			hits = 0
		}
		c.keep(i, c.take(i, state(i), hits))
	}
}

// keep makes the decision of charge i of a denied transaction that of its second half, unless it was denied in the first.
func (c *call) keep(i int, second algorithms.Decision) {
	if !c.allowed(i) {
		return
	}
	c.decisions[i] = second
	if !c.counts(i) {
		c.decisions[i].Allowed, c.decisions[i].RetryAfter = true, 0
	}
}
