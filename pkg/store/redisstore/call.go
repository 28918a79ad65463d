package redisstore

import (
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// call is a transaction, or its part at one location, on the way to Redis and back. A call owns all
// its memory, so that a caller can stop waiting and leave the call behind.
type call struct {
	location
	action      action
	at          algorithms.Instant // of the request by this process's clock, for windows of counters; 0 without counters
	charges     []store.Charge
	keys        []byte        // memory of the charges' keys
	index       []int         // of the charges in the request, if the call is a part
	corrections []*correction // of the charges; nil where a charge is not the first of its key
	holding     bool          // a charge has a holder
	holds       []hold        // of the charges, if holding
	status      atomic.Int32
	done        chan struct{} // receives once, at the end; has room for that
	outbox      *outbox       // told of the end in place of done; nil: a caller waits
	together    *together     // likewise: of a caller that waits for several transactions
	number      int           // of the transaction there
	resendUntil time.Time     // with an outbox
	deferred    *deferred     // of an outbox: the home of the hits
	owed        *owedHold     // likewise: of the events of a holder
	instead     *instead      // set before status promised
	resets      uint64        // of the outbox when the call was made

	put, until time.Time // the time of put, and when the caller stops to wait; zero with an outbox

	ended bool // the caller has seen the end, and may read the fields below

	// Set at the end.
	err       error
	refused   bool // the call was not applied
	admitted  bool
	now       algorithms.Instant
	decisions []algorithms.Decision
	before    []kept  // states of the charges' keys before each charge; not of lists
	after     []kept  // states of the charges' keys after the transaction; not of lists
	added     []added // entries that a reservation added to lists

	places   []int  // of the charges' keys in the batch
	counters []bool // which charges are counted by window
	next     *call  // in a group
}

// The statuses of a call.
const (
	waiting   = iota
	sent      // may have been applied
	abandoned // nobody waits; will not be sent
	promised  // sent; nobody waits, and the outbox gets the difference to the hits of instead
	finished
)

func newCall() *call { return &call{done: make(chan struct{}, 1)} }

// set fills the call with copies of charges.
func (c *call) set(a action, where location, at algorithms.Instant, charges []store.Charge) {
	c.action, c.location, c.at = a, where, at
	c.renew()
	c.charges, c.keys, c.index, c.corrections = c.charges[:0], c.keys[:0], c.index[:0], c.corrections[:0]
	c.holding, c.holds = false, c.holds[:0]
	for i := range charges {
		c.add(&charges[i])
	}
	c.own()
}

// renew resets a call that has ended, so that it can be sent again.
func (c *call) renew() {
	c.put, c.until = time.Time{}, time.Time{}
	c.err, c.refused, c.admitted, c.ended = nil, false, false, false
	c.together, c.instead = nil, nil
	c.status.Store(waiting)
}

// add adds a charge. Call own after the last one.
func (c *call) add(charge *store.Charge) {
	c.charges = append(c.charges, *charge)
	c.charges[len(c.charges)-1].Left = nil // belongs to the caller
	c.keys = append(c.keys, charge.Key...)
	switch {
	case charge.Hold != nil && charge.Hold.Phase != 0, charge.Limit.Algorithm == algorithms.Concurrency:
		c.holding = true
	case charge.Hold != nil:
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
	if cap(c.decisions) < len(c.charges) {
		c.decisions = make([]algorithms.Decision, len(c.charges))
	}
	c.decisions = c.decisions[:len(c.charges)]
	if c.holding {
		c.ownHolds()
	}
}

// unsent reports whether the call was certainly not applied. Call it after wait.
func (c *call) unsent() bool {
	if c.ended {
		return c.refused
	}
	return c.status.Load() == abandoned
}

// copy returns a call of the same charges, for an abandoned call, which may still lie in a queue.
func (c *call) copy() *call {
	other := newCall()
	other.set(c.action, c.location, c.at, c.charges)
	other.corrections = append(other.corrections, c.corrections...)
	for i := range other.holds {
		other.holds[i].since = c.holds[i].since
	}
	return other
}

// drop removes the charges of keys that are being reset from a correction that has ended.
func (c *call) drop(keys map[string]*resetting) {
	charges, corrections, holds := c.charges, c.corrections, c.holds
	c.charges, c.corrections, c.holds = c.charges[:0], c.corrections[:0], c.holds[:0]
	for i := range charges {
		if r := keys[string(charges[i].Key)]; r != nil {
			if !c.holding || holds[i].Phase != release {
				r.drop(charges[i].Hits)
			}
		} else {
			c.charges, c.corrections = append(c.charges, charges[i]), append(c.corrections, corrections[i])
			if c.holding {
				c.holds = append(c.holds, holds[i])
			}
		}
	}
	c.pointHolds()
}

// size returns the sum of the call's hits without holders, each without its sign.
func (c *call) size() int64 {
	var hits int64
	for i := range c.charges {
		if !c.held(i) {
			hits += max(c.charges[i].Hits, -c.charges[i].Hits)
		}
	}
	return hits
}

// tell writes the state that the call left of the key of charge i to a Charge.Left.
func (c *call) tell(i int, to *store.State) {
	if to == nil {
		return
	}
	*to = store.State{Now: c.now, Source: store.Asked}
	if c.charges[i].Limit.Algorithm.HasState() {
		k := c.after[i]
		if c.counters[i] {
			k.enter(c.charges[i].Limit, c.at, c.now) // the last charge may have been under another limit
		}
		to.Limit, to.State = k.limit, k.state
	}
}

// hitsOf returns the hits that Redis took from the key of charge i, or gave back. The call must
// have ended well.
func (c *call) hitsOf(i int) int64 {
	charge := &c.charges[i]
	switch {
	case c.action == reserve && c.applied(i) < 0: // waits for the verdict on the whole request
		return 0
	case c.counts(i), c.allowed(i) && (c.action == reserve || c.admitted):
		return charge.Hits
	}
	return 0
}

// refuse ends a call that was not sent.
func (c *call) refuse(err error) {
	c.refused, c.err = true, err
	c.end()
}

// end ends the call.
func (c *call) end() {
	switch {
	case c.status.Swap(finished) == promised:
		c.server.store.outbox.settle(c)
	case c.outbox != nil:
		c.outbox.ended(c)
	case c.together != nil:
		c.together.end(c.number)
	default:
		c.done <- struct{}{}
	}
}
