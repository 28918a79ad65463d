package algorithms

import "time"

// TokenBucketInteger is a token bucket in whole tokens, for callers that count in coarse ticks and
// need the same answer in every language. The capacity is Requests. If Requests does not divide
// Period, the bucket admits slightly more than [TokenBucket]: at most the gain of one nanosecond
// more per charge. A rate above one token per nanosecond is not valid.
const TokenBucketInteger Algorithm = 5

// tokenBucketInteger keeps the deficit in whole tokens in a (at most MaxOwed), and the mark of
// the last refill in last. b is the nanoseconds from that mark to the last charge.
type tokenBucketInteger direct

func (tokenBucketInteger) name() string { return "token_bucket_integer" }

// settled returns the deficit and the mark after a refill at now, and now held at the last charge.
func (tokenBucketInteger) settled(l Limit, s State, now Instant) (deficit uint64, mark, held Instant) {
	if s.a == 0 {
		return 0, now, now
	}
	now = max(now, s.last+Instant(s.b))
	if l.Requests == 0 {
		return s.a, s.last, now
	}
	refill := product(past(s.last, now), uint64(l.Requests)).floorDiv(uint64(l.Period))
	if refill >= s.a {
		return 0, now, now
	}
	mark = s.last.Add(saturate(product(refill, uint64(l.Period)).floorDiv(uint64(l.Requests))))
	return s.a - refill, mark, now
}

func (t tokenBucketInteger) take(l Limit, s State, now Instant, hits int64, excess Excess) (State, Decision) {
	deficit, mark, now := t.settled(l, s, now)
	capacity := uint64(l.Requests)
	d := Decision{Allowed: true}
	change := false
	switch {
	case hits < 0:
		deficit -= min(uint64(-hits), deficit)
		change = true
	case deficit <= capacity && uint64(hits) <= capacity-deficit:
		deficit += uint64(hits)
		change = hits > 0
	case hits > 0 && capacity == 0:
		return s, refused(l.Period)
	default:
		d.Allowed = false
		if hits > 0 && excess != Refuse {
			deficit = max(deficit, min(deficit+uint64(hits), excess.most(l)))
			change = true
		}
	}
	if change {
		s = State{}
		if deficit > 0 {
			s = State{last: mark, a: deficit, b: past(mark, now)}
		}
	}
	// If Requests does not divide Period, a refill of the new state can find more tokens at once: one,
	// or the gain of a nanosecond.
	if deficit, _, _ = t.settled(l, s, now); deficit < capacity {
		d.Remaining = capacity - deficit
	}
	// Waits count from the mark in the state: a refill without a charge does not move the mark.
	missing, since := s.a, past(s.last, now)
	if deficit == 0 {
		missing, since = 0, 0
	}
	d.ResetAfter = t.wait(l, missing, since)
	if !d.Allowed {
		d.RetryAfter = max(1, t.wait(l, missing+uint64(hits)-min(missing+uint64(hits), capacity), since))
	}
	return s, d
}

// wait returns the time until the bucket gains that many tokens, if the last refill was since
// nanoseconds ago. The result is the least wait with floor((since+wait)*Requests/Period) >= tokens.
func (tokenBucketInteger) wait(l Limit, tokens, since uint64) time.Duration {
	if tokens == 0 {
		return 0
	}
	needed := l.gain(product(tokens, uint64(l.Period)))
	return saturate(needed - min(needed, since))
}

func (tokenBucketInteger) idleAt(l Limit, s State) Instant {
	return s.last.after(l.gain(product(s.a, uint64(l.Period))))
}

func (t tokenBucketInteger) change(from, to Limit, s State, now Instant) State {
	deficit, mark, now := t.settled(from, s, now)
	if deficit == 0 {
		return State{}
	}
	was, is := uint64(from.Requests), uint64(to.Requests)
	if was != is {
		mark = now // time that made no token at the old rate must not make many at the new rate
	}
	owes := deficit > 2*was
	deficit += is
	if deficit -= min(was, deficit); !owes {
		deficit = min(deficit, 2*is)
	}
	if deficit == 0 {
		return State{}
	}
	return State{last: mark, a: deficit, b: past(mark, now)}
}

func (tokenBucketInteger) realign(_ Limit, s State, _ Instant, step time.Duration) State {
	s.last = s.last.Moved(step)
	return s
}

// rewind moves the mark, so that the last charge stays as long after the mark.
func (tokenBucketInteger) rewind(_ Limit, s State, now Instant, tolerance time.Duration) State {
	since := time.Duration(s.b)
	if s.last.Add(since) > now.Add(tolerance) {
		s.last = now.Moved(-since)
	}
	return s
}

func (tokenBucketInteger) clamp(l Limit, s State, now Instant) State {
	deficit := min(s.a, MaxOwed)
	if deficit == 0 {
		return State{}
	}
	since := min(s.b, 2*uint64(l.Period)) // a charge less than a token after the mark, and a token takes at most a period
	return State{last: min(s.last, now.Moved(-time.Duration(since))), a: deficit, b: since}
}

func (t tokenBucketInteger) content(l Limit, s State, now Instant) wide {
	deficit, _, _ := t.settled(l, s, now)
	return product(deficit, uint64(l.Period))
}

// A record holds the instant of the last charge, the ticks and nanoseconds from the mark to that
// instant, the deficit and Requests.
func (tokenBucketInteger) layout() string { return "77254" }

func (tokenBucketInteger) record(l Limit, s State) numbers {
	return numbers{(s.last + Instant(s.b)).ticks(), s.b / uint64(Tick), s.b % uint64(Tick), s.a, uint64(l.Requests)}
}

func (tokenBucketInteger) restore(l Limit, n numbers) (State, Limit) {
	since := n[1]*uint64(Tick) + n[2]
	l.Requests = uint32(n[4])
	return State{last: instantOf(n[0]) - Instant(since), a: n[3], b: since}, l
}
