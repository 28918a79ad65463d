package redisstore

import "time"

// nodeQueue is the calls of a queue to one node, or to the only server. While queue.atOnce flights
// are under way, calls wait for each other. So they share a round trip, a run of the script, and a
// read and a write of a key. While Redis answers fast, no more flights are under way. A call that
// waits for a slow Redis gets a flight of its own in time (see gapLocked).
type nodeQueue struct {
	queue *queue        // mu of the queue guards the fields below
	wake  chan struct{} // holds a value when an idle worker may take a flight

	waiting  []*call
	patience time.Duration // shortest wait of a caller of a waiting call, from put to until
	workers  int           // that run
	idle     int           // workers that wait for wake
	under    int           // flights under way
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
	tripMemory  = 16                   // round trips after which trip has forgotten two thirds of a long one
)

func newNodeQueue(q *queue) *nodeQueue {
	return &nodeQueue{
		queue: q, wake: make(chan struct{}, 1),
		trip: q.server.store.timeout, // until the first round trips: no call should wait too long for the others
	}
}

// appendLocked appends a call, and leaves it to the caller to nudge.
func (n *nodeQueue) appendLocked(c *call) {
	patience := c.until.Sub(c.put)
	if c.until.IsZero() {
		patience = n.queue.server.store.timeout
	}
	if len(n.waiting) == 0 {
		n.patience = patience
	}
	n.patience = min(n.patience, patience)
	n.waiting = append(n.waiting, c)
}

// closeLocked makes the workers return after the calls that wait are sent. The queue must be
// closed.
func (n *nodeQueue) closeLocked() {
	n.finishLocked()
	close(n.wake)
	if n.alarm != nil {
		n.alarm.Stop()
	}
}

// finishLocked has a worker take the waiting calls of a closed queue.
func (n *nodeQueue) finishLocked() {
	if len(n.waiting) > 0 && n.workers == 0 {
		n.workers++
		n.queue.sending.Go(n.run)
	}
}

// nudgeLocked has a worker take the waiting calls, now or when they may fly.
func (n *nodeQueue) nudgeLocked(now time.Time) {
	if len(n.waiting) == 0 || n.queue.closed || n.under >= n.mostLocked() {
		return // at the end of a flight its worker looks again
	}
	if at := n.nextLocked(); at.After(now) {
		n.ringLocked(at)
		return
	}
	if n.idle == 0 && n.workers < n.queue.most {
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
	if n.lost > n.queue.most/4 {
		return 1
	}
	return n.queue.most
}

// nextLocked returns when the waiting calls may fly. The number of flights must be below
// mostLocked.
func (n *nodeQueue) nextLocked() time.Time {
	if n.under < n.queue.atOnce {
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
	if half := n.queue.most / 2; n.under >= half {
		gap = max(gap, trip/time.Duration(half))
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

// ring is called by the alarm.
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
		sent, answered := f.fly(true)
		n.land(f, sent, answered)
	}
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
		if n.under >= n.mostLocked() {
			return false
		}
		if at := n.nextLocked(); at.After(now) {
			n.ringLocked(at)
			return false
		}
	}
	stay := n.waiting[:0]
	behind := map[uint64]int{} // keys of calls of the outbox that stay: later calls about them must stay behind
	for _, c := range n.waiting {
		if n.queue.about(c, n.queue.fenced) || n.queue.about(c, behind) {
			stay = append(stay, c)
			if c.outbox != nil {
				for _, key := range n.queue.appendKeys(nil, c) {
					behind[key]++
				}
			}
		} else {
			f.calls = append(f.calls, c)
		}
	}
	clear(n.waiting[len(stay):])
	n.waiting = stay
	if len(f.calls) == 0 {
		return false // until a flight with a fence ends
	}
	for _, c := range f.calls {
		if c.outbox != nil {
			n.queue.fenceLocked(f, c)
		}
	}
	n.under++
	n.begun, f.begun = now, now
	return true
}
