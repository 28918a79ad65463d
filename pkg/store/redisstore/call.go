package redisstore

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// call is charges in one slot on the way to Redis and back. A call owns all its memory, so that a
// caller can stop waiting and leave the call behind. The purpose of a call is its owner.
type call struct {
	action  action
	slot    uint16             // 0 without a cluster
	at      algorithms.Instant // of the request by this process's clock, for windows of counters; 0 without counters
	charges []store.Charge
	keys    []byte // memory of the charges' keys
	fixes   []*fix // of the charges, with action correct; nil where a charge is not the first of its key
	holds   []hold // of the charges; empty if no charge has a holder
	fences  bool   // no later call about its keys overtakes it

	put, until time.Time // the time of put, and when the caller stops to wait; zero if none waits
	status     atomic.Int32
	wait       *wait       // of the caller; nil: none waits
	stays      bool        // the caller is not released
	released   atomic.Bool // the caller waits no longer
	owner      owner       // gets the end; nil: the end does not matter

	sent
	answer
}

// owner is the purpose of a call.
type owner interface {
	landed(before int32) // gets the end of the call, with the status before
}

type sent struct {
	places   []int  // of the charges' keys
	counters []bool // which charges are counted by window
	next     *call  // in a group
}

type answer struct {
	err       error
	refused   bool // the call was not applied
	admitted  bool
	now       algorithms.Instant
	decisions []algorithms.Decision
	before    []kept  // states of the charges' keys before each charge; not of lists
	after     []kept  // states of the charges' keys after the transaction; not of lists
	added     []added // entries that a reservation added to lists
}

// The statuses of a call.
const (
	waiting   int32 = iota
	underWay        // may have been applied
	abandoned       // nobody waits; will not be sent
	promised        // under way; nobody waits, and the hits that were decided elsewhere are known
	finished
)

// set fills the call with copies of charges.
func (c *call) set(a action, slot uint16, at algorithms.Instant, charges []store.Charge) {
	c.action, c.slot, c.at = a, slot, at
	c.put, c.until = time.Time{}, time.Time{}
	c.wait, c.stays = nil, false
	c.released.Store(false)
	c.err, c.refused, c.admitted = nil, false, false
	c.status.Store(waiting)
	c.charges, c.keys, c.fixes, c.holds = c.charges[:0], c.keys[:0], c.fixes[:0], c.holds[:0]
	for i := range charges {
		c.add(&charges[i])
	}
	c.own()
}

// add adds a charge. Call own after the last one.
func (c *call) add(charge *store.Charge) {
	c.charges = append(c.charges, *charge)
	c.charges[len(c.charges)-1].Left = nil // belongs to the caller
	if charge.Before != nil {
		c.charges[len(c.charges)-1].Before = ownFormers(charge.Before) // the same
	}
	c.keys = append(c.keys, charge.Key...)
	if charge.Hold != nil && !hasHolder(charge) {
		c.charges[len(c.charges)-1].Hold = new(store.Hold)
	}
}

// own points the keys and holders of the charges to the call's memory, and makes room for
// decisions.
func (c *call) own() {
	rest := c.keys
	for i := range c.charges {
		n := len(c.charges[i].Key)
		c.charges[i].Key, rest = rest[:n:n], rest[n:]
	}
	c.decisions = slices.Grow(c.decisions[:0], len(c.charges))[:len(c.charges)]
	for i := range c.charges {
		if hasHolder(&c.charges[i]) {
			c.ownHolds()
			return
		}
	}
}

func (c *call) end() {
	if before := c.status.Swap(finished); c.owner != nil {
		c.owner.landed(before)
	}
}

func (c *call) refuse(err error) {
	c.refused, c.err = true, err
	c.end()
}

// size returns the sum of the call's hits without holders, each without its sign.
func (c *call) size() (hits int64) {
	for i := range c.charges {
		hits += max(c.hits(i), -c.hits(i))
	}
	return hits
}

// hits returns the hits of charge i; 0 if it has a holder.
func (c *call) hits(i int) int64 {
	if c.held(i) {
		return 0
	}
	return c.charges[i].Hits
}

type hold struct {
	store.Hold

	since        int64 // Unix microseconds: of phase release the begin that is undone, of a correction the instant of the event; 0: now
	record, book int   // places of the keys in the batch

	// From the script's answer.
	at      int64 // Unix microseconds: instant of the charge
	decided added // of a list
	begun   bool  // the charge made the holder hold hits
}

// release is a phase of corrections only: a holder that has held hits since an instant is denied.
// Under Concurrency its hits are free.
const release algorithms.HoldPhase = 5

// givesBack is added to the phase of a charge that gives back.
const givesBack = 16

// returning ends the name of the set of holders whose hits come back. The name of the book is
// before it.
const returning = '<'

// pairedEnd is added to the status of a holder whose charge of HoldPair was the end.
const pairedEnd = 8

// hasHolder reports whether the script has a holder for a charge. A correction of the hits only has
// a Hold without a phase.
func hasHolder(c *store.Charge) bool {
	return c.Hold != nil && c.Hold.Phase != 0 || c.Limit.Algorithm == algorithms.Concurrency
}

func (c *call) ownHolds() {
	c.holds = slices.Grow(c.holds[:0], len(c.charges))[:len(c.charges)]
	for i := range c.charges {
		charge := &c.charges[i]
		c.holds[i] = hold{}
		if charge.Hold != nil {
			c.holds[i].Hold = *charge.Hold
			charge.Hold = &c.holds[i].Hold
		}
		if charge.Limit.Algorithm == algorithms.Concurrency && c.holds[i].Phase == 0 {
			c.holds[i].Phase, charge.Hits = algorithms.HoldBegin, 0 // asks
			charge.Hold = &c.holds[i].Hold
		}
		if charge.Limit.Algorithm == algorithms.Concurrency || c.ends(i) {
			charge.CountRejected = false
		}
	}
}

// alone reports whether a call needs a run of the script of its own. A correction, and a holder,
// write a list before the end of the script, and so does a pair with slots. If the script then
// fails for another call, each would be applied again.
func (c *call) alone() bool {
	return (len(c.holds) > 0 || c.action == correct) && slices.ContainsFunc(c.charges, func(charge store.Charge) bool {
		return charge.IsPair() && charge.Limit.Algorithm == algorithms.Concurrency ||
			(charge.Hold != nil || c.action == correct) && charge.Limit.Algorithm == algorithms.SlidingWindowLog
	})
}

// lone reports whether a call is one begin or one end, under a limit without a list. Redis applies
// it at its own instant.
func (c *call) lone() bool {
	return len(c.holds) == 1 && c.action == take && !c.gives(0) && c.charges[0].Limit.Algorithm != algorithms.SlidingWindowLog &&
		(c.holds[0].Phase.Begins() || c.holds[0].Phase == algorithms.HoldEnd)
}

func (c *call) held(i int) bool { return len(c.holds) > 0 && c.holds[i].Phase != 0 }

// gives reports whether charge i has a holder of a rate limit that gives back.
func (c *call) gives(i int) bool {
	return c.held(i) && c.holds[i].GivesBack && c.charges[i].Limit.Algorithm != algorithms.Concurrency
}

// ends reports whether charge i has a holder and is no begin.
func (c *call) ends(i int) bool { return c.held(i) && !c.holds[i].Phase.Begins() }

func (c *call) take(i int, k *kept, hits int64) algorithms.Decision {
	l, now := c.charges[i].Limit, c.now
	if c.counters[i] {
		now = k.enter(l, c.at, now)
	}
	return k.take(l, now, hits, algorithms.Counting(c.charges[i].CountRejected))
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

// hitsOf returns the hits that Redis took from the key of charge i, or gave back. The call must
// have ended well.
func (c *call) hitsOf(i int) int64 {
	switch {
	case c.action == reserve && c.applied(i) < 0: // waits for the verdict on the whole request
		return 0
	case c.counts(i), c.allowed(i) && (c.action == reserve || c.admitted):
		return c.charges[i].Hits
	}
	return 0
}

// appliedAt returns the instant of hits that Redis has applied, by the key's clock.
func (c *call) appliedAt(i int) algorithms.Instant {
	switch {
	case c.counters[i]:
		return whole(c.at)
	case !c.charges[i].Limit.Algorithm.HasState():
		return instant(uint64(c.added[i].at))
	}
	return c.now
}

// tellState writes the state that the call left of the key of charge i to a Charge.Left.
func (c *call) tellState(i int, to *store.State) {
	*to = store.State{Now: c.now, Source: store.Asked}
	if c.charges[i].Limit.Algorithm.HasState() {
		k := c.after[i]
		if c.counters[i] {
			k.enter(c.charges[i].Limit, c.at, c.now) // the last charge may have been under another limit
		}
		to.Limit, to.State = k.limit, k.state
	}
}

func (c *call) tellHold(n int, charge *store.Charge) {
	if charge.Hold != nil && len(c.holds) > 0 {
		if charge.IsPair() {
			charge.Pair(c.ends(n))
		}
		charge.Hold.Was, charge.Hold.Now = c.holds[n].Was, instant(uint64(c.holds[n].at))
	}
}
