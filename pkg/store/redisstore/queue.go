package redisstore

import (
	"sync"
	"time"
)

// queue sends the calls of some keys to a server, in batches. Calls that come while a batch is under way wait for the next
// one. So the busier Redis is, the more requests share a round trip, a run of the script, and a read and a write of a key.
type queue struct {
	server *server
	wake   chan struct{} // holds a value when calls wait

	mu      sync.Mutex // guards waiting and closed
	waiting []*call
	closed  bool

	// Used by the goroutine of run alone.
	taken   []*call
	batches []*batch
	current map[uint16]*batch // by slot: the batch that takes more calls
}

func newQueue(s *server) *queue {
	return &queue{server: s, wake: make(chan struct{}, 1), current: make(map[uint16]*batch)}
}

// put appends a call. If the queue is closed put ends the call.
func (q *queue) put(c *call) {
	q.mu.Lock()
	closed := q.closed
	if !closed {
		q.waiting = append(q.waiting, c)
		if len(q.waiting) == 1 {
			select {
			case q.wake <- struct{}{}:
			default:
			}
		}
	}
	q.mu.Unlock()
	if closed {
		c.refused, c.err = true, errClosed
		c.end()
	}
}

// close makes run return after the calls that wait are sent.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.wake)
	}
}

// run sends calls until the queue is closed.
func (q *queue) run() {
	for open := true; open; {
		_, open = <-q.wake
		q.mu.Lock()
		q.taken, q.waiting = q.waiting, q.taken[:0]
		q.mu.Unlock()
		q.send()
		clear(q.taken)
	}
}

// send sends the taken calls and ends them.
func (q *queue) send() {
	used := 0
	clear(q.current)
	now := time.Now()
	for _, c := range q.taken {
		if !c.status.CompareAndSwap(waiting, sent) {
			continue // abandoned
		}
		if !c.until.IsZero() && now.Sub(c.put) > c.until.Sub(c.put)/2 {
			c.refused, c.err = true, errBehind
			c.end()
			continue
		}
		b := q.current[c.slot]
		if b == nil || !b.takes(c) {
			if used == len(q.batches) {
				q.batches = append(q.batches, newBatch(q.server))
			}
			b = q.batches[used]
			used++
			b.reset()
			q.current[c.slot] = b
		}
		b.add(c)
	}
	if used == 0 {
		return
	}
	q.server.execute(q.batches[:used])
	for _, b := range q.batches[:used] {
		b.reset()
	}
}
