package watch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	adminv1 "github.com/weirproxy/weir/proto/weir/admin/v1"
)

// gather is the time for which Next waits for more after a first request: a message for each would
// cost more than the requests.
const gather = 50 * time.Millisecond

// maxMessage bounds the requests of one message by their memory, in bytes. A larger request comes
// alone. The server holds one message beside the queue while a client does not read.
const maxMessage = 64 << 10

// Watcher receives the requests that its filter chooses. One goroutine at a time may call Next and
// Close.
type Watcher struct {
	hub    *Hub
	filter filter
	oneIn  uint32
	pace   *pace
	wake   chan struct{} // has an element when requests wait

	leftOut, lost atomic.Uint64 // since the last message
	waiting       atomic.Int64  // bytes of the requests that wait, and of those about to

	mu     sync.Mutex // guards the rest
	queue  []*event
	closed bool
}

// reserve makes room for a request in the queue, or counts it as lost and reports false.
func (w *Watcher) reserve(bytes int64) bool {
	if bytes <= maxEvent {
		if w.waiting.Add(bytes) <= w.hub.share.Load() {
			return true
		}
		w.waiting.Add(-bytes)
		w.lost.Add(1)
		return false
	}
	w.lost.Add(1)
	w.wakeUp() // nothing else may come
	return false
}

// put adds a request that has room.
func (w *Watcher) put(e *event) {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	w.queue = append(w.queue, e)
	first := len(w.queue) == 1
	w.mu.Unlock()
	if first {
		w.wakeUp()
	}
}

func (w *Watcher) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Next waits for requests and returns the next message, or the error of ctx. A first request waits
// up to 50 ms for others.
func (w *Watcher) Next(ctx context.Context) (*adminv1.WatchResponse, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.wake:
	}
	if w.waiting.Load() < maxMessage {
		timer := time.NewTimer(gather)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-timer.C:
		}
	}
	return message(w.hub.options.Rules, w.take(), w.leftOut.Swap(0), w.lost.Swap(0)), nil
}

// take returns the first requests of the queue, as many as a message may have.
func (w *Watcher) take() []*event {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, bytes := 0, 0
	for n < len(w.queue) && (n == 0 || bytes+w.queue[n].size <= maxMessage) {
		bytes += w.queue[n].size
		n++
	}
	taken := w.queue[:n:n]
	w.queue = w.queue[n:]
	if len(w.queue) == 0 {
		w.queue = nil
	} else {
		w.wakeUp()
	}
	w.waiting.Add(-int64(bytes))
	return taken
}

// Close ends the watch. A second Close does nothing.
func (w *Watcher) Close() {
	w.mu.Lock()
	was := w.closed
	w.closed, w.queue = true, nil
	w.mu.Unlock()
	if !was {
		w.hub.leave(w)
	}
}
