package redisstore

import (
	"iter"
	"sync"
	"time"

	"github.com/weirproxy/weir/internal/redis"
)

// queue sends the calls of some keys to a server, in flights. Each flight has calls to one node
// only, so that a node that does not answer delays its own calls only: see nodeQueue.
//
// Calls about one key may be applied in any order, except after a call of the outbox. Later calls
// about the keys of that call wait for its end, or are in the same flight behind it.
type queue struct {
	server  *server
	most    int             // flights of a node queue under way at once, and workers
	atOnce  int             // flights of a node queue that do not wait for each other
	sending *sync.WaitGroup // of the workers

	mu     sync.Mutex     // guards the fields below, and the node queues
	nodes  *redis.Nodes   // by which the calls were put into node queues; nil: all calls are in node queue 0
	byNode []*nodeQueue   // by number of the node; nil until the first call
	fenced map[uint64]int // by number of a key: flights with a call of the outbox about it
	spare  []*flight      // memory of workers that have ended, at most as many as there may be flights
	closed bool
}

func newQueue(s *server, most int, sending *sync.WaitGroup) *queue {
	atOnce := singleAtOnce
	if s.cluster {
		atOnce = clusterAtOnce
	}
	return &queue{server: s, most: most, atOnce: atOnce, sending: sending, fenced: map[uint64]int{}}
}

// put appends a call. If the queue is closed put ends the call.
func (q *queue) put(c *call) { q.append(c, false) }

// putBefore is put for a call that another call follows at once. Both then mostly share a flight.
func (q *queue) putBefore(c *call) { q.append(c, true) }

func (q *queue) append(c *call, followed bool) {
	now := c.put
	if c.until.IsZero() {
		now = time.Now()
	}
	q.mu.Lock()
	closed := q.closed
	if !closed {
		n := q.nodeQueueLocked(c.slot)
		n.appendLocked(c)
		n.follows = time.Time{}
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

// appendAll appends calls that a caller waits for, before a worker takes one of them. If the queue
// is closed appendAll ends them.
//
// A caller who may fly gets a flight with all these calls, if no other call waits for it and it may
// begin now. Then the caller calls fly.
func (q *queue) appendAll(now time.Time, mayFly bool, calls iter.Seq[*call]) (n *nodeQueue, f *flight) {
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
		n.follows = time.Time{}
	}
	if mayFly && n != nil {
		f = q.spareFlightLocked()
		if n.takeLocked(f, now) {
			q.sending.Add(1)
			return n, f
		}
		q.spare = append(q.spare, f)
	}
	for _, n := range q.byNode {
		if n != nil {
			n.nudgeLocked(now)
		}
	}
	return nil, nil
}

// nodeQueueLocked returns the node queue of the calls in a slot.
func (q *queue) nodeQueueLocked(slot uint16) *nodeQueue {
	if nodes := q.server.nodes(); nodes != q.nodes {
		q.nodes = nodes
		q.sortLocked()
	}
	n := 0
	if q.nodes != nil {
		n = int(q.nodes[slot])
	}
	for n >= len(q.byNode) {
		q.byNode = append(q.byNode, nil)
	}
	if q.byNode[n] == nil {
		q.byNode[n] = newNodeQueue(q)
	}
	return q.byNode[n]
}

// sortLocked puts the waiting calls into the node queues of their nodes, after slots have changed
// their nodes. So all waiting calls about a key are in one node queue, in their order.
func (q *queue) sortLocked() {
	var all []*call
	for _, n := range q.byNode {
		if n != nil {
			all = append(all, n.waiting...)
			clear(n.waiting)
			n.waiting = n.waiting[:0]
		}
	}
	for _, c := range all {
		q.nodeQueueLocked(c.slot).appendLocked(c)
	}
	q.nudgeLocked(nil)
}

// nudgeLocked has workers of all node queues but one take the waiting calls, now or when they may
// fly.
func (q *queue) nudgeLocked(but *nodeQueue) {
	now := time.Now()
	for _, n := range q.byNode {
		switch {
		case n == nil || n == but:
		case q.closed:
			n.finishLocked()
		default:
			n.nudgeLocked(now)
		}
	}
}

// close makes the workers return after the calls that wait are sent.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	for _, n := range q.byNode {
		if n != nil {
			n.closeLocked()
		}
	}
}

// spareFlightLocked returns the memory of a worker that has ended, or new memory.
func (q *queue) spareFlightLocked() *flight {
	if n := len(q.spare); n > 0 {
		f := q.spare[n-1]
		q.spare = q.spare[:n-1]
		return f
	}
	return &flight{server: q.server, current: make(map[uint16]*batch)}
}
