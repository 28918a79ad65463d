package algorithms

import (
	"math"
	"time"
)

// Side is a key under one of the two limits of [Carry].
type Side struct {
	Limit Limit  // of the charges now
	Parts uint64 // in which the limit counts a hit; 0 means 1

	State State // zero under sliding_window_log
	Was   Limit // of the last charge of State; zero for a key never used
	Log   *Log  // of sliding_window_log; else nil

	// The mark is the key as the last Carry between the two limits left it. The mark of a log is the
	// newest entry of the log. A mark that is unused stands for no mark.
	Mark    State
	MarkWas Limit
	MarkLog *Log // of sliding_window_log; else nil
}

// Carry carries the hits of a key over from one limit to the limit that replaced it. to takes the
// hits that from still counts, without the hits of the mark. With both, from takes the hits of to
// in the same way. Then each of the two limits counts all hits while some processes still use the
// old limit.
//
// Hits enter the current window of a window or of a sliding count. The tokens that a bucket misses
// are its hits. An unused log takes the entries of a log at their own instants; all other hits are
// of now. A side takes hits up to its capacity, and hits are rounded up. An unused bucket that
// follows a bucket begins with the tokens of that one, up to its own capacity, or with its debt.
//
// If a mark is lost, hits count twice. Carry never makes hits free. Concurrency and bans neither
// give nor take hits.
func Carry(from, to *Side, now Instant, both bool) {
	if from.still() || to.still() {
		return
	}
	gained, back := from.gained(now), to.gained(now)
	if gained == 0 && !both {
		return
	}
	hits := to.fit(rescale(gained, to.Parts, from.Parts), now)
	if gained > 0 && from.isBucket() && to.isBucket() && to.used(now) == 0 && from.usedBy(from.MarkWas, from.Mark, from.MarkLog, now) == 0 {
		hits = from.missing(to, now)
	}
	if gained > 0 && from.Log != nil && to.Log != nil && to.used(now) == 0 && from.parts() == to.parts() {
		to.enter(from, now)
	} else {
		to.take(now, hits)
	}
	if both {
		from.take(now, from.fit(rescale(back, from.Parts, to.Parts), now))
	}
	if both || back == 0 {
		to.mark(now)
	} else {
		to.markMore(now, hits)
	}
	from.mark(now)
}

// Know makes the mark a copy of the key: another Carry finds no hits that are new.
func (s *Side) Know(now Instant) {
	if !s.still() {
		s.mark(now)
	}
}

func (s *Side) still() bool {
	return s.Limit.Requests == 0 || s.Limit.Period <= 0 || (s.Limit.Algorithm == SlidingWindowLog) != (s.Log != nil)
}

func (s *Side) isBucket() bool {
	return s.Limit.Algorithm == TokenBucket || s.Limit.Algorithm == TokenBucketInteger
}

func (s *Side) parts() uint64 { return max(s.Parts, 1) }

// used returns the used hits, rounded up.
func (s *Side) used(now Instant) uint64 { return s.usedBy(s.Was, s.State, s.Log, now) }

func (s *Side) usedBy(was Limit, state State, log *Log, now Instant) uint64 {
	if log != nil {
		_, hits := log.live(s.Limit.Period, log.held(now))
		return hits
	}
	return contentOf(was, state, now).ceilDiv(uint64(s.Limit.Period))
}

// contentOf returns the used hits of a state in units of 1/Period hit.
func contentOf(was Limit, s State, now Instant) wide {
	k := statefulOf(was.Algorithm)
	if k == nil || s.Unused() {
		return wide{}
	}
	return k.content(was, s, now)
}

// gained returns the used hits that the mark does not have, rounded up.
func (s *Side) gained(now Instant) uint64 {
	if s.Log != nil {
		return s.Log.since(s.Limit, s.MarkLog, now)
	}
	return contentOf(s.Was, s.State, now).minus(contentOf(s.MarkWas, s.Mark, now)).ceilDiv(uint64(s.Limit.Period))
}

// fit returns the hits that fit into the room of a state. A log forgets as many of its oldest hits
// to make room for the newest ones: these alone decide on further hits. A log that has more, under
// another number of requests, keeps as many as it has.
func (s *Side) fit(hits uint64, now Instant) uint64 {
	if s.Log == nil {
		_, _, d := TakeAs(s.Was, s.Limit, s.State, now, 0, Refuse)
		return min(hits, d.Remaining/s.parts()*s.parts())
	}
	hits = min(hits, uint64(s.Limit.Requests))
	if first, used := s.Log.live(s.Limit.Period, s.Log.held(now)); hits > 0 && used+hits > uint64(s.Limit.Requests) {
		s.Log.dropOldest(first, min(hits, used+hits-uint64(s.Limit.Requests)))
	}
	return hits
}

// missing returns the hits that leave an unused bucket with the tokens of s.
func (s *Side) missing(to *Side, now Instant) uint64 {
	all, used := s.Was.Capacity(), s.used(now)
	if used > all {
		return to.Limit.Capacity() + rescale(used-all, to.Parts, s.Parts)
	}
	left := (all - used) / s.parts() * to.parts()
	return to.Limit.Capacity() - min(left, to.Limit.Capacity())
}

// rescale returns hits in other parts, rounded up to whole hits.
func rescale(hits, to, from uint64) uint64 {
	whole := hits / max(from, 1)
	if hits%max(from, 1) > 0 {
		whole++
	}
	return product(whole, max(to, 1)).floorDiv(1)
}

// take takes hits, also beyond the capacity.
func (s *Side) take(now Instant, hits uint64) {
	if hits == 0 {
		return
	}
	n := int64(min(hits, MaxCount))
	if s.Log != nil {
		all := s.Limit
		all.Requests = MaxHits
		s.Log.Take(all, now, n, true)
	} else {
		s.State, s.Was, _ = TakeAs(s.Was, s.Limit, s.State, now, n, Owe)
	}
}

// enter puts the entries of a log that its mark does not have into an unused log: the newest ones,
// as many as fit.
func (s *Side) enter(from *Side, now Instant) {
	room, first := uint64(s.Limit.Requests), from.Log.len
	mark := from.MarkLog.newest()
	for first > 0 && room > 0 && from.Log.at(first-1).at > mark.At {
		first--
		room -= min(room, from.Log.at(first).hits)
	}
	gained := from.gained(now)
	s.Log.Continue(s.Limit, LogEntry{}, OwnHits{}, now)
	for i := first; i < from.Log.len; i++ {
		if e := from.Log.at(i); !from.Log.expired(from.Limit.Period, e, from.Log.held(now)) {
			s.Log.Restore(s.Limit, LogEntry{At: e.at, Hits: e.hits}, from.Log.held(now))
			gained -= min(gained, e.hits)
		}
	}
	s.take(now, min(gained, room)) // hits that have joined the entry of the mark, or do not fit
}

// mark makes the mark a copy of the key.
func (s *Side) mark(now Instant) {
	s.Mark, s.MarkWas = s.State, s.Was
	if s.Log != nil && s.MarkLog.newest() != s.Log.newest() {
		s.MarkLog.Continue(s.Limit, s.Log.newest(), OwnHits{}, s.Log.held(now))
	}
}

// markMore adds hits to the mark. The mark of a log stays.
func (s *Side) markMore(now Instant, hits uint64) {
	marked := Side{Limit: s.Limit, State: s.Mark, Was: s.MarkWas}
	if s.Log == nil {
		marked.take(now, hits)
	}
	s.Mark, s.MarkWas = marked.State, marked.Was
}

// dropOldest forgets hits, the oldest first, and all entries before the first one.
func (g *Log) dropOldest(first int, hits uint64) {
	for g.len > 0 {
		e := g.at(0)
		back := e.hits
		if first <= 0 {
			back = min(hits, e.hits)
			hits -= back
		}
		e.hits -= back
		g.hits -= back
		if e.hits > 0 {
			return
		}
		g.head = (g.head + 1) & (len(g.ring) - 1)
		g.len, first = g.len-1, first-1
	}
}

// newest returns the newest entry; a zero entry, at the first instant, of an empty log.
func (g *Log) newest() LogEntry {
	if g.len == 0 {
		return LogEntry{At: math.MinInt64}
	}
	e := g.at(g.len - 1)
	return LogEntry{At: e.at, Hits: e.hits}
}

// since returns the hits that still count at now and that came after the newest entry of a mark.
func (g *Log) since(l Limit, mark *Log, now Instant) (hits uint64) {
	known, now := mark.newest(), g.held(now)
	for i := g.len - 1; i >= 0; i-- {
		e := g.at(i)
		switch {
		case g.expired(l.Period, e, now) || e.at < known.At:
			return hits
		case e.at == known.At:
			return hits + e.hits - min(e.hits, known.Hits)
		}
		hits += e.hits
	}
	return hits
}

// Life returns the longest time from a charge under the limit to the instant from which its key is
// idle. Excess is how hits above the limit may count.
func Life(l Limit, excess Excess) time.Duration {
	switch {
	case l.Algorithm.HasCalendar():
		return 3 * l.Period // which is the nominal length of a window
	case l.Algorithm == SlidingWindowLog || l.Requests == 0:
		return l.Period
	}
	s := State{}
	for range MaxOwed / MaxHits {
		s, _ = Charge(l, s, 0, MaxHits, excess)
	}
	return IdleAt(l, s).Sub(0)
}
