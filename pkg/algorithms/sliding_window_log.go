package algorithms

import (
	"math"
	"math/bits"
	"sort"
	"time"
)

// SlidingWindowLog admits Requests hits in any half-open interval of length Period, exactly: the
// hits of (now-Period, now]. A key holds every instant of an admitted hit, and so takes memory of
// the order of Requests.
const SlidingWindowLog Algorithm = 3

// Log is the state of sliding_window_log for one key: the admitted hits and their instants, newest
// last. The zero value is a key never used. A log has at most 2*Requests entries of 16 bytes, and
// allocates when it grows. A log that has shrunk to an eighth gives memory back. Not safe for
// concurrent use.
type Log struct {
	ring []logged // a power of two long; the entries are head, head+1, … (mod length)
	head int
	len  int
	hits uint64  // of all entries
	last Instant // of the last charge
	own  *owned  // see Continue; nil: no hits are known to be of this process
}

// logged is hits admitted at one instant, at least 1.
type logged struct {
	at   Instant
	hits uint64
}

const (
	logEntry   = 16 // bytes of a logged
	logShrinks = 16 // entries of the smallest ring that gives memory back; a smaller one would save less than the work costs
)

// Pending is hits that [Log.Decide] has decided on and [Log.Apply] has not yet put into the log. So
// a store can decide several charges of one key one after another and still drop all of them. The
// zero value has no hits.
type Pending struct {
	added    uint64 // hits at the instant of the decision
	refunded uint64 // hits given back of the newest that the log holds
	charged  bool   // there was a charge, though all of it may have been given back since
}

// Adds reports whether applying p puts hits into the log.
func (p Pending) Adds() bool { return p.added > 0 }

// Unused reports whether the log is empty, so that a store need not keep it.
func (g *Log) Unused() bool { return g.len == 0 }

// Take applies hits at instant now and returns the decision: [Log.Decide] and [Log.Apply] in one.
// The function Take explains the arguments; with countRejected the hits in the log reach at most
// 2*Requests.
func (g *Log) Take(l Limit, now Instant, hits int64, countRejected bool) Decision {
	p, d := g.Decide(l, now, Pending{}, hits, countRejected)
	g.Apply(l, now, p)
	return d
}

// Decide decides on hits on top of p, and returns p with these hits and the decision. Decide does
// not change the log.
func (g *Log) Decide(l Limit, now Instant, p Pending, hits int64, countRejected bool) (Pending, Decision) {
	if l.Period <= 0 {
		return p, Decision{}
	}
	hits = min(max(hits, -MaxCount), MaxCount)
	asked := now
	now = g.held(now)
	first, logged := g.live(l.Period, now)
	limit := uint64(l.Requests)
	used := logged - min(p.refunded, logged) + p.added
	d := Decision{Allowed: true}

	switch {
	case hits < 0:
		back := min(uint64(-hits), used)
		fromAdded := min(back, p.added)
		p.added -= fromAdded
		p.refunded += back - fromAdded
		p.charged = p.charged || back > 0
		used -= back
	case used <= limit && uint64(hits) <= limit-used:
		p.added += uint64(hits)
		p.charged = p.charged || hits > 0
		used += uint64(hits)
	case hits > 0 && limit == 0:
		return p, refused(l.Period).later(now.Sub(asked))
	default:
		d.Allowed = false
		if countRejected && used < 2*limit {
			counted := min(uint64(hits), 2*limit-used)
			p.added += counted
			p.charged = p.charged || counted > 0
			used += counted
		}
	}
	if used < limit {
		d.Remaining = limit - used
	}
	if used > 0 {
		d.ResetAfter = g.reset(l.Period, now, p)
	}
	switch {
	case d.Allowed:
	case uint64(hits) > limit:
		d.RetryAfter = never(l, d.ResetAfter)
	default:
		d.RetryAfter = g.retry(l.Period, now, first, used-p.added, used+uint64(hits)-limit)
	}
	if asked < now {
		d = d.later(now.Sub(asked))
	}
	return p, d
}

// Apply puts pending hits, decided on at instant now, into the log and drops expired entries.
func (g *Log) Apply(l Limit, now Instant, p Pending) {
	if p.charged {
		g.apply(l, now, p)
		g.shrink()
	}
}

// ApplyInPlace is Apply for a log that must not grow. Where Apply would grow the log, the hits join
// the newest entry, and the instant of that entry becomes now. So hits expire later than they
// should, and never sooner. A log without entries has no entry to join, and must not need one.
func (g *Log) ApplyInPlace(l Limit, now Instant, p Pending) {
	if g.SizeAfter(l, now, p) > g.Size() && g.len > 0 {
		g.at(g.len - 1).at = g.held(now)
	}
	g.Apply(l, now, p)
}

// SizeAfter returns an upper bound of Size after Apply with the same arguments: Size, or more if
// Apply makes the log grow.
func (g *Log) SizeAfter(l Limit, now Instant, p Pending) int {
	if g.len < len(g.ring) || p.added == 0 {
		return g.Size()
	}
	if g.len > 0 {
		now = g.held(now)
		newest := g.at(g.len - 1)
		if newest.at == now || newest.hits <= p.refunded || g.expired(l.Period, g.at(0), now) {
			return g.Size()
		}
	}
	return g.sizeWith(g.grown())
}

// apply is Apply for a charge, without giving memory back.
func (g *Log) apply(l Limit, now Instant, p Pending) {
	now = g.held(now)
	g.last = now
	for g.len > 0 && g.expired(l.Period, g.at(0), now) {
		g.hits -= g.at(0).hits
		g.head = (g.head + 1) & (len(g.ring) - 1)
		g.len--
	}
	for p.refunded > 0 && g.len > 0 {
		newest := g.at(g.len - 1)
		back := min(newest.hits, p.refunded)
		newest.hits -= back
		g.hits -= back
		p.refunded -= back
		if newest.hits == 0 {
			g.len--
		}
	}
	if p.added == 0 {
		return
	}
	g.hits += p.added
	if g.len > 0 && g.at(g.len-1).at == now {
		g.at(g.len - 1).hits += p.added
		return
	}
	g.push(logged{at: now, hits: p.added})
}

// IdleAt returns the instant from which the key is idle.
func (g *Log) IdleAt(l Limit) Instant {
	if g.len == 0 {
		return math.MinInt64
	}
	return g.at(g.len - 1).at.Add(l.Period)
}

// Size returns the memory that the log holds beyond the Log itself, in bytes.
func (g *Log) Size() int { return g.sizeWith(len(g.ring)) }

// sizeWith is Size with a ring of that length.
func (g *Log) sizeWith(length int) int {
	size := logEntry * length
	if g.own != nil {
		size += ownedBytes
	}
	return size
}

// held returns now held at the last charge.
func (g *Log) held(now Instant) Instant {
	if g.len == 0 {
		return now
	}
	return max(now, g.last)
}

// at returns the i-th oldest entry; i is less than g.len.
func (g *Log) at(i int) *logged { return &g.ring[(g.head+i)&(len(g.ring)-1)] }

// expired reports whether an entry no longer counts at now. An entry at now-Period has expired.
func (g *Log) expired(period time.Duration, e *logged, now Instant) bool {
	return past(e.at, now) >= uint64(period)
}

// left returns the wait until an entry that still counts at now has expired.
func (g *Log) left(period time.Duration, e *logged, now Instant) time.Duration {
	return period - time.Duration(past(e.at, now))
}

// live returns the first entry that still counts at now, and the hits from there on. live visits
// the expired entries only.
func (g *Log) live(period time.Duration, now Instant) (first int, hits uint64) {
	hits = g.hits
	for first < g.len && g.expired(period, g.at(first), now) {
		hits -= g.at(first).hits
		first++
	}
	return first, hits
}

// retry returns the wait until that many hits have expired, the oldest first. The log holds logged
// hits from entry first on; further hits are of this instant.
func (g *Log) retry(period time.Duration, now Instant, first int, logged, hits uint64) time.Duration {
	if hits > logged {
		return period
	}
	for i := first; i < g.len; i++ {
		e := g.at(i)
		if hits <= e.hits {
			return g.left(period, e, now)
		}
		hits -= e.hits
	}
	return period
}

// reset returns the wait until the newest hit has expired that a refund leaves in the log.
func (g *Log) reset(period time.Duration, now Instant, p Pending) time.Duration {
	if p.added > 0 {
		return period
	}
	refunded := p.refunded
	for i := g.len - 1; i >= 0; i-- {
		e := g.at(i)
		if refunded < e.hits {
			return g.left(period, e, now)
		}
		refunded -= e.hits
	}
	return 0
}

// grown returns the length of the next larger ring. A key with one hit needs one entry.
func (g *Log) grown() int { return max(1, 2*len(g.ring)) }

func (g *Log) push(e logged) {
	if g.len == len(g.ring) {
		g.resize(g.grown())
	}
	g.len++
	*g.at(g.len - 1) = e
}

// shrink gives memory back if an eighth of the ring is enough. The next ring is at most half full,
// so that a log at the edge does not shrink and grow with each hit.
func (g *Log) shrink() {
	if len(g.ring) >= logShrinks && 8*g.len <= len(g.ring) {
		g.resize(1 << bits.Len(uint(2*max(g.len, 1)-1)))
	}
}

// resize moves the entries to a ring of that length, a power of two.
func (g *Log) resize(length int) {
	ring := make([]logged, length)
	for i := range g.len {
		ring[i] = *g.at(i)
	}
	g.ring, g.head = ring, 0
}

// GiveBack gives hits back that were taken at instant charged: from the entry of exactly that
// instant, at most its hits. Without such an entry the log stays as it is. An entry in the middle
// of n others takes the time of n/2 moves.
func (g *Log) GiveBack(l Limit, now, charged Instant, hits uint32) {
	i := sort.Search(g.len, func(i int) bool { return g.at(i).at >= charged })
	if i == g.len || g.at(i).at != charged || hits == 0 || g.expired(l.Period, g.at(i), g.held(now)) {
		return
	}
	g.last = g.held(now)
	e := g.at(i)
	back := min(uint64(hits), e.hits)
	e.hits -= back
	g.hits -= back
	if e.hits == 0 {
		g.remove(i)
		g.shrink()
	}
}

// remove takes the i-th oldest entry out of the ring, and moves the fewer ones of the older and the
// newer entries.
func (g *Log) remove(i int) {
	if i < g.len/2 {
		for ; i > 0; i-- {
			*g.at(i) = *g.at(i - 1)
		}
		g.head = (g.head + 1) & (len(g.ring) - 1)
	} else {
		for ; i < g.len-1; i++ {
			*g.at(i) = *g.at(i + 1)
		}
	}
	g.len--
}

// Realign carries the log over a step of the clock: every instant moves by the step, so that each
// hit keeps its age.
func (g *Log) Realign(step time.Duration) {
	for i := range g.len {
		e := g.at(i)
		e.at = e.at.Moved(step)
	}
	g.last = g.last.Moved(step)
	if g.own != nil {
		g.own.others.at = g.own.others.at.Moved(step)
	}
}

// LogEntry is hits of a [Log] at one instant.
type LogEntry struct {
	At   Instant
	Hits uint64
}

// Len returns the number of entries.
func (g *Log) Len() int { return g.len }

// AppendEntries appends the entries, oldest first, and returns the extended slice.
func (g *Log) AppendEntries(to []LogEntry) []LogEntry {
	for i := range g.len {
		e := g.at(i)
		to = append(to, LogEntry{At: e.at, Hits: e.hits})
	}
	return to
}

// Restore appends an entry from outside, such as a file. Entries come oldest first; an entry before
// the newest one counts as of the same instant, and an entry after now as of now. Restore drops an
// entry without hits, an expired one, and hits that no log can have.
func (g *Log) Restore(l Limit, e LogEntry, now Instant) {
	at := min(e.At, now)
	if g.len > 0 {
		at = max(at, g.at(g.len-1).at)
	}
	hits := min(e.Hits, 2*MaxHits-min(g.hits, 2*MaxHits))
	entry := logged{at: at, hits: hits}
	if hits == 0 || g.expired(l.Period, &entry, now) {
		return
	}
	g.hits, g.last = g.hits+hits, at
	if g.len > 0 && g.at(g.len-1).at == at {
		g.at(g.len - 1).hits += hits
		return
	}
	g.push(entry)
}
