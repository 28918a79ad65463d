package top

import (
	"sync"
	"sync/atomic"
	"time"
)

// Slice is the time after which the tracked keys rotate.
const Slice = time.Minute / perMinute

// Tracker is a Sketch that rotates by the clock of this process, which steps of the wall clock do
// not move. A tracker needs no Close: a timer runs only while there are tracked keys. All methods
// are safe for concurrent use.
type Tracker struct {
	Sketch

	start   time.Time
	balance func()      // calls Balance; nil: there are no groups
	running atomic.Bool // the timer

	mu   sync.Mutex // guards last, and changes of running
	last time.Time  // the begin of the slice that goes on
}

// NewTracker returns a tracker with at least as many places, which must be more than 0. The tracker
// calls balance after each slice, one call at a time; nil means nothing to call. balance must not
// call the tracker.
func NewTracker(places int, balance func()) *Tracker {
	now := time.Now()
	t := &Tracker{start: now, balance: balance, last: now}
	t.open(places)
	return t
}

// Run starts the timer if it does not run. Callers call Run before they count.
func (t *Tracker) Run() {
	if !t.running.Load() {
		t.run()
	}
}

func (t *Tracker) run() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running.Load() {
		return
	}
	t.advanceLocked()
	t.running.Store(true)
	time.AfterFunc(time.Until(t.last.Add(Slice)), t.tick)
}

// tick rotates, and starts the timer again while there are keys.
func (t *Tracker) tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.advanceLocked()
	if t.Tracked() == 0 {
		t.running.Store(false)
		return
	}
	time.AfterFunc(time.Until(t.last.Add(Slice)), t.tick)
}

// advanceLocked ends the slices that are over.
func (t *Tracker) advanceLocked() {
	over := time.Since(t.last) / Slice
	t.last = t.last.Add(over * Slice)
	if over > 0 && t.balance != nil {
		t.balance()
	}
	for range min(over, 2*longest) { // by then every key is forgotten
		t.Rotate()
	}
}

// Top returns the tracked keys with hits in a window, in no order, and the time that the counts
// cover.
func (t *Tracker) Top(w Window) (keys []Key, covers time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.advanceLocked()
	covers = time.Since(t.last) + time.Duration(w.slices(t.slice.Load()-1))*Slice
	return t.Keys(w), min(covers, time.Since(t.start))
}
