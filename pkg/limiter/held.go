package limiter

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// held counts the holders of a rule that hold now, and the holders that have run out, in bounded
// memory. A span of time has the number of holders that will run out in it: a begin adds one, and
// an end takes one away. The rest of a span that has passed has run out. So a holder that runs out
// counts as held for up to a tenth of at_most longer, and until the next but one read. All methods
// are safe for concurrent use.
//
// All instants are of the store's clock. A holder may have begun at another process, or before the
// first event here. The end then takes one away from nothing. The sum over all processes is right.
type held struct {
	rings  atomic.Pointer[[]*ring] // by at_most, which a reload may change; never changed in place
	most   atomic.Int64            // the largest number that has run out so far
	adding sync.Mutex              // guards changes of rings
}

const (
	spansOfHold = 32              // in at_most
	spansOfRing = spansOfHold + 8 // the last ones that passed wait for an end that is being counted
	maxRings    = 8
)

// ring is the spans of the holders with one at_most.
type ring struct {
	atMost time.Duration
	width  algorithms.Instant // of a span, at least 1 ns
	since  algorithms.Instant // the first event; ends of earlier begins are left out

	spans  [spansOfRing]atomic.Int64 // by number, modulo the length
	passed atomic.Int64              // the number of the first span that has not passed
	live   atomic.Int64              // sum of the spans
	ranOut atomic.Int64              // sum of the spans that have passed

	mu     sync.Mutex         // guards all below, and the change of passed
	seen   algorithms.Instant // of the last begin that found a span to have passed
	read   algorithms.Instant // the last seen that a read has found
	readAt time.Time          // of that read, by the reader's clock
}

// begin counts a holder that begins at an instant.
func (h *held) begin(now algorithms.Instant, atMost time.Duration) {
	atMost = ofMicroseconds(atMost)
	r := h.ring(now, atMost)
	r.advance(now)
	r.add(now.Add(atMost), 1)
}

// end counts the end of a holder that held.
func (h *held) end(was algorithms.Hold) {
	if was.Until <= was.At {
		return // a store that cannot tell
	}
	r := h.ring(was.At, ofMicroseconds(was.Until.Sub(was.At)))
	if was.At >= r.since {
		r.add(was.Until, -1)
	}
}

// ofMicroseconds rounds a time up as stores do that count in microseconds.
func ofMicroseconds(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

// ring returns the ring of a time, which may be new.
func (h *held) ring(now algorithms.Instant, atMost time.Duration) *ring {
	if r := h.find(atMost); r != nil {
		return r
	}
	h.adding.Lock()
	defer h.adding.Unlock()
	if r := h.find(atMost); r != nil {
		return r
	}
	r := &ring{atMost: atMost, width: algorithms.Instant(max(atMost/spansOfHold, 1)), since: now}
	r.passed.Store(max(int64(now/r.width)-1, 0))
	r.seen = now
	var all []*ring
	if known := h.rings.Load(); known != nil {
		all = *known
	}
	if len(all) == maxRings {
		all = all[1:]
	}
	all = append(slices.Clone(all), r)
	h.rings.Store(&all)
	return r
}

func (h *held) find(atMost time.Duration) *ring {
	if all := h.rings.Load(); all != nil {
		for _, r := range *all {
			if r.atMost == atMost {
				return r
			}
		}
	}
	return nil
}

// advance counts the spans that have passed at an instant. The last one of these waits.
func (r *ring) advance(now algorithms.Instant) {
	until := int64(now/r.width) - 1
	if until <= r.passed.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = max(r.seen, now)
	r.passLocked(until)
}

// passLocked counts the spans before a number, which have passed. mu must be held.
func (r *ring) passLocked(until int64) {
	from := r.passed.Load()
	if until <= from {
		return
	}
	r.passed.Store(until)
	for n := from; n < min(until, from+spansOfRing); n++ {
		rest := r.spans[n%spansOfRing].Swap(0)
		r.live.Add(-rest)
		r.ranOut.Add(rest)
	}
}

// tell returns the sums at an instant of the reader's clock. Without a begin the store's clock goes
// on as the reader's does.
func (r *ring) tell(now time.Time) (live, ranOut int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.readAt.IsZero() || r.seen > r.read {
		r.read, r.readAt = r.seen, now
	}
	r.passLocked(int64(r.read.Add(now.Sub(r.readAt))/r.width) - 1)
	return r.live.Load(), r.ranOut.Load()
}

// add adds n holders that run out at an instant.
func (r *ring) add(until algorithms.Instant, n int64) {
	span := int64(until / r.width)
	if span < r.passed.Load() {
		r.ranOut.Add(n)
		return
	}
	r.spans[span%spansOfRing].Add(n)
	r.live.Add(n)
}

// read returns the number of holders that hold at an instant of the reader's clock, and the number
// that has run out.
func (h *held) read(at time.Time) (now int64, ranOut uint64) {
	all := h.rings.Load()
	if all == nil {
		return 0, 0
	}
	out := int64(0)
	for _, r := range *all {
		live, gone := r.tell(at)
		now, out = now+live, out+gone
	}
	for {
		most := h.most.Load()
		if out <= most {
			return now, uint64(most)
		}
		if h.most.CompareAndSwap(most, out) {
			return now, uint64(out)
		}
	}
}
