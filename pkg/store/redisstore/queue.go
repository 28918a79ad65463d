package redisstore

import (
	"context"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/redis"
	"github.com/weirproxy/weir/pkg/store"
)

// Flights of a node queue. Together the flights must stay well below the commands that
// internal/redis keeps in flight on a connection.
const (
	mostFlights = 32 // under way at once, and workers
	atOnce      = 4  // that begin without a wait
)

// queue sends the calls to a server, in flights. Each flight has calls to one node only, so that a
// node that does not answer delays its own calls only: see nodeQueue.
//
// Calls about one key may be applied in any order, except after a call of the outbox. Later calls
// about the keys of that call wait for its end, or are in the same flight behind it.
type queue struct {
	server  *server
	sending sync.WaitGroup // workers, and callers that fly

	byNode atomic.Pointer[[]*nodeQueue] // by number of the node; written with mu

	mu     sync.Mutex     // guards the fields below, and the node queues
	nodes  *redis.Nodes   // by which the calls were put into node queues; nil: all calls are in node queue 0
	fenced map[uint64]int // by number of a key: flights with a call of the outbox about it
	spare  []*flight      // memory of workers that have ended, at most as many as there may be flights
	closed bool
}

// put appends a call for which no caller waits. If the queue is closed put ends the call. followed
// says that another call follows at once: both then mostly share a flight.
func (q *queue) put(c *call, followed bool) {
	now := time.Now()
	q.mu.Lock()
	closed := q.closed
	if !closed {
		n := q.nodeQueueLocked(c.slot)
		n.appendLocked(c)
		if followed {
			n.follows = now.Add(followsSoon)
		}
		n.nudgeLocked(now)
	}
	q.mu.Unlock()
	if closed {
		c.refuse(errClosed)
	}
}

// putAll appends calls that a caller waits for, before a worker takes one of them. If the queue is
// closed putAll ends them.
//
// A caller who may fly gets a flight with all these calls, if no other call waits for it and it may
// begin now. Then the caller calls fly.
func (q *queue) putAll(now time.Time, mayFly bool, calls iter.Seq[*call]) (n *nodeQueue, f *flight) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for c := range calls {
		if q.closed {
			c.refuse(errClosed)
			continue
		}
		to := q.nodeQueueLocked(c.slot)
		mayFly = mayFly && (to == n || n == nil && len(to.waiting) == 0)
		n = to
		n.appendLocked(c)
	}
	if mayFly && n != nil {
		f = q.spareFlightLocked()
		if n.takeLocked(f, now) {
			q.sending.Add(1)
			return n, f
		}
		q.spare = append(q.spare, f)
	}
	q.nudgeLocked(now, nil)
	return nil, nil
}

// silent reports whether the last flight to the node of a slot ended without an answer.
func (q *queue) silent(slot uint16) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.nodeQueueLocked(slot)
	return n.lost > 0 || n.pulse.silent.Load()
}

func (q *queue) nodeQueueLocked(slot uint16) *nodeQueue {
	if nodes := q.server.connection.Nodes(); nodes != q.nodes {
		q.nodes = nodes
		q.sortLocked()
	}
	n := 0
	if q.nodes != nil {
		n = int(q.nodes[slot])
	}
	return q.nodeLocked(n)
}

func (q *queue) nodeLocked(n int) *nodeQueue {
	all := *q.byNode.Load()
	if n < len(all) {
		return all[n]
	}
	all = slices.Clone(all)
	for n >= len(all) {
		all = append(all, newNodeQueue(q))
	}
	q.byNode.Store(&all)
	return all[n]
}

func (q *queue) node(n int) *nodeQueue {
	if all := *q.byNode.Load(); n < len(all) {
		return all[n]
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.nodeLocked(n)
}

// of returns the node queue of the calls in a slot, as far as the nodes are known.
func (q *queue) of(slot uint16) *nodeQueue { return q.node(q.server.nodeOf(slot)) }

// sortLocked puts the waiting calls into the node queues of their nodes, after slots have changed
// their nodes. So all waiting calls about a key are in one node queue, in their order.
func (q *queue) sortLocked() {
	var all []*call
	for _, n := range *q.byNode.Load() {
		all = append(all, n.waiting...)
		clear(n.waiting)
		n.waiting = n.waiting[:0]
	}
	for _, c := range all {
		q.nodeQueueLocked(c.slot).appendLocked(c)
	}
	q.nudgeLocked(time.Now(), nil)
}

// nudgeLocked nudges all node queues but one.
func (q *queue) nudgeLocked(now time.Time, but *nodeQueue) {
	for _, n := range *q.byNode.Load() {
		if n != but {
			n.nudgeLocked(now)
		}
	}
}

// close ends after the calls that wait are sent.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	for _, n := range *q.byNode.Load() {
		n.closeLocked()
	}
	q.mu.Unlock()
	q.sending.Wait()
}

func (q *queue) spareFlightLocked() *flight {
	if n := len(q.spare); n > 0 {
		f := q.spare[n-1]
		q.spare = q.spare[:n-1]
		return f
	}
	return &flight{current: make(map[uint16]*batch)}
}

// nodeQueue is the calls of a queue to one node, or to the only server. While atOnce flights are
// under way, calls wait for each other. So they share a round trip, a run of the script, and a
// read and a write of a key. While Redis answers fast, no more flights are under way. A call that
// waits for a slow Redis gets a flight of its own in time (see gapLocked).
type nodeQueue struct {
	queue *queue
	pulse pulse
	wake  chan struct{} // holds a value when an idle worker may take a flight

	// mu of the queue guards the fields below.
	flying   []*flight                  // under way
	commands []*context.CancelCauseFunc // under way beside the flights: they end the waits
	watch    watch
	waiting  []*call
	patience time.Duration // shortest wait of a caller of a waiting call, from put to until
	workers  int           // that run
	idle     int           // workers that wait for wake
	lost     int           // flights since the last answer that ended without one
	begun    time.Time     // when the newest flight began
	trip     time.Duration // the longest of the last round trips, as gapLocked reckons
	follows  time.Time     // until when the newest call waits for the call that follows it; zero: none does
	alarm    *time.Timer   // rings when waiting calls may fly; nil until the first use
	rings    time.Time     // when the alarm rings; zero: it does not
}

const (
	longestGap  = 5 * time.Millisecond // for which calls wait for each other
	followsSoon = time.Millisecond     // within which a request follows the hits that come before it
)

func newNodeQueue(q *queue) *nodeQueue {
	return &nodeQueue{
		queue: q, pulse: pulse{base: q.server.base}, wake: make(chan struct{}, 1),
		trip: q.server.timeout, // until the first round trips: no call should wait too long for the others
	}
}

// appendLocked appends a call, and leaves it to the caller to nudge.
func (n *nodeQueue) appendLocked(c *call) {
	patience := c.until.Sub(c.put)
	if c.until.IsZero() {
		patience = n.queue.server.timeout
	}
	if len(n.waiting) == 0 {
		n.patience = patience
	}
	n.patience = min(n.patience, patience)
	n.waiting = append(n.waiting, c)
	n.follows = time.Time{}
}

// closeLocked makes the workers return after the calls that wait are sent. The queue must be
// closed.
func (n *nodeQueue) closeLocked() {
	n.nudgeLocked(time.Now())
	close(n.wake)
	if n.alarm != nil {
		n.alarm.Stop()
	}
	n.watch.stopLocked()
}

// nudgeLocked has a worker take the waiting calls, now or when they may fly. The workers of a
// closed queue need no nudge.
func (n *nodeQueue) nudgeLocked(now time.Time) {
	closed := n.queue.closed
	if len(n.waiting) == 0 || closed && n.workers > 0 || !closed && len(n.flying) >= n.mostLocked() {
		return // at the end of a flight its worker looks again
	}
	if at := n.nextLocked(); at.After(now) && !closed {
		n.ringLocked(at)
		return
	}
	if n.idle == 0 && n.workers < mostFlights {
		n.workers++
		n.queue.sending.Go(n.run)
		return
	}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// mostLocked returns how many flights may be under way. A server that answers nothing gets one at a
// time: calls that nobody waits for lie on the connection, which has no endless room.
func (n *nodeQueue) mostLocked() int {
	if n.lost > mostFlights/4 {
		return 1
	}
	return mostFlights
}

// nextLocked returns when the waiting calls may fly. The number of flights must be below
// mostLocked.
func (n *nodeQueue) nextLocked() time.Time {
	if len(n.flying) < atOnce {
		return n.follows
	}
	at := n.begun.Add(n.gapLocked())
	if at.Before(n.follows) {
		return n.follows
	}
	return at
}

// gapLocked returns the shortest time from the beginning of the newest flight to the next one. A
// call waits for others at most a quarter of the time that a round trip leaves its caller. A round
// trip of more than half of the caller's time leaves none. The second half of the flights is spread
// over a round trip, so that no call must wait for a whole one.
func (n *nodeQueue) gapLocked() (gap time.Duration) {
	trip := min(n.trip, n.patience)
	if trip <= n.patience/2 {
		gap = min((n.patience-trip)/4, longestGap)
	}
	if len(n.flying) >= mostFlights/2 {
		gap = max(gap, trip/(mostFlights/2))
	}
	return gap
}

// ringLocked sets the alarm to a time, unless it rings earlier.
func (n *nodeQueue) ringLocked(at time.Time) {
	switch {
	case n.queue.closed || !n.rings.IsZero() && !n.rings.After(at):
		return
	case n.alarm == nil:
		n.alarm = time.AfterFunc(time.Until(at), n.ring)
	default:
		n.alarm.Reset(time.Until(at))
	}
	n.rings = at
}

func (n *nodeQueue) ring() {
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	n.rings = time.Time{}
	n.nudgeLocked(time.Now())
}

// run is a worker: it sends flights as long as calls wait, or as the only one that waits for them.
func (n *nodeQueue) run() {
	n.queue.mu.Lock()
	f := n.queue.spareFlightLocked()
	n.queue.mu.Unlock()
	for n.take(f) {
		n.send(f, true)
	}
}

// fly sends the calls of a flight that [queue.putAll] gave to its caller.
func (n *nodeQueue) fly(f *flight) {
	q := n.queue
	defer q.sending.Done()
	n.send(f, false)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.spare = append(q.spare, f)
	n.nudgeLocked(time.Now())
}

// take waits until a flight may begin, and moves the calls that may fly into it. take returns false
// when no call is left for this worker and another worker waits already, or the queue is closed.
func (n *nodeQueue) take(f *flight) bool {
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	for {
		now := time.Now()
		if n.takeLocked(f, now) {
			return true
		}
		if n.queue.closed || n.idle > 0 {
			n.workers--
			n.queue.spare = append(n.queue.spare, f)
			return false
		}
		n.idle++
		n.queue.mu.Unlock()
		<-n.wake
		n.queue.mu.Lock()
		n.idle--
	}
}

// takeLocked is take without waiting.
func (n *nodeQueue) takeLocked(f *flight, now time.Time) bool {
	if len(n.waiting) == 0 {
		return false
	}
	if !n.queue.closed {
		if len(n.flying) >= n.mostLocked() {
			return false
		}
		if at := n.nextLocked(); at.After(now) {
			n.ringLocked(at)
			return false
		}
	}
	q, stay := n.queue, n.waiting[:0]
	behind := map[uint64]int{} // keys of calls of the outbox that stay: later calls about them must stay behind
	for _, c := range n.waiting {
		if !about(c, q.fenced) && !about(c, behind) {
			f.calls = append(f.calls, c)
			continue
		}
		stay = append(stay, c)
		if c.fences {
			countKeys(c, behind)
		}
	}
	clear(n.waiting[len(stay):])
	n.waiting = stay
	if len(f.calls) == 0 {
		return false // until a flight with a fence ends
	}
	for _, c := range f.calls {
		if c.fences {
			f.fences = append(f.fences, countKeys(c, q.fenced)...)
		}
		f.waits = append(f.waits, c.releasable())
	}
	n.begun, f.begun, f.node = now, now, n
	n.flying = append(n.flying, f)
	n.watchLocked(now)
	return true
}

func (n *nodeQueue) landLocked(f *flight) {
	i := slices.Index(n.flying, f)
	last := len(n.flying) - 1
	n.flying[i], n.flying[last] = n.flying[last], nil
	n.flying = n.flying[:last]
}

// flight is the calls that a worker sends at once, and the worker's memory for them.
type flight struct {
	node    *nodeQueue
	begun   time.Time
	calls   []*call                            // written with mu of the queue
	waits   []*wait                            // of the callers of calls; nil: nobody waits, or a caller that is not released
	release atomic.Pointer[context.CancelFunc] // ends the wait of the goroutine that sends the flight; nil: nobody need end it
	fences  []uint64                           // keys of calls of the outbox
	batches []*batch
	current map[uint16]*batch // by slot: the batch that takes more calls
}

// send sends the calls of a flight, and ends the calls and the flight. patient is for execute.
func (n *nodeQueue) send(f *flight, patient bool) {
	batches := f.load()
	answered := len(batches) > 0 && n.queue.server.execute(f, batches, patient)
	for _, b := range batches {
		b.reset()
	}
	n.land(f, len(batches) > 0, answered)
}

// load puts the calls that are still to be sent into batches.
func (f *flight) load() []*batch {
	used := 0
	clear(f.current)
	for _, c := range f.calls {
		if !c.until.IsZero() && !f.begun.Before(c.until) {
			continue // the caller is about to abandon the call
		}
		if !c.status.CompareAndSwap(waiting, underWay) {
			continue // abandoned
		}
		b := f.current[c.slot]
		if b == nil || !b.takes(c) {
			if used == len(f.batches) {
				f.batches = append(f.batches, newBatch(f.node.queue.server))
			}
			b = f.batches[used]
			used++
			f.current[c.slot] = b
		}
		b.add(c)
	}
	return f.batches[:used]
}

// land ends a flight. sent says that the flight had calls to send, and answered that Redis has
// answered one of them.
func (n *nodeQueue) land(f *flight, sent, answered bool) {
	took := time.Since(f.begun)
	q := n.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	n.landLocked(f)
	clear(f.calls)
	clear(f.waits)
	f.calls, f.waits = f.calls[:0], f.waits[:0]
	f.release.Store(nil)
	if sent {
		if n.lost++; answered {
			n.lost = 0
		}
		n.trip = max(took, n.trip-(n.trip-took)/tripMemory)
	}
	for _, key := range f.fences {
		if q.fenced[key]--; q.fenced[key] == 0 {
			delete(q.fenced, key)
		}
	}
	if len(f.fences) > 0 {
		q.nudgeLocked(time.Now(), n) // calls about the keys may be in another node queue, since slots have changed their nodes
	}
	f.fences = f.fences[:0]
}

// about reports whether a call is about one of the keys, by hash. Two keys with one hash only wait
// for each other.
func about(c *call, keys map[uint64]int) bool {
	return len(keys) > 0 && slices.ContainsFunc(c.charges, func(charge store.Charge) bool { return keys[charge.KeyHash()] > 0 })
}

// countKeys counts the keys of a call, by hash, and returns them.
func countKeys(c *call, keys map[uint64]int) (counted []uint64) {
	for i := range c.charges {
		hash := c.charges[i].KeyHash()
		keys[hash]++
		counted = append(counted, hash)
	}
	return counted
}
