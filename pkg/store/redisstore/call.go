package redisstore

import (
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// call is a transaction, or the part of one that lies in one slot, on its way to Redis and back. It owns all that it holds,
// so that a caller who has waited long enough can leave it behind.
type call struct {
	location
	kind        kind
	at          algorithms.Instant // when it was made, by this process's clock: says in which window it counts; 0 without counters
	charges     []store.Charge
	keys        []byte        // that of charges
	corrections []*correction // of charges; nil where the charge is not the first of its key
	status      atomic.Int32
	done        chan struct{} // receives once the call has ended, with capacity for that
	then        func(error)   // called at the end instead, where nobody waits; nil where somebody does
	generations []uint64      // of the charges' keys among the denials, when the call began

	put, until time.Time // when it began to wait, and until when its caller does; zero where nobody waits

	ended bool // the caller has seen the end, and what follows is its own again

	// Set when it has ended.
	err       error
	refused   bool // it was not applied
	admitted  bool
	now       algorithms.Instant
	decisions []algorithms.Decision
	before    []kept  // what the charges found; not of sliding_window_log
	after     []kept  // what the transaction left of their keys; not of sliding_window_log
	added     []added // of sliding_window_log: what a reservation has put into the key's log

	places   []int  // of charges, in a batch
	counters []bool // which of the charges are counted by window
	next     *call  // in a group
}

// What has become of a call.
const (
	waiting   = iota
	sent      // it may have been applied
	abandoned // nobody waits for it
)

func newCall() *call { return &call{done: make(chan struct{}, 1)} }

// set fills the call with copies of charges.
func (c *call) set(k kind, where location, at algorithms.Instant, charges []store.Charge) {
	c.put, c.until = time.Time{}, time.Time{}
	c.kind, c.location, c.at = k, where, at
	c.err, c.refused, c.admitted, c.ended = nil, false, false, false
	c.status.Store(waiting)
	c.charges, c.keys, c.corrections = c.charges[:0], c.keys[:0], c.corrections[:0]
	for i := range charges {
		c.add(&charges[i])
	}
	c.own()
}

// add adds a charge. When all are added, own must be called.
func (c *call) add(charge *store.Charge) {
	c.charges = append(c.charges, *charge)
	c.keys = append(c.keys, charge.Key...)
}

// own makes the keys of the charges those that the call holds, and room for decisions.
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
}

// unsent reports whether the call was certainly not applied. Its caller has waited for it in vain.
func (c *call) unsent() bool {
	if c.ended {
		return c.refused
	}
	return c.status.Load() == abandoned
}

// copy returns a call of the same charges. Those of a call that was sent must not be asked for until it has ended.
func (c *call) copy() *call {
	other := newCall()
	other.set(c.kind, c.location, c.at, c.charges)
	other.corrections = append(other.corrections, c.corrections...)
	return other
}

// size returns the call's hits, whichever way.
func (c *call) size() uint64 {
	var hits uint64
	for i := range c.charges {
		hits += uint64(max(c.charges[i].Hits, -c.charges[i].Hits))
	}
	return hits
}

// end ends the call.
func (c *call) end() {
	if c.then != nil {
		c.then(c.err)
		return
	}
	c.done <- struct{}{}
}
