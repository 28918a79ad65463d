package limiter

import (
	"cmp"
	"iter"
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// Group is a group of quotas that a request asks.
type Group struct {
	Name string // see descriptors.Rule.Group
	Room bool   // each limit of the group has room for the hits; a hit of 0 needs room for one

	rank int
}

// WithRoom returns the names of the groups with room, in the rules' order. A request that is over
// limit has no such group. The request is charged under the first one.
func (v *Verdict) WithRoom() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range v.Groups {
			if g := &v.Groups[i]; g.Room && !v.OverLimit && !yield(g.Name) {
				return
			}
		}
	}
}

// choice is the choice of the group that a request is charged under: the first one with room. The
// first transaction of a request charges the first group, and asks the others. If a limit of the
// first group is spent, the next transaction gives back the hits of its other limits. That
// transaction charges the next group with room. After the last group, a transaction gives back the
// hits of the limits outside of all groups, as for any denied request.
//
// The last transaction of a request frees the slots of estimates that were cut, see frees.
//
// A charge of a group has no part in the verdict of its transaction: it is in shadow mode. Only the
// charges of a lone group deny the request at once.
type choice struct {
	tried     int // index of the group that the last transaction has charged
	begun     bool
	admitted  bool           // by the first transaction
	freed     bool           // the last transaction has freed slots, see frees
	late      bool           // and failed
	told      bool           // offenses were told, if there were any
	telling   bool           // the last transaction has told offenses
	charges   []store.Charge // of the next transaction
	decisions []algorithms.Decision
	index     []int        // of charges, in Verdict.charges
	holds     []store.Hold // of charges that free slots
}

// enter adds the group of a rule to the groups of the request. The end of a holder asks no group.
func (v *Verdict) enter(rule *descriptors.Rule, d *Descriptor) {
	if phase, _ := rule.Holder(d.Entries); phase == algorithms.HoldEnd {
		return
	}
	v.choice.tried, v.choice.begun = 0, false
	at, found := v.group(rule.Group.Rank)
	if !found {
		v.Groups = slices.Insert(v.Groups, at, Group{Name: rule.Group.Name, Room: true, rank: rule.Group.Rank})
	}
}

// group returns the index of a group, by its rank.
func (v *Verdict) group(rank int) (at int, found bool) {
	return slices.BinarySearchFunc(v.Groups, rank, func(g Group, rank int) int { return cmp.Compare(g.rank, rank) })
}

// join makes the descriptor one of its group, if it has one.
func (c *charging) join(s *DescriptorStatus) {
	if s.Rule.Group.Rank == 0 || c.holder.phase == algorithms.HoldEnd {
		return
	}
	at, _ := c.verdict.group(s.Rule.Group.Rank)
	s.Group = at + 1
	c.mode, c.asks = store.Enforce, at > 0
	if len(c.verdict.Groups) > 1 {
		c.mode = store.Shadow
	}
}

// inGroup makes a charge one of a group. Of several groups, a spent one sends the request on:
// its denied hits do not count.
func (c *charging) inGroup(charge *store.Charge) {
	charge.Exact = true
	if len(c.verdict.Groups) > 1 {
		charge.CountRejected = false
	}
	if c.asks {
		charge.Hits, charge.Hold = 0, nil
	}
}

// again reports whether the request takes one more transaction, which takeFurther or takeAllFurther
// takes. admitted is the answer to the first one.
func (v *Verdict) again(admitted bool) bool {
	if v.escalates && v.offends(admitted) {
		return true
	}
	if len(v.Groups) == 0 && len(v.parts.holds) == 0 {
		return false
	}
	v.choice.admitted = admitted
	return len(v.Groups) > 0 && admitted && !v.choice.freed && v.choose() || v.frees()
}

func (v *Verdict) choose() bool {
	c := &v.choice
	if c.begun {
		v.learnChoice()
	}
	c.begun = true
	v.look()
	for c.tried < len(v.Groups) && !v.Groups[c.tried].Room {
		c.charges, c.index = c.charges[:0], c.index[:0]
		v.undo(c.tried + 1)
		if c.tried++; c.tried == len(v.Groups) {
			v.undo(0)
		} else if v.Groups[c.tried].Room {
			v.try(c.tried + 1)
		}
		if len(c.charges) > 0 {
			c.room()
			return true
		}
	}
	return false
}

// learnChoice takes over the decisions of the last transaction. A charge that was undone keeps its
// decision, with the rest as it is now.
func (v *Verdict) learnChoice() {
	c := &v.choice
	for n, i := range c.index {
		d := c.decisions[n]
		if of := &v.decisions[i]; c.charges[n].Hits < 0 || settles(&c.charges[n]) {
			of.Remaining, of.ResetAfter = d.Remaining, d.ResetAfter
		} else {
			*of = d
		}
	}
}

// settles reports whether a charge ends a holder.
func settles(c *store.Charge) bool { return c.Hold != nil && c.Hold.Phase == algorithms.HoldEnd }

// look finds the groups that have room.
func (v *Verdict) look() {
	for g := range v.Groups {
		v.Groups[g].Room = true
	}
	for i := range v.charges {
		if s := &v.Statuses[v.charges[i].Rule]; s.Group > 0 && !v.fits(i) {
			v.Groups[s.Group-1].Room = false
		}
	}
}

// fits reports whether the limit of charge i has room. A charge that asks has asked about 0 hits.
func (v *Verdict) fits(i int) bool {
	c, d, hits := &v.charges[i], &v.decisions[i], v.terms[i].hits
	switch {
	case v.terms[i].learns():
		return true
	case !d.Allowed:
		return false
	case hits < 0, hits > 0 && c.Hits == hits:
		return true
	}
	return int64(d.Remaining) >= max(hits, 1)
}

// try adds the charges of a group to the next transaction.
func (v *Verdict) try(group int) {
	for i := range v.charges {
		c, t := &v.charges[i], &v.terms[i]
		if v.Statuses[c.Rule].Group != group || t.hits == 0 {
			continue
		}
		if c.Hits = t.hits; t.hold > 0 {
			v.hold(i)
		}
		v.choice.add(i, *c)
	}
}

// undo adds charges to the next transaction that give back the hits of a group. Group 0 is all
// limits outside of groups. Hits that count although they are denied stay.
func (v *Verdict) undo(group int) {
	for i := range v.charges {
		c := &v.charges[i]
		if v.Statuses[c.Rule].Group != group || c.Hits <= 0 && !c.IsPair() || // a pair holds also 0 hits
			!v.decisions[i].Allowed || c.CountRejected {
			continue
		}
		back := *c
		back.Mode, back.Hits, back.Left = store.Shadow, -c.Hits, nil
		if c.Hold != nil {
			if !c.Hold.Phase.Begins() || c.Hold.Was.Status == algorithms.HoldHeld {
				continue // an end stays, and a repeat has taken nothing
			}
			end := *c.Hold
			end.Phase, end.Was = algorithms.HoldEnd, algorithms.Hold{}
			back.Hits, back.Hold = 0, &end
		}
		v.choice.add(i, back)
	}
}

// room makes room for the decisions of the next transaction.
func (c *choice) room() {
	c.decisions = slices.Grow(c.decisions[:0], len(c.charges))[:len(c.charges)]
}

func (c *choice) add(i int, charge store.Charge) {
	c.charges, c.index = append(c.charges, charge), append(c.index, i)
}

// judge finishes the choice: it says which group is charged, and makes the decisions say which
// limits have no room.
func (v *Verdict) judge(admitted bool) {
	c := &v.choice
	if !admitted {
		v.look()
	}
	spent := c.tried == len(v.Groups)
	v.OverLimit = v.OverLimit || spent
	for i := range v.charges {
		s := &v.Statuses[v.charges[i].Rule]
		if s.Group == 0 {
			continue
		}
		if d := &v.decisions[i]; d.Allowed && !v.fits(i) {
			d.Allowed, d.RetryAfter = false, cmp.Or(d.ResetAfter, v.charges[i].Limit.Period)
		}
		if s.Group-1 != c.tried {
			s.Hold = nil
			if v.Groups[s.Group-1].Room {
				s.Hits = 0 // the request is charged elsewhere
			}
		}
	}
}

// takeAllFurther takes the further transactions of the questions in q.more.
func (l *Limiter) takeAllFurther(q *Questions, decided func(indexes []int)) {
	for len(q.more) > 0 {
		for _, i := range q.more {
			c := &q.All[i].Verdict.choice
			q.rest.Pass(i, store.Transaction{Ctx: c.within(q.All[i].Ctx), Charges: c.charges, Decisions: c.decisions})
		}
		q.more = q.more[:0]
		q.rest.Take(l.store, func(i, _ int, answer *store.Transaction) bool {
			one := &q.All[i]
			v := one.Verdict
			if answer.Err == nil && v.again(v.choice.admitted) || answer.Err != nil && v.late() {
				q.more = append(q.more, i)
				return false
			}
			one.Err = l.finish(one.Request, v, v.choice.admitted, v.further(answer.Err))
			return true
		}, decided)
	}
}
