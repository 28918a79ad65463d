package algorithms

import (
	"math/bits"
	"time"
)

// TokenBucket holds at most Burst tokens, starts full and gains Requests tokens per Period
// continuously. Hits are taken whole or not at all.
const TokenBucket Algorithm = 2

// tokenBucket keeps the deficit: how much the level is below the capacity, in units of 1/Period
// token. In that unit a nanosecond gains exactly Requests units and a hit costs exactly Period
// units, so nothing is ever rounded. The deficit (a is its high, b its low word) is at most
// MaxOwed*Period < 2^93.
type tokenBucket direct

func (tokenBucket) name() string { return "token_bucket" }

// settled returns the deficit at now, and now held at the last charge.
func (tokenBucket) settled(l Limit, s State, now Instant) (wide, Instant) {
	if s.Unused() {
		return wide{}, now
	}
	now = max(now, s.last)
	return wide{s.a, s.b}.minus(product(past(s.last, now), uint64(l.Requests))), now
}

func (t tokenBucket) take(l Limit, s State, now Instant, hits int64, excess Excess) (State, Decision) {
	period := uint64(l.Period)
	capacity := product(l.Capacity(), period)
	deficit, now := t.settled(l, s, now)

	switch {
	case hits < 0:
		deficit = deficit.minus(product(uint64(-hits), period))
		s = State{last: now, a: deficit.hi, b: deficit.lo}
	case hits == 0 && deficit.atMost(capacity):
	case hits > 0 && l.Requests == 0:
		return s, refused(l.Period)
	default:
		after := deficit.plus(product(uint64(hits), period))
		if !after.atMost(capacity) {
			if most := product(excess.most(l), period); hits > 0 && !most.atMost(deficit) {
				deficit = minOf(after, most)
				s = State{last: now, a: deficit.hi, b: deficit.lo}
			}
			d := t.describe(l, deficit)
			short := deficit.plus(product(uint64(hits), period)).minus(capacity)
			d.Allowed, d.RetryAfter = false, saturate(l.gain(short))
			return s, d
		}
		deficit = after
		s = State{last: now, a: deficit.hi, b: deficit.lo}
	}
	return s, t.describe(l, deficit)
}

// describe returns the decision for hits that were allowed and left the deficit behind.
func (tokenBucket) describe(l Limit, deficit wide) Decision {
	d := Decision{Allowed: true}
	if used := deficit.ceilDiv(uint64(l.Period)); used < l.Capacity() {
		d.Remaining = l.Capacity() - used
	}
	if deficit != (wide{}) {
		d.ResetAfter = saturate(l.gain(deficit))
	}
	return d
}

func (tokenBucket) idleAt(l Limit, s State) Instant {
	return s.last.after(l.gain(wide{s.a, s.b}))
}

func (t tokenBucket) change(from, to Limit, s State, now Instant) State {
	deficit, now := t.settled(from, s, now)
	period := uint64(to.Period)
	was, is := product(from.Capacity(), period), product(to.Capacity(), period)
	owes := !deficit.atMost(was.plus(was))
	if deficit = deficit.plus(is).minus(was); !owes {
		deficit = minOf(deficit, is.plus(is))
	}
	return State{last: now, a: deficit.hi, b: deficit.lo}
}

func (tokenBucket) realign(_ Limit, s State, _ Instant, step time.Duration) State {
	s.last = s.last.Moved(step)
	return s
}

func (tokenBucket) clamp(l Limit, s State, now Instant) State {
	most := product(MaxOwed, uint64(l.Period))
	deficit := minOf(wide{s.a, s.b}, most)
	return State{last: min(s.last, now), a: deficit.hi, b: deficit.lo}
}

func (t tokenBucket) content(l Limit, s State, now Instant) wide {
	deficit, _ := t.settled(l, s, now)
	return deficit
}

// A record holds the instant of the last charge, the deficit in whole hits, the rest of it in
// ticks/Period hits, Requests and capacity.
func (tokenBucket) layout() string { return "75744" }

func (tokenBucket) record(l Limit, s State) numbers {
	whole, part := bits.Div64(s.a, s.b, uint64(l.Period)) // the deficit is at most MaxOwed hits, so a is below the period
	return numbers{s.last.ticks(), whole, part / uint64(Tick), uint64(l.Requests), l.Capacity()}
}

func (tokenBucket) restore(l Limit, n numbers) (State, Limit) {
	deficit := product(n[1], uint64(l.Period)).plus(wide{lo: n[2] * uint64(Tick)})
	l.Requests, l.Burst = uint32(n[3]), uint32(n[4])
	return State{last: instantOf(n[0]), a: deficit.hi, b: deficit.lo}, l
}

// gain returns the nanoseconds in which the limit gains units of 1/Period hit, rounded up. A ban
// gains nothing; gain then returns the period.
func (l Limit) gain(units wide) uint64 {
	if l.Requests == 0 {
		return uint64(l.Period)
	}
	return units.ceilDiv(uint64(l.Requests))
}

// minOf returns the smaller of two.
func minOf(x, y wide) wide {
	if x.atMost(y) {
		return x
	}
	return y
}
