package owed

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Hits is hits of one state that Redis does not count. With windows these are the hits of one
// window. Without windows hits to charge are one entry, and hits to give back are one for each
// instant.
//
// A bucket owes its hits less the gain since: see level. A log owes its hits by their instants: see
// ages. A bucket gets back the hits less the gain since their own instant: a
// later instant would give back too much.
type Hits struct {
	charge store.Charge // Key and Limit
	here   bool         // instants are of this process's clock
	back   bool         // hits to give back, of an algorithm without windows
	fix    Fix          // of hits to give back
	at     algorithms.Instant
	sum    int64 // hits that wait: of a window, or to give back
	ages   ages  // the same of a log
	level  level // the same of a bucket
	under  int64 // hits to charge that are on the way, or of a request whose outcome is open

	oldest algorithms.Instant // of the hits that wait, or an earlier one; 0: none wait
	flying algorithms.Instant // the same of the hits under way
}

// Late is how hits that Redis does not count came about.
type Late struct {
	At   algorithms.Instant
	Here bool       // At is of this process's clock
	Fix  Fix        // of hits to give back; may be zero
	Part store.Part // of hits to charge to a bucket; see [store.Remote.Later]
}

// Chargeable reports whether Redis can have the hits of a charge. Costs are not learned later, and
// offenses not told later: a book keeps sums of hits.
func Chargeable(c *store.Charge) bool {
	sums := c.Limit.Algorithm != algorithms.Learned && c.Limit.Algorithm != algorithms.Escalation
	return c.Hits != 0 && sums && c.Limit.Period%Granularity == 0 && (c.Limit.Requests > 0 || c.Limit.Algorithm.HasState())
}

// Add adds the hits of a charge. Hits above the bounds are lost, or stay charged.
func (b *Book) Add(c *store.Charge, late Late) {
	switch {
	case Chargeable(c):
		if h := b.entry(c, late); h != nil {
			h.add(c, late)
			return
		}
	case c.Limit.Period%Granularity == 0:
		return
	}
	b.counts.lose(c.Hits)
}

// Open adds the hits of a request whose outcome is open: Owed has them, and no call tells them.
// Call Settle when the outcome is known. Open returns nil if there is no room.
func (b *Book) Open(c *store.Charge, at algorithms.Instant, here bool) *Hits {
	h := b.entry(c, Late{At: at, Here: here})
	if h != nil {
		h.under += c.Hits
		h.flying = earlier(h.flying, at)
	}
	return h
}

// Settle ends an Open of that many hits. An Add of the hits that Redis has not applied comes first.
func (b *Book) Settle(h *Hits, hits int64) {
	h.land(hits)
	h.tidy(b)
}

func (h *Hits) land(hits int64) {
	if h.under -= hits; h.under == 0 {
		h.flying = 0
	}
}

// earlier returns the earlier one of two instants. 0 is no instant.
func earlier(x, y algorithms.Instant) algorithms.Instant {
	if x == 0 || y != 0 && y < x {
		return y
	}
	return x
}

// Owed returns the hits of a key that matter at an instant, and that the answer of Redis at that
// instant does not have. Hits of holders that have begun count, too.
func (b *Book) Owed(c *store.Charge, now algorithms.Instant) (hits int64) {
	for _, h := range b.holders[string(c.Key)] {
		if h.name.algorithm == c.Limit.Algorithm && h.name.period == c.Limit.Period {
			hits += h.begun()
		}
	}
	for _, h := range b.hits[string(c.Key)] {
		if l := h.charge.Limit; l.Algorithm == c.Limit.Algorithm && l.Period == c.Limit.Period && now < h.ends() {
			hits += max(h.waiting(now), 0) + h.under
		}
	}
	return min(hits, algorithms.MaxCount)
}

// entry returns the entry of the hits of a charge; nil if there is no room.
func (b *Book) entry(c *store.Charge, late Late) *Hits {
	all := b.hits[string(c.Key)]
	for _, h := range all {
		if h.takes(c, &late) {
			if h.charge.Limit != c.Limit {
				b.rests = time.Time{}
			}
			return h
		}
	}
	if b.closed || b.nHits >= MostHits || c.Hits < 0 && len(all) >= mostBack {
		return nil
	}
	h := &Hits{
		charge: store.Charge{Key: slices.Clone(c.Key), Limit: c.Limit, CountRejected: true, Mode: store.Shadow},
		here:   late.Here, back: c.Hits < 0 && !windowed(c.Limit.Algorithm), at: late.At,
	}
	b.nHits++
	b.rests = time.Time{}
	if h.back {
		h.fix = late.Fix
		all = append(all, h)
	} else {
		all = slices.Insert(all, 0, h)
	}
	if b.hits == nil {
		b.hits = make(map[string][]*Hits)
	}
	b.hits[string(c.Key)] = all
	return h
}

// takes reports whether hits of a charge belong here.
func (h *Hits) takes(c *store.Charge, late *Late) bool {
	l := c.Limit
	switch {
	case h.charge.Limit.Algorithm != l.Algorithm || h.charge.Limit.Period != l.Period:
		return false
	case windowed(l.Algorithm):
		return sameWindow(l, h.at, late.At)
	case c.Hits < 0:
		return h.back && h.at == late.At && h.fix == late.Fix
	}
	return !h.back
}

// add adds the hits of a charge that takes has accepted.
func (h *Hits) add(c *store.Charge, late Late) {
	h.charge.Limit = c.Limit
	h.at = max(h.at, late.At)
	h.oldest = earlier(h.oldest, late.At)
	switch {
	case h.back || windowed(c.Limit.Algorithm):
		h.sum = max(min(h.sum+c.Hits, mostSum), -mostSum)
	case c.Limit.Algorithm == algorithms.SlidingWindowLog:
		h.ages.add(c.Limit, age{late.At, c.Hits}, h.at)
	default:
		h.level.add(c.Limit, late.Part, late.At, c.Hits)
	}
}

// Charge implements [Entry].
func (h *Hits) Charge() *store.Charge { return &h.charge }

// At implements [Entry].
func (h *Hits) At() algorithms.Instant { return h.at }

func (h *Hits) waits(now Clocks) bool { return h.waiting(h.now(now)) != 0 }

// Returns implements [Entry].
func (h *Hits) Returns() bool { return h.sum < 0 }

// waiting returns the hits that wait to be sent at an instant.
func (h *Hits) waiting(now algorithms.Instant) int64 {
	return h.sum + h.ages.sum() + h.level.left(now)
}

func (h *Hits) now(at Clocks) algorithms.Instant {
	if h.here {
		return at.Here
	}
	return at.Redis
}

// ends returns the instant from which the waiting hits do not matter.
func (h *Hits) ends() algorithms.Instant {
	last := ends(h.charge.Limit, h.at)
	switch {
	case h.level.added == 0:
		return last
	case h.under == 0:
		return h.level.ends()
	}
	return max(last, h.level.ends())
}

func (h *Hits) expire(b *Book, now Clocks) (gone bool) {
	at := h.now(now)
	if h.level.added == 0 {
		at -= algorithms.Instant(Overdue)
	}
	if at >= h.ends() {
		b.counts.Expired += size(h.forget())
		return h.tidy(b)
	}
	return false
}

// forget drops the waiting hits, and returns their sum, without the gain of a bucket.
func (h *Hits) forget() (hits int64) {
	hits = h.sum + h.ages.sum() + h.level.added
	h.sum, h.ages, h.level, h.oldest = 0, nil, level{}, 0
	return hits
}

// tell returns all hits: of a bucket at this instant, of a log by their ages, and otherwise at the
// newest instant.
func (h *Hits) tell(now Clocks) *Telling {
	t := &Telling{Entry: h, Of: h.at, Fix: h.fix, level: h.level}
	if t.Fix.Left == "" {
		t.Fix.Left = noValue
	}
	t.late(h, h.sum, h.at)
	for _, a := range h.ages {
		t.late(h, a.hits, a.at)
	}
	if at := h.now(now); h.level.added > 0 {
		t.late(h, h.level.tell(at), at)
		t.after = h.level.told
	}
	h.sum, h.ages = 0, nil
	h.under += t.positive()
	h.flying, h.oldest = earlier(h.flying, h.oldest), 0
	return t
}

// late adds hits of an instant to a telling.
func (t *Telling) late(h *Hits, hits int64, at algorithms.Instant) {
	for hits != 0 {
		c := h.charge
		c.Hits = max(min(hits, algorithms.MaxHits), -algorithms.MaxHits)
		hits -= c.Hits
		t.Charges, t.Instant = append(t.Charges, c), append(t.Instant, at-at%algorithms.Instant(Granularity))
	}
}

// positive returns the sum of the hits to charge.
func (t *Telling) positive() (hits int64) {
	for i := range t.Charges {
		hits += max(t.Charges[i].Hits, 0)
	}
	return hits
}

func (h *Hits) told(b *Book, t *Telling, o Outcome, now Clocks) {
	r := b.resets[string(h.charge.Key)]
	for i := range t.Charges {
		switch c := &t.Charges[i]; {
		case o == Applied:
		case r != nil:
			r.dropped.lose(c.Hits)
		case o == Unknown && c.Hits < 0 || b.closed:
			b.counts.lose(c.Hits)
		default:
			if o == Unknown {
				b.counts.Unknown += size(c.Hits)
			}
			if t.level.added == 0 {
				b.Add(c, Late{At: t.Instant[i], Here: h.here, Fix: h.fix})
			}
		}
	}
	switch again := o != Applied && r == nil && !b.closed; {
	case again:
		h.oldest = earlier(h.oldest, h.flying)
		if t.level.added == 0 {
			break
		}
		h.level.again(t.level, t.after, t.positive(), h.now(now))
	case o == Applied && t.level.added > 0:
		b.counts.Expired += uint64(t.level.added - min(t.level.added, t.positive()))
	}
	h.land(t.positive())
	h.tidy(b)
}

// tidy removes hits from the book if none are left, and reports whether none are.
func (h *Hits) tidy(b *Book) (gone bool) {
	if h.under != 0 || h.sum != 0 || len(h.ages) > 0 || h.level.added != 0 {
		return false
	}
	key := string(h.charge.Key)
	all := slices.DeleteFunc(b.hits[key], func(other *Hits) bool { return other == h })
	if len(all) == len(b.hits[key]) {
		return true // removed before
	}
	if b.hits[key] = all; len(all) == 0 {
		delete(b.hits, key)
	}
	b.nHits--
	return true
}

// windowed reports whether all hits of a window matter alike.
func windowed(a algorithms.Algorithm) bool {
	return a == algorithms.FixedWindow || a == algorithms.SlidingWindowCounter || a.HasCalendar()
}

// sameWindow reports whether two instants lie in one window. Windows that begin with first hits
// are not known here, so instants less than a period apart stand together.
func sameWindow(l algorithms.Limit, x, y algorithms.Instant) bool {
	if l.Calendar != nil && l.Calendar.FirstHit() {
		return max(x, y)-min(x, y) < algorithms.Instant(l.Period)
	}
	start, _ := l.WindowOf(x)
	other, _ := l.WindowOf(y)
	return start == other
}

// ends returns the instant from which hits of a window or of a log, or hits to give back, do not
// matter. A bucket in debt fills in two times the time of an empty one.
func ends(l algorithms.Limit, at algorithms.Instant) algorithms.Instant {
	life := l.Period
	if windowed(l.Algorithm) {
		start, end := l.WindowOf(at)
		at, life = start, end.Sub(start)
	}
	switch l.Algorithm {
	case algorithms.SlidingWindowCounter, algorithms.CalendarCounter:
		life *= 2
	case algorithms.TokenBucket, algorithms.TokenBucketInteger:
		life = gain(l, 2*l.Capacity())
	default:
	}
	return at.Add(min(life, algorithms.MaxPeriod))
}
