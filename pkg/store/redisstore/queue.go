package redisstore

import (
	"sync"
	"time"
)

// queue sends the calls of some keys to a server, in flights: the batches of all calls that wait. While a flight is under way, calls
// wait for each other. So they share a round trip, a run of the script, and a read and a write of a key. While Redis answers
// fast, one flight after another is under way. A call that waits for a slow Redis gets a flight of its own in time (see gapLocked).
//
// Calls about one key may be applied in any order, except after a call of the outbox. Later calls about the keys of that call wait for
// its end, or are in the same flight behind it.
type queue struct {
	server  *server
	most    int             // flights under way at once, and workers
	sending *sync.WaitGroup // of the workers
	wake    chan struct{}   // holds a value when an idle worker may take a flight

	mu       sync.Mutex // guards the fields below
	waiting  []*call
	patience time.Duration  // shortest wait of a caller of a waiting call, from put to until
	workers  int            // that run
	idle     int            // workers that wait for wake
	under    int            // flights under way
	lost     int            // flights since the last answer that ended without one
	begun    time.Time      // when the newest flight began
	trip     time.Duration  // the longest of the last round trips, as gapLocked reckons
	follows  time.Time      // until when the newest call waits for the call that follows it; zero: none does
	alarm    *time.Timer    // rings when waiting calls may fly; nil until the first use
	rings    time.Time      // when the alarm rings; zero: it does not
	fenced   map[uint64]int // by number of a key: flights with a call of the outbox about it
	spare    []*flight      // memory of workers that have ended, at most as many as there may be flights
	closed   bool
}

const (
	longestGap  = 5 * time.Millisecond // for which calls wait for each other
	followsSoon = time.Millisecond     // within which a request follows the hits that come before it
	tripMemory  = 16                   // round trips after which trip has forgotten two thirds of a long one
)

func newQueue(s *server, most int, sending *sync.WaitGroup) *queue {
	return &queue{
		server: s, most: most, sending: sending, wake: make(chan struct{}, 1), fenced: map[uint64]int{},
		trip: s.store.timeout, // until the first round trips: no call should wait too long for the others
	}
}

// put appends a call. If the queue is closed put ends the call.
func (q *queue) put(c *call) { q.append(c, false) }

// putBefore is put for a call that another call follows at once. Both then mostly share a flight.
func (q *queue) putBefore(c *call) { q.append(c, true) }

func (q *queue) append(c *call, followed bool) {
	now, patience := c.put, c.until.Sub(c.put)
	if c.until.IsZero() {
		now, patience = time.Now(), q.server.store.timeout
	}
	q.mu.Lock()
	closed := q.closed
	if !closed {
		if len(q.waiting) == 0 {
			q.patience = patience
		}
		q.patience = min(q.patience, patience)
		q.waiting = append(q.waiting, c)
		q.follows = time.Time{}
		if followed {
			q.follows = now.Add(followsSoon)
		}
		q.nudgeLocked(now)
	}
	q.mu.Unlock()
	if closed {
		c.refused, c.err = true, errClosed
		c.end()
	}
}

// close makes the workers return after the calls that wait are sent.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		if len(q.waiting) > 0 && q.workers == 0 { // the alarm would have started one
			q.workers++
			q.sending.Go(q.run)
		}
		q.closed = true
		close(q.wake)
		if q.alarm != nil {
			q.alarm.Stop()
		}
	}
}

// nudgeLocked has a worker take the waiting calls, now or when they may fly.
func (q *queue) nudgeLocked(now time.Time) {
	if len(q.waiting) == 0 || q.closed || q.under >= q.mostLocked() {
		return // at the end of a flight its worker looks again
	}
	if at := q.nextLocked(); at.After(now) {
		q.ringLocked(at)
		return
	}
	if q.idle == 0 && q.workers < q.most {
		q.workers++
		q.sending.Go(q.run)
		return
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// mostLocked returns how many flights may be under way. A server that answers nothing gets one at a time: calls that nobody waits for
// lie on the connection, which has no endless room.
func (q *queue) mostLocked() int {
	if q.lost > q.most/4 {
		return 1
	}
	return q.most
}

// nextLocked returns when the waiting calls may fly. The number of flights must be below mostLocked.
func (q *queue) nextLocked() time.Time {
	if q.under == 0 {
		return q.follows
	}
	at := q.begun.Add(q.gapLocked())
	if at.Before(q.follows) {
		return q.follows
	}
	return at
}

// gapLocked returns the shortest time from the beginning of the newest flight to the next one. A call waits for others at
// most a quarter of the time that a round trip leaves its caller. A round trip of more than half of the caller's time leaves none. The
// second half of the flights is spread over a round trip, so that no call must wait for a whole one.
func (q *queue) gapLocked() (gap time.Duration) {
	trip := min(q.trip, q.patience)
	if trip <= q.patience/2 {
		gap = min((q.patience-trip)/4, longestGap)
	}
	if half := q.most / 2; q.under >= half {
		gap = max(gap, trip/time.Duration(half))
	}
	return gap
}

// ringLocked sets the alarm to a time, unless it rings earlier.
func (q *queue) ringLocked(at time.Time) {
	switch {
	case q.closed || !q.rings.IsZero() && !q.rings.After(at):
		return
	case q.alarm == nil:
		q.alarm = time.AfterFunc(time.Until(at), q.ring)
	default:
		q.alarm.Reset(time.Until(at))
	}
	q.rings = at
}

// ring is called by the alarm.
func (q *queue) ring() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rings = time.Time{}
	q.nudgeLocked(time.Now())
}

// spareFlight returns the memory of a worker that has ended, or new memory.
func (q *queue) spareFlight() *flight {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.spare); n > 0 {
		f := q.spare[n-1]
		q.spare = q.spare[:n-1]
		return f
	}
	return &flight{server: q.server, current: make(map[uint16]*batch)}
}

// run is a worker: it sends flights as long as calls wait, or as the only one that waits for them.
func (q *queue) run() {
	f := q.spareFlight()
	for q.take(f) {
		sent, answered := f.fly()
		q.land(f, sent, answered)
	}
}

// take waits until a flight may begin, and moves the calls that may fly into it. take returns false when no call is left for this
// worker and another worker waits already, or the queue is closed.
func (q *queue) take(f *flight) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		now := time.Now()
		if q.takeLocked(f, now) {
			return true
		}
		if q.closed || q.idle > 0 {
			q.workers--
			q.spare = append(q.spare, f)
			return false
		}
		q.idle++
		q.mu.Unlock()
		<-q.wake
		q.mu.Lock()
		q.idle--
	}
}

// takeLocked is take without waiting.
func (q *queue) takeLocked(f *flight, now time.Time) bool {
	if len(q.waiting) == 0 {
		return false
	}
	if !q.closed {
		if q.under >= q.mostLocked() {
			return false
		}
		if at := q.nextLocked(); at.After(now) {
			q.ringLocked(at)
			return false
		}
	}
	stay := q.waiting[:0]
	behind := map[uint64]int{} // keys of calls of the outbox that stay: later calls about them must stay behind
	for _, c := range q.waiting {
		if q.about(c, q.fenced) || q.about(c, behind) {
			stay = append(stay, c)
			if c.outbox != nil {
				for _, key := range q.appendKeys(nil, c) {
					behind[key]++
				}
			}
		} else {
			f.calls = append(f.calls, c)
		}
	}
	clear(q.waiting[len(stay):])
	q.waiting = stay
	if len(f.calls) == 0 {
		return false // until a flight with a fence ends
	}
	for _, c := range f.calls {
		if c.outbox != nil {
			q.fenceLocked(f, c)
		}
	}
	q.under++
	q.begun, f.begun = now, now
	return true
}
