package storetest

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Intervals changes a limit that often between each two algorithms, under load, and checks each
// interval that ends with an admitted request. For two minutes after a change a second process has
// the rules before. docs/semantics.md 11.2 has the two bounds.
func Intervals(t *testing.T, e Env, changes int) {
	for i, a := range EveryRate() {
		for j, b := range EveryRate() {
			seed := uint64(i*100 + j)
			w := &changing{e: e, r: rand.New(rand.NewPCG(seed, 3)), key: fmt.Sprint("pair ", seed)}
			for n := range changes {
				w.change([]algorithms.Algorithm{a, b}[n%2])
				for range 2 + w.r.IntN(10) {
					if over := w.charge(t); over != "" {
						t.Fatalf("%v to %v, seed %d, change %d: %s", a, b, seed, n, over)
					}
				}
			}
		}
	}
}

// rollout is how long other processes have the rules before a change.
const rollout = 2 * time.Minute

// changing is a key whose limit changes, and a plain history of its admitted hits.
type changing struct {
	e        Env
	r        *rand.Rand
	key      string
	now, was view // of a process with the new rules, and with the rules before
	changed  algorithms.Instant
	limits   []algorithms.Limit // of all changes
	apart    []bool             // of each: all processes had the rules before
	admitted []admission
}

// view is the limits of a process: the newest one, and the limits before.
type view struct {
	at      int // in limits
	formers []replaced
}

type replaced struct {
	limit algorithms.Limit
	at    algorithms.Instant
}

type admission struct {
	at     algorithms.Instant
	hits   uint64
	limit  int // in limits
	newest int // the limit of processes with the new rules
}

// change gives the key another limit.
func (w *changing) change(a algorithms.Algorithm) {
	l := algorithms.Limit{
		Algorithm: a, Requests: []uint32{1, 2, 5, 20, 100}[w.r.IntN(5)],
		Period: []time.Duration{time.Second, 7 * time.Second, time.Minute, 90 * time.Second}[w.r.IntN(4)],
	}
	switch {
	case a == algorithms.TokenBucket:
		l.Burst = []uint32{0, 1, 10, 100}[w.r.IntN(4)]
	case a.HasCalendar():
		spec := algorithms.CalendarSpec{Unit: algorithms.CalendarDay, Count: 1, FirstHit: w.r.IntN(2) == 0}
		if !spec.FirstHit {
			l.Period, spec.At = 24*time.Hour, time.Duration(w.r.IntN(24))*time.Hour
		}
		l.Calendar, _ = algorithms.NewCalendar(spec) // the description is valid
	}
	if w.r.IntN(2) == 0 {
		w.e.Sleep(rollout)
	}
	now := w.e.Now()
	var formers []replaced
	if len(w.limits) > 0 {
		formers = append(slices.Clone(w.now.formers), replaced{w.limits[w.now.at], now})
	}
	formers = slices.DeleteFunc(formers, func(f replaced) bool {
		return keyOf(w.key, f.limit) == keyOf(w.key, l) || now > f.at.Add(rollout+algorithms.Life(f.limit, algorithms.Count))
	})
	w.apart = append(w.apart, now >= w.changed.Add(rollout))
	w.was, w.now, w.changed = w.now, view{len(w.limits), formers[max(0, len(formers)-3):]}, now
	w.limits = append(w.limits, l)
}

// keyOf is keyUnder with the calendar.
func keyOf(key string, l algorithms.Limit) string {
	if l.Calendar == nil {
		return keyUnder(key, l)
	}
	s := l.Calendar.Spec()
	return fmt.Sprint(keyUnder(key, l), s.FirstHit, s.At)
}

// charge lets some time pass, mostly little, and takes hits. The result is an interval with too
// many; "" without one.
func (w *changing) charge(t *testing.T) string {
	v := w.now
	if len(w.limits) > 1 && w.e.Now() < w.changed.Add(rollout) && w.r.IntN(3) == 0 {
		v = w.was
	}
	l := w.limits[v.at]
	w.e.Sleep([]time.Duration{0, 0, 10 * time.Millisecond, 200 * time.Millisecond, time.Second, time.Duration(w.r.Int64N(int64(3*l.Period) / 8))}[w.r.IntN(6)])
	now := w.e.Now()
	c := charge(keyOf(w.key, l), l)
	c.CountRejected = w.r.IntN(8) == 0
	c.Hits = []int64{1, 1, 2, 5, int64(l.Capacity())}[w.r.IntN(5)]
	for _, f := range v.formers {
		if now < f.at.Add(rollout+algorithms.Life(f.limit, algorithms.Count)) {
			both := now < f.at.Add(rollout)
			c.Before = append(c.Before, store.Former{Key: []byte(keyOf(w.key, f.limit)), Limit: f.limit, Both: both})
			c.Exact = c.Exact || both
		}
	}
	admitted, _ := w.e.take(t, c)
	if !admitted {
		return ""
	}
	w.admitted = append(w.admitted, admission{now, uint64(c.Hits), v.at, w.now.at})
	return w.over(now)
}

// over returns an interval that ends now and has too many hits; "" without one.
func (w *changing) over(now algorithms.Instant) string {
	recent := w.admitted[max(0, len(w.admitted)-400):]
	first, last := len(w.limits), 0
	hits, turns := uint64(0), 0
	var b bound
	for i, a := range slices.Backward(recent) {
		if i+1 < len(recent) && recent[i+1].limit != a.limit {
			turns++
		}
		if a.limit < first || a.newest > last || turns > 1 {
			first, last = min(first, a.limit), max(last, a.newest)
			b = w.bound(first, last, turns)
		}
		d := now.Sub(a.at)
		if hits += a.hits; hits > b.most(d) {
			return fmt.Sprintf("%d hits in %v, at most %d may pass under %+v, used in %d turns", hits, d, b.most(d), b.limits, turns+1)
		}
	}
	return ""
}

// bound returns the bound under limits that were used in turns. Where a change came before all had
// the rules of the one before, limits back to that one matter, too.
func (w *changing) bound(first, last, turns int) bound {
	b := bound{several: turns > 1 || last > first+1}
	for n := last; n > first; n-- {
		b.several = b.several || !w.apart[n]
	}
	for first > 0 && !w.apart[first] {
		b.several = true
		first--
	}
	b.limits = w.limits[first : last+1]
	return b
}

// bound is how many hits may pass in an interval under some limits.
type bound struct {
	limits  []algorithms.Limit
	several bool // more than one change, or processes that go on with two rules
}

// most returns the bound in an interval of length d. After one change it is the largest capacity
// and the gain of the largest rate. A window can end, so each limit of a window adds its hits.
// Where processes go on with two rules, limits forget in turns. A small limit between two others
// keeps no more hits than its capacity. So then all limits add up.
func (b *bound) most(d time.Duration) uint64 {
	capacity, gain, sum, ends := uint64(0), uint64(0), uint64(0), uint64(0)
	for _, l := range b.limits {
		hi, lo := bits.Mul64(uint64(d), uint64(l.Requests))
		gained, _ := bits.Div64(hi, lo, uint64(l.Period))
		gained += 2 // rounded up; a bucket in whole tokens is full a nanosecond early
		capacity, gain = max(capacity, l.Capacity()), max(gain, gained)
		sum += l.Capacity() + gained
		if !isBucket(l.Algorithm) && l.Algorithm != algorithms.SlidingWindowLog {
			ends += l.Capacity()
		}
	}
	if b.several {
		return sum + ends
	}
	return capacity + gain + ends
}
