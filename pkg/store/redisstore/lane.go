package redisstore

import "time"

// lane is the calls of a queue to one node, or to the only server. While a flight is under way, calls wait for each other. So they share
// a round trip, a run of the script, and a read and a write of a key. While Redis answers fast, one flight after another is under
// way. A call that waits for a slow Redis gets a flight of its own in time (see gapLocked).
type lane struct {
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

func newLane(q *queue) *lane {
	return &lane{
		queue: q, wake: make(chan struct{}, 1),
		trip: q.server.store.timeout, // until the first round trips: no call should wait too long for the others
	}
}

// appendLocked appends a call, and leaves it to the caller to nudge.
func (l *lane) appendLocked(c *call) {
	patience := c.until.Sub(c.put)
	if c.until.IsZero() {
		patience = l.queue.server.store.timeout
	}
	if len(l.waiting) == 0 {
		l.patience = patience
	}
	l.patience = min(l.patience, patience)
	l.waiting = append(l.waiting, c)
}

// closeLocked makes the workers return after the calls that wait are sent. The queue must be closed.
func (l *lane) closeLocked() {
	l.finishLocked()
	close(l.wake)
	if l.alarm != nil {
		l.alarm.Stop()
	}
}

// finishLocked has a worker take the waiting calls of a closed queue.
func (l *lane) finishLocked() {
	if len(l.waiting) > 0 && l.workers == 0 {
		l.workers++
		l.queue.sending.Go(l.run)
	}
}

// nudgeLocked has a worker take the waiting calls, now or when they may fly.
func (l *lane) nudgeLocked(now time.Time) {
	if len(l.waiting) == 0 || l.queue.closed || l.under >= l.mostLocked() {
		return // at the end of a flight its worker looks again
	}
	if at := l.nextLocked(); at.After(now) {
		l.ringLocked(at)
		return
	}
	if l.idle == 0 && l.workers < l.queue.most {
		l.workers++
		l.queue.sending.Go(l.run)
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// mostLocked returns how many flights may be under way. A server that answers nothing gets one at a time: calls that nobody waits for
// lie on the connection, which has no endless room.
func (l *lane) mostLocked() int {
	if l.lost > l.queue.most/4 {
		return 1
	}
	return l.queue.most
}

// nextLocked returns when the waiting calls may fly. The number of flights must be below mostLocked.
func (l *lane) nextLocked() time.Time {
	if l.under == 0 {
		return l.follows
	}
	at := l.begun.Add(l.gapLocked())
	if at.Before(l.follows) {
		return l.follows
	}
	return at
}

// gapLocked returns the shortest time from the beginning of the newest flight to the next one. A call waits for others at
// most a quarter of the time that a round trip leaves its caller. A round trip of more than half of the caller's time leaves none. The
// second half of the flights is spread over a round trip, so that no call must wait for a whole one.
func (l *lane) gapLocked() (gap time.Duration) {
	trip := min(l.trip, l.patience)
	if trip <= l.patience/2 {
		gap = min((l.patience-trip)/4, longestGap)
	}
	if half := l.queue.most / 2; l.under >= half {
		gap = max(gap, trip/time.Duration(half))
	}
	return gap
}

// ringLocked sets the alarm to a time, unless it rings earlier.
func (l *lane) ringLocked(at time.Time) {
	switch {
	case l.queue.closed || !l.rings.IsZero() && !l.rings.After(at):
		return
	case l.alarm == nil:
		l.alarm = time.AfterFunc(time.Until(at), l.ring)
	default:
		l.alarm.Reset(time.Until(at))
	}
	l.rings = at
}

// ring is called by the alarm.
func (l *lane) ring() {
	l.queue.mu.Lock()
	defer l.queue.mu.Unlock()
	l.rings = time.Time{}
	l.nudgeLocked(time.Now())
}

// run is a worker: it sends flights as long as calls wait, or as the only one that waits for them.
func (l *lane) run() {
	f := l.queue.spareFlight()
	for l.take(f) {
		sent, answered := f.fly()
		l.land(f, sent, answered)
	}
}

// take waits until a flight may begin, and moves the calls that may fly into it. take returns false when no call is left for this
// worker and another worker waits already, or the queue is closed.
func (l *lane) take(f *flight) bool {
	l.queue.mu.Lock()
	defer l.queue.mu.Unlock()
	for {
		now := time.Now()
		if l.takeLocked(f, now) {
			return true
		}
		if l.queue.closed || l.idle > 0 {
			l.workers--
			l.queue.spare = append(l.queue.spare, f)
			return false
		}
		l.idle++
		l.queue.mu.Unlock()
		<-l.wake
		l.queue.mu.Lock()
		l.idle--
	}
}

// takeLocked is take without waiting.
func (l *lane) takeLocked(f *flight, now time.Time) bool {
	if len(l.waiting) == 0 {
		return false
	}
	if !l.queue.closed {
		if l.under >= l.mostLocked() {
			return false
		}
		if at := l.nextLocked(); at.After(now) {
			l.ringLocked(at)
			return false
		}
	}
	stay := l.waiting[:0]
	behind := map[uint64]int{} // keys of calls of the outbox that stay: later calls about them must stay behind
	for _, c := range l.waiting {
		if l.queue.about(c, l.queue.fenced) || l.queue.about(c, behind) {
			stay = append(stay, c)
			if c.outbox != nil {
				for _, key := range l.queue.appendKeys(nil, c) {
					behind[key]++
				}
			}
		} else {
			f.calls = append(f.calls, c)
		}
	}
	clear(l.waiting[len(stay):])
	l.waiting = stay
	if len(f.calls) == 0 {
		return false // until a flight with a fence ends
	}
	for _, c := range f.calls {
		if c.outbox != nil {
			l.queue.fenceLocked(f, c)
		}
	}
	l.under++
	l.begun, f.begun = now, now
	return true
}
