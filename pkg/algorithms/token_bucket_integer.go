package algorithms

import "time"

// TokenBucketInteger is a token bucket in whole tokens, for callers that count in coarse ticks and need the same answer in
// every language. Its capacity is Requests. It admits slightly more than [TokenBucket] where Requests does not divide Period:
// each charge gains at most what a nanosecond makes. It is no limit for a rate of more than one token per nanosecond.
const TokenBucketInteger Algorithm = 5

// tokenBucketInteger keeps the deficit in whole tokens in a (at most 2*Requests), the mark up to which it was refilled in
// last, and in b how far the last charge lay after that mark.
type tokenBucketInteger struct{}

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

func (t tokenBucketInteger) take(l Limit, s State, now Instant, hits int64, countRejected bool) (State, Decision) {
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
		if countRejected && hits > 0 {
			deficit = min(deficit+uint64(hits), 2*capacity)
			change = true
		}
	}
	if change {
		s = State{}
		if deficit > 0 {
			s = State{last: mark, a: deficit, b: past(mark, now)}
		}
	}
	// Where Requests does not divide Period, a refill of the new state at the same instant can find more tokens: one, or
	// as many as a nanosecond makes.
	if deficit, _, _ = t.settled(l, s, now); deficit < capacity {
		d.Remaining = uint32(capacity - deficit)
	}
	// Waits count from the mark that is kept: a refill that nobody charges for moves none.
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

// wait returns how much longer it takes to gain that many tokens when the last refill is since nanoseconds ago: the least
// wait with floor((since+wait)*Requests/Period) >= tokens.
func (tokenBucketInteger) wait(l Limit, tokens, since uint64) time.Duration {
	if tokens == 0 {
		return 0
	}
	needed := l.gain(product(tokens, uint64(l.Period)))
	return saturate(needed - min(needed, since))
}

func (tokenBucketInteger) freshAt(l Limit, s State) Instant {
	return s.last.after(l.gain(product(s.a, uint64(l.Period))))
}

func (t tokenBucketInteger) change(from, to Limit, s State, now Instant) State {
	deficit, mark, now := t.settled(from, s, now)
	if deficit == 0 {
		return State{}
	}
	was, is := uint64(from.Requests), uint64(to.Requests)
	if was != is {
		mark = now // Time that made no token at the old rate must not make many at the new one.
	}
	deficit += is
	deficit = min(deficit-min(was, deficit), 2*is)
	if deficit == 0 {
		return State{}
	}
	return State{last: mark, a: deficit, b: past(mark, now)}
}
