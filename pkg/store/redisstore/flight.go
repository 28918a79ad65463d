package redisstore

import (
	"hash/maphash"
	"time"
)

// flight is the calls that a worker sends at once, and the worker's memory for them.
type flight struct {
	server  *server
	begun   time.Time
	calls   []*call
	fences  []uint64 // keys of calls of the outbox
	batches []*batch
	current map[uint16]*batch // by slot: the batch that takes more calls
}

// fly sends the calls and ends them. patient is for execute. fly reports whether a call was left to
// send, and whether Redis has answered a call.
func (f *flight) fly(patient bool) (sentSome, answered bool) {
	used := 0
	clear(f.current)
	for _, c := range f.calls {
		if !c.until.IsZero() && !f.begun.Before(c.until) {
			continue // the caller is about to abandon the call
		}
		if !c.status.CompareAndSwap(waiting, sent) {
			continue // abandoned
		}
		b := f.current[c.slot]
		if b == nil || !b.takes(c) {
			if used == len(f.batches) {
				f.batches = append(f.batches, newBatch(f.server))
			}
			b = f.batches[used]
			used++
			b.reset()
			f.current[c.slot] = b
		}
		b.add(c)
	}
	if used > 0 {
		answered = f.server.execute(f.batches[:used], patient)
	}
	for _, b := range f.batches[:used] {
		b.reset()
	}
	clear(f.calls)
	f.calls = f.calls[:0]
	return used > 0, answered
}

// fly sends the calls of a flight that [queue.appendAll] gave to its caller.
func (n *nodeQueue) fly(f *flight) {
	q := n.queue
	defer q.sending.Done()
	sent, answered := f.fly(false)
	n.land(f, sent, answered)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.spare = append(q.spare, f)
	n.nudgeLocked(time.Now())
}

// land ends a flight. sent says that the flight had calls to send, and answered that Redis has
// answered one of them.
func (n *nodeQueue) land(f *flight, sent, answered bool) {
	took := time.Since(f.begun)
	q := n.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	n.under--
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
		q.nudgeLocked(n) // calls about the keys may be in another node queue, since slots have changed their nodes
	}
	f.fences = f.fences[:0]
}

// about reports whether a call is about one of the keys, by hash.
func (q *queue) about(c *call, keys map[uint64]int) bool {
	if len(keys) == 0 {
		return false
	}
	for i := range c.charges {
		if keys[q.hash(c, i)] > 0 {
			return true
		}
	}
	return false
}

// appendKeys appends the keys of a call, by hash.
func (q *queue) appendKeys(to []uint64, c *call) []uint64 {
	for i := range c.charges {
		to = append(to, q.hash(c, i))
	}
	return to
}

// fenceLocked holds later calls about the keys of a call until the flight ends.
func (q *queue) fenceLocked(f *flight, c *call) {
	before := len(f.fences)
	f.fences = q.appendKeys(f.fences, c)
	for _, key := range f.fences[before:] {
		q.fenced[key]++
	}
}

// hash returns a number for the key of charge i. Two keys with one number only wait for each other.
func (q *queue) hash(c *call, i int) uint64 {
	return maphash.Bytes(q.server.store.seed, c.charges[i].Key)
}
