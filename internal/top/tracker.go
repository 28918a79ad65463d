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

// Window is a time to look back.
type Window uint8

// The windows.
const (
	Minute Window = iota
	TenMinutes
)

// slices returns the slices of a window that have ended. last is the last slice that has ended.
func (w Window) slices(last uint64) uint64 {
	if w == TenMinutes {
		return minutes*perMinute + last%perMinute
	}
	return perMinute - 1
}

// Key is a tracked key.
//
// The counts are of hits that were seen. Of more than exactHits in a slice the further ones are
// sampled, with a standard error of less than 0.2 percent. Hits from before the key became tracked
// may be missing. With the probability 0.95 fewer than HitsError hits and DeniedError denied hits
// are missing; 0: none is. Hits that race with the replacement of a key may be lost, or count for
// the other key; that is rare.
type Key struct {
	Hash                uint64
	Text                []byte // the first 512 bytes; belongs to the caller
	Cut                 bool   // the text was longer
	Hits, HitsError     uint64 // in the window, denied ones included
	Denied, DeniedError uint64 // in the window
	Remaining           uint32 // by the last decision
	Capacity            uint32 // of the limit of the last decision
}

// Keys returns the tracked keys with hits in a window, in no order.
func (s *Sketch) Keys(w Window) []Key {
	var all []Key
	for n := range s.buckets {
		b := &s.buckets[n]
		b.mu.Lock()
		last := s.slice.Load() - 1
		for way := range ways {
			i, e := n*ways+way, &b.entries[way]
			hash := s.heads[i].hash.Load()
			if hash == 0 {
				continue
			}
			word, denied := s.heads[i].now.Load(), s.heads[i].denied.Load()
			now := cell{e.carried + word>>32 + denied, denied}
			sum, missing := e.window(w, last)
			if sum.add(now); sum.hits == 0 {
				continue
			}
			all = append(all, Key{
				Hash: hash, Text: append([]byte(nil), e.text...), Cut: e.cut,
				Hits: sum.hits, HitsError: missing.hits, Denied: sum.denied, DeniedError: missing.denied,
				Remaining: uint32(word), Capacity: s.heads[i].limit.Load(),
			})
		}
		b.mu.Unlock()
	}
	return all
}

// Tracked returns the number of tracked keys.
func (s *Sketch) Tracked() int {
	n := 0
	for i := range s.heads {
		if s.heads[i].hash.Load() != 0 {
			n++
		}
	}
	return n
}

// Group is the keys of one rule. Where a group has fewer hits than the mean of all groups, its hits
// weigh more. Else the keys of one busy rule would push out the keys of all others. The zero value
// is ready, and its hits weigh 1.
type Group struct {
	weight atomic.Uint64 // of a hit; 0 means 1
	tries  atomic.Uint64 // of keys to replace others, since the last Balance
	most   atomic.Uint64 // tries with this weight; after these a hit weighs 1 until the next Balance, for a quiet group has become a busy one

	// For Balance alone.
	total  uint64 // hits until the last call
	recent uint64 // hits of about a minute
}

const (
	maxGroupWeight = 256 // of a hit

	// Bounds of Group.most. Between them the tries weigh no more together than the hits of a mean
	// group in a minute. So few clients cannot push out the keys of all other groups with random keys
	// of a quiet one.
	leastTries = 16
	mostTries  = 5000
)

// weigh returns the weight of a hit of the group, which may be nil.
func (g *Group) weigh() uint64 {
	if g == nil || g.tries.Load() > g.most.Load() {
		return 1
	}
	return max(g.weight.Load(), 1)
}

// try counts a try of a key of the group, which may be nil.
func (g *Group) try() {
	if g != nil {
		g.tries.Add(1)
	}
}

// Balance gives the groups new weights. totals[i] is the hits of groups[i] since the start. Balance
// is called once in a Slice, by one goroutine at a time.
func Balance(groups []*Group, totals []uint64) {
	var sum, active uint64
	for i, g := range groups {
		now := totals[i] - min(g.total, totals[i])
		g.total = totals[i]
		g.recent = g.recent - (g.recent+perMinute-1)/perMinute + now
		if g.recent > 0 {
			sum, active = sum+g.recent, active+1
		}
	}
	mean := sum / max(active, 1)
	for _, g := range groups {
		weight := min(max(mean/max(g.recent, 1), 1), maxGroupWeight)
		g.weight.Store(weight)
		g.most.Store(min(max(mean/weight, leastTries), mostTries))
		g.tries.Store(0)
	}
}
