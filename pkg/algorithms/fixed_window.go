package algorithms

import (
	"math"
	"math/bits"
	"time"
)

// FixedWindow admits Requests hits in each window [k*Period, (k+1)*Period) since the Unix epoch,
// and so up to twice as many across a boundary.
const FixedWindow Algorithm = 1

// fixedWindow keeps the count of the window that the last charge fell into, in a.
type fixedWindow direct

func (fixedWindow) name() string { return "fixed_window" }

// count returns the count of the window of now, and now held at the last charge.
func (fixedWindow) count(l Limit, s State, now Instant) (uint64, Instant) {
	if s.Unused() {
		return 0, now
	}
	now = max(now, s.last)
	if past(s.last, now) > uint64(elapsed(l.Period, now)) {
		return 0, now
	}
	return s.a, now
}

func (f fixedWindow) take(l Limit, s State, now Instant, hits int64, excess Excess) (State, Decision) {
	count, now := f.count(l, s, now)
	limit := l.PerPeriod()
	d := Decision{Allowed: true, ResetAfter: l.Period - elapsed(l.Period, now)}

	switch {
	case hits < 0:
		count -= min(uint64(-hits), count)
		s = State{last: now, a: count}
	case hits == 0:
		d.Allowed = count <= limit
	case count <= limit && uint64(hits) <= limit-count:
		count += uint64(hits)
		s = State{last: now, a: count}
	default:
		d.Allowed = false
		if excess != Refuse {
			var carry uint64
			if count, carry = bits.Add64(count, uint64(hits), 0); carry != 0 {
				count = math.MaxUint64
			}
			s = State{last: now, a: count}
		}
	}
	if !d.Allowed {
		d.RetryAfter = d.ResetAfter
	}
	if count < limit {
		d.Remaining = limit - count
	}
	return s, d
}

func (f fixedWindow) giveBack(l Limit, s State, charged, now Instant, hits uint64) State {
	count, now := f.count(l, s, now)
	if count == 0 || windowStart(l.Period, charged) != windowStart(l.Period, now) {
		return s
	}
	return State{last: now, a: count - min(hits, count)}
}

func (fixedWindow) idleAt(l Limit, s State) Instant {
	return s.last.Add(l.Period - elapsed(l.Period, s.last))
}

func (fixedWindow) change(_, _ Limit, s State, _ Instant) State { return s }

func (fixedWindow) realign(l Limit, s State, now Instant, step time.Duration) State {
	return State{last: windowAfter(l, max(now, s.last), now, step), a: s.a}
}

func (fixedWindow) clamp(l Limit, s State, now Instant) State {
	return State{last: min(s.last, now.Add(l.Period)), a: s.a}
}

func (f fixedWindow) content(l Limit, s State, now Instant) wide {
	count, _ := f.count(l, s, now)
	return product(count, uint64(l.Period))
}

// A record holds the instant of the last charge and the count of its window.
func (fixedWindow) layout() string { return "77" }

func (fixedWindow) record(_ Limit, s State) numbers { return numbers{s.last.ticks(), s.a} }

func (fixedWindow) restore(l Limit, n numbers) (State, Limit) {
	return State{last: instantOf(n[0]), a: n[1]}, l
}

// elapsed returns how far now lies in its aligned window: 0 up to, not including, the period.
func elapsed(period time.Duration, now Instant) time.Duration {
	e := time.Duration(now) % period
	if e < 0 {
		e += period
	}
	return e
}

// windowStart returns the start of now's aligned window. A start before the first instant wraps, so
// that starts stay distinct.
func windowStart(period time.Duration, now Instant) Instant {
	return now - Instant(elapsed(period, now))
}
