package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// takeSeveral applies a transaction whose keys lie in several slots of a cluster, or on several
// servers. The first round trip reserves each part as if the request were admitted, without net
// refunds. Then the verdict is known. A second round trip corrects the parts: mostly nothing for an
// admitted request, while a denied request gives its reservations back. In between, a key has less
// room than it should, never more.
//
// A process that ends between the two round trips leaves the reserved hits taken, as if they had
// been used.
func (s *Store) takeSeveral(
	ctx context.Context, until time.Time, at algorithms.Instant, charges []store.Charge, decisions []algorithms.Decision,
) (bool, error) {
	if err := s.gate.pass(ctx, until, aRequest, charges); err != nil {
		return false, s.unsent(err, charges)
	}
	defer s.gate.leave(aRequest, charges)
	resolved, err := s.resolvePairs(ctx, until, at, charges)
	if err != nil {
		return false, s.unsent(err, charges)
	}
	parts := s.parts(at, resolved)
	if err := s.do(ctx, until, parts...); err != nil {
		s.giveBack(parts)
		return false, &unanswered{err, parts}
	}
	collect(parts, decisions)
	admitted, v := store.Admitted(resolved, decisions), isAdmitted
	if !admitted {
		v = isDenied
	}
	changes := make([]*transaction, len(parts)) // nil where Redis needs no change
	var needed []*transaction
	for i, p := range parts {
		if changes[i] = s.settle(p, v); changes[i] != nil {
			needed = append(needed, changes[i])
		}
	}
	if err := s.do(ctx, until, needed...); err != nil {
		for i, p := range parts {
			s.settleLater(p, changes[i])
		}
		clear(changes)
	}
	for i, p := range parts {
		if p.admitted = admitted; !admitted {
			p.look(changes[i])
		}
	}
	collect(parts, decisions)
	for _, p := range parts {
		for n, i := range p.index {
			p.tell(n, &charges[i], &decisions[i])
		}
		s.pool.Put(p)
	}
	return admitted, nil
}

// resolvePairs finds the ends among the charges of HoldPair: a part may know a holder that another
// one has lost. A transaction with such charges takes one more round trip, and has charges and
// holds of its own.
func (s *Store) resolvePairs(
	ctx context.Context, until time.Time, at algorithms.Instant, charges []store.Charge,
) ([]store.Charge, error) {
	var peeks []*transaction
	holds := make(map[int]*transaction)
	for i := range charges {
		if charges[i].IsPair() {
			holds[i] = s.transaction(peek, s.locate(&charges[i], at), at, charges[i:i+1])
			peeks = append(peeks, holds[i])
		}
	}
	if len(peeks) == 0 {
		return charges, nil
	}
	if err := s.do(ctx, until, peeks...); err != nil {
		return nil, err
	}
	own, pairs := slices.Clone(charges), new(store.Pairs)
	for i := range holds {
		h := *charges[i].Hold
		own[i].Hold = &h
	}
	pairs.End(own, func(i int) bool { return holds[i].ends(0) })
	for _, t := range peeks {
		s.pool.Put(t)
	}
	return own, nil
}

func (s *Store) parts(at algorithms.Instant, charges []store.Charge) []*transaction {
	var parts []*transaction
	for i := range charges {
		where := s.locate(&charges[i], at)
		n := slices.IndexFunc(parts, func(p *transaction) bool { return p.where == where })
		if n < 0 {
			n = len(parts)
			parts = append(parts, s.transaction(reserve, where, at, nil))
		}
		parts[n].add(&charges[i])
		parts[n].index = append(parts[n].index, i)
	}
	for _, p := range parts {
		p.own()
	}
	return parts
}

func collect(parts []*transaction, decisions []algorithms.Decision) {
	for _, p := range parts {
		for n, i := range p.index {
			decisions[i] = p.decisions[n]
		}
	}
}

type verdict uint8

const (
	isAdmitted verdict = iota
	isDenied           // charges with CountRejected count
	isUndone           // the request is decided elsewhere, and no charge counts but the begins of holders, which are repaired later
)

// giveBack has the outbox give back the reservations of a request that failed. A part without an
// answer may have been applied: Instead settles the part when its outcome is known. The hits of
// holders that have begun stay as if used: their end corrects the hits, and so does HoldLater.
func (s *Store) giveBack(parts []*transaction) {
	for _, p := range parts {
		if p.outcome() == nil {
			s.owe(p, s.settle(p, isUndone))
			p.status.Store(abandoned) // as if Redis had not applied the part
		}
	}
}

// settleLater has the outbox send the change of a part, unless Redis may have applied it.
func (s *Store) settleLater(p, change *transaction) {
	switch {
	case change == nil || change.outcome() == nil:
	case change.unsent():
		s.owe(p, change)
	default:
		for n := range change.charges {
			s.lose(change.hits(n))
		}
	}
}

// owe has the outbox send the change of a part, which may be nil. A new holder is canceled, where
// the change would release the holder. The cancel gives back hits that the change gives back, too,
// so owe charges these hits once more.
func (s *Store) owe(p, change *transaction) {
	if change == nil {
		return
	}
	for n, f := range change.fixes {
		c, at, fix := change.charges[n], s.nowOf(false), owed.Fix{}
		counter := s.isCounter(&c)
		switch {
		case change.held(n):
			hold := change.holds[n].Hold
			hold.Phase, c.Hold, c.Hits = algorithms.HoldCancel, &hold, 0
			s.HoldLater(&c, at)
			at, c.Hits = p.appliedAt(c.Rule), p.charges[c.Rule].Hits
		case counter:
			at = whole(p.at) // the name of a counter has the window of this process's clock
		case f != nil:
			at, fix = instant(uint64(f.at)), f.Fix
		}
		switch c.Hold = nil; {
		case c.Limit.Algorithm == algorithms.Concurrency:
		case counter != s.isCounter(&c):
			s.lose(c.Hits) // of a window with holders in a cluster, for which the outbox has no name
		default:
			s.in(c.Key, func(b *owed.Book) {
				b.Add(&c, owed.Late{At: at, Here: counter, Fix: fix})
				s.sendKeyLocked(b, c.Key, false, func(owed.Entry) bool { return true }) // at once: the value is mostly as it was
			})
		}
	}
}

// settle plays the charges of a reservation again as the verdict demands. settle returns the change
// that Redis needs, or nil if Redis needs none. p then has the states that the verdict leaves and,
// if the request is denied, the decisions. Decisions about lists come with the change, see look.
func (s *Store) settle(p *transaction, v verdict) *transaction {
	c, change := &p.call, s.transaction(correct, p.where, p.at, nil)
	reserved := slices.Clone(c.after)
	c.findNew()
	switch v {
	case isAdmitted:
		c.again(func(int) bool { return true }, func(int, algorithms.Decision) {})
	case isDenied:
		c.again(c.counts, c.keep)
		c.release(&change.call) // before the corrections, which ask for the hits that came back before
	case isUndone:
		c.again(c.hasBegun, func(int, algorithms.Decision) {})
	}
	due := func(i int) bool {
		return v == isAdmitted && c.allowed(i) || v != isUndone && c.counts(i) || v == isUndone && c.hasBegun(i)
	}
	for i := range c.charges {
		if c.charges[i].Limit.Algorithm == algorithms.Concurrency {
			continue
		}
		if !c.charges[i].Limit.Algorithm.HasState() {
			c.settleList(&change.call, i, v, due)
			continue
		}
		f := &fix{Fix: owed.Fix{Left: reserved[i].value(), Target: c.after[i].value()}}
		if c.first(i) == i && f.Left != f.Target {
			f.at, f.Was = c.before[i].seenAt(c.charges[i].Limit, c.now)
			change.correct(c.charges[i], c.sum(i, due)-max(c.applied(i), 0), f)
		}
	}
	if len(change.charges) == 0 {
		s.pool.Put(change)
		return nil
	}
	change.own()
	c.nameReleases(&change.call)
	return change
}

// settleList adds charge i of a list to a change, and before the first charge of its key the
// removal of the reserved hits. The script charges the list at the instant of the change, as this
// process does not know the list.
func (c *call) settleList(change *call, i int, v verdict, due func(i int) bool) {
	in := c.added[i]
	if c.sum(i, due) == in.hits && c.applied(i) == in.hits && !c.any(i, c.refunds) && (v != isDenied || !c.any(i, c.allowed)) {
		return
	}
	charge := c.charges[i]
	if c.first(i) == i {
		change.correct(charge, -in.hits, &fix{at: in.at})
	}
	if !due(i) {
		charge.Hits = 0
	}
	charge.CountRejected = true
	charge.Rule = i // look finds the charge by this number
	charge.Hold = withoutHolder(charge.Hold)
	change.addFixed(charge, nil)
}

// look takes the decisions about lists from the change of a denied reservation, unless it is nil.
func (c *call) look(change *transaction) {
	if change == nil {
		return
	}
	for n, f := range change.fixes {
		if i := change.charges[n].Rule; f == nil && !change.ends(n) {
			c.keep(i, change.decisions[n])
		}
	}
}

// correct adds a correction of a charge's key: hits to charge, or to give back if negative.
func (c *call) correct(charge store.Charge, hits int64, f *fix) {
	charge.Hits, charge.CountRejected, charge.Hold = hits, true, withoutHolder(charge.Hold)
	c.addFixed(charge, f)
}

func (c *call) addFixed(charge store.Charge, f *fix) {
	charge.Before = nil
	c.add(&charge)
	c.fixes = append(c.fixes, f)
}

// hasBegun reports whether charge i of a reservation made a holder hold hits. Call findNew before.
func (c *call) hasBegun(i int) bool { return len(c.holds) > 0 && c.holds[i].begun }

// findNew notes which charges of a reservation made a holder hold hits.
func (c *call) findNew() {
	for i := range c.holds {
		h := &c.holds[i]
		h.begun = c.held(i) && !c.ends(i) && h.Was.Status != algorithms.HoldHeld && c.allowed(i) &&
			(c.charges[i].Hits > 0 || h.Phase == algorithms.HoldPair && c.charges[i].Limit.Algorithm != algorithms.Concurrency)
	}
}

// release adds to a change of a request that is denied that the new holders are denied, and probes
// of their slots. A release has the hits that the change gives back: if the holder has ended
// meanwhile, they have come back already.
func (c *call) release(change *call) {
	freed := false
	for i := range c.holds {
		if c.holds[i].begun {
			charge := c.charges[i]
			if charge.Rule = i; c.counts(i) || charge.Limit.Algorithm == algorithms.Concurrency {
				charge.Hits = 0
			}
			charge.Hold = &store.Hold{Phase: release, Holder: c.holds[i].Holder, AtMost: c.holds[i].AtMost}
			change.addFixed(charge, nil)
			freed = freed || charge.Limit.Algorithm == algorithms.Concurrency
		}
	}
	if !freed {
		return
	}
	for i := range c.charges {
		if charge := c.charges[i]; charge.Limit.Algorithm == algorithms.Concurrency && !c.ends(i) {
			charge.Hits, charge.Rule, charge.Hold = 0, i, nil
			change.addFixed(charge, nil)
		}
	}
}

// nameReleases tells a change which begins it undoes. Call it after own.
func (c *call) nameReleases(change *call) {
	for n := range change.holds {
		if h := &change.holds[n]; h.Phase == release {
			h.since = c.holds[change.charges[n].Rule].at
		}
	}
}

// withoutHolder returns the Hold of a correction of the hits only. A Hold without a phase still
// decides on the name of a counter in a cluster.
func withoutHolder(h *store.Hold) *store.Hold {
	if h == nil {
		return nil
	}
	return new(store.Hold)
}
