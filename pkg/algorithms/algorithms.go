// Package algorithms decides whether hits fit a limit: given a state, a limit, an instant and hits, it returns the next
// state and a decision. It is pure: it reads no clock, takes no lock, does no input or output and does not allocate
// (a [Log] grows with its hits). All arithmetic is exact, on integers of 64 and 128 bits.
//
// The algorithms:
//
//	name                    remembers per key                 what it promises
//	fixed_window            one count, 24 bytes               at most Requests in each aligned window; up to twice that across a boundary
//	token_bucket            one exact level, 24 bytes         at most Burst + Requests*T/Period in any interval of length T
//	sliding_window_log      every admitted hit                at most Requests in any half-open interval of length Period
//	sliding_window_counter  two counts, 24 bytes              at most Requests by an estimate that weighs the window before
//	token_bucket_integer    whole tokens and a mark, 24 bytes like token_bucket in whole tokens; slightly more where Requests does not divide Period
//
// Sources: the token bucket is the meter of RFC 2697 with one rate; the sliding counter is the weighing of two fixed windows
// that Cloudflare described in 2017 ("How we built rate limiting capable of scaling to millions of domains").
//
// The package keeps nothing and knows no keys: a store maps keys to states. Adding an algorithm takes one file that
// defines its [Algorithm] constant and a kind, and one line in statefulOf.
package algorithms

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Instant is a point in time in nanoseconds. Aligned windows count from the Unix epoch, so a caller who wants windows that
// start on the hour passes Unix nanoseconds; for everything else only differences mean anything.
type Instant int64

// Add returns the instant d after i, held at the largest instant where it would overflow; d is at least 0.
func (i Instant) Add(d time.Duration) Instant {
	if sum := i + Instant(d); sum >= i {
		return sum
	}
	return math.MaxInt64
}

// Sub returns the duration from earlier to i: 0 when i is not later, held at the largest duration (292 years) where it
// would overflow.
func (i Instant) Sub(earlier Instant) time.Duration {
	if i <= earlier {
		return 0
	}
	return saturate(uint64(i) - uint64(earlier))
}

// Bounds of a limit.
const (
	MinPeriod = time.Millisecond
	MaxPeriod = 10 * 365 * 24 * time.Hour // ten years of 365 days
	MaxHits   = math.MaxUint32            // most hits of one charge, either way
)

// Limit is what a key may use. The zero value is not valid: see [Limit.Validate].
type Limit struct {
	Algorithm Algorithm
	Requests  uint32        // hits per Period; 0 is a ban: every hit is denied
	Period    time.Duration // MinPeriod to MaxPeriod
	Burst     uint32        // token_bucket only: total capacity in hits; 0 means Requests
}

// Capacity returns the most hits that a never-used key lets through at once.
func (l Limit) Capacity() uint32 {
	if l.Algorithm == TokenBucket && l.Burst != 0 {
		return l.Burst
	}
	return l.Requests
}

// Validate reports everything that is wrong with the limit, joined; nil when it can be used. The texts name the fields as
// rule files do and say what is allowed.
func (l Limit) Validate() error {
	var errs []error
	if kindOf(l.Algorithm) == nil {
		errs = append(errs, fmt.Errorf("algorithm: %d: must be one of %s", l.Algorithm, Names()))
	}
	if l.Period < MinPeriod || l.Period > MaxPeriod {
		errs = append(errs, fmt.Errorf("period: %v: must be between %v and 10 years (%v)", l.Period, MinPeriod, MaxPeriod))
	}
	if l.Burst != 0 && l.Algorithm != TokenBucket {
		errs = append(errs, fmt.Errorf("burst: %d: only token_bucket has a burst", l.Burst))
	}
	if l.Burst != 0 && l.Requests == 0 {
		errs = append(errs, fmt.Errorf("burst: %d: requests_per_unit 0 denies every hit, so there is nothing to burst", l.Burst))
	}
	if l.Algorithm == TokenBucketInteger && int64(l.Requests) > int64(l.Period) && l.Period >= MinPeriod {
		errs = append(errs, fmt.Errorf(
			"requests: %d: token_bucket_integer cannot refill more than a token per nanosecond, must be at most %d for %v",
			l.Requests, int64(l.Period), l.Period))
	}
	return errors.Join(errs...)
}

// Decision is the answer for some hits of one key. Durations are rounded up to the nanosecond and held at the largest
// [time.Duration] (292 years) where they would not fit.
type Decision struct {
	Allowed    bool          // reports whether the hits fit the limit
	Remaining  uint32        // hits that would pass right now, after this charge
	RetryAfter time.Duration // 0 when allowed; else the shortest wait after which the same hits would pass if nothing else came
	ResetAfter time.Duration // wait until the key is as if never used; fixed_window: until the window ends
}

// State is what is remembered of one key by every algorithm but sliding_window_log, whose state is a [Log]. The zero value
// is a key never used. A state belongs to the algorithm and the period it was made with; see [Change] for other numbers.
type State struct {
	last Instant // instant of the last charge (token_bucket_integer: the mark up to which tokens were refilled)
	a, b uint64  // the algorithm's own; both 0 only in a key as if never used
}

// StateOf returns the state that Parts took apart, for stores that keep states in a form of their own. The parts mean:
//
//	algorithm               last                     a                              b
//	fixed_window            the last charge          count of its window            0
//	token_bucket            the last charge          deficit in 1/Period hits, its  high and low 64 bits
//	sliding_window_counter  the last charge          count of its window            count of the window before
//	token_bucket_integer    the refill mark          deficit in hits                nanoseconds from the mark to the last charge
func StateOf(last Instant, a, b uint64) State { return State{last: last, a: a, b: b} }

// Parts takes a state apart, see [StateOf].
func (s State) Parts() (last Instant, a, b uint64) { return s.last, s.a, s.b }

// Unused reports whether the state is that of a key never used, so that it need not be kept.
func (s State) Unused() bool { return s.a|s.b == 0 }

// Take applies hits to a key in state s at instant now and returns the next state and the decision.
//
// hits is -MaxHits to MaxHits and held there: 0 is a probe, which changes nothing and is allowed unless the key is past its
// limit; negative hits are a refund, which gives back at most what was used, is always allowed and never moves a window's
// end. A denial returns s unchanged unless countRejected is set: then the hits count all the same and the key can go into
// debt (a bucket down to -Capacity, a sliding count up to 2*Requests, a fixed window without bound).
//
// An instant earlier than the last charge of the key counts as that of the last charge. The limit must be valid; its
// algorithm must not be sliding_window_log ([Log] has its own Take), for which every hit is denied.
func Take(l Limit, s State, now Instant, hits int64, countRejected bool) (State, Decision) {
	k := statefulOf(l.Algorithm)
	if k == nil || l.Period <= 0 {
		return s, Decision{}
	}
	return k.take(l, s, now, min(max(hits, -MaxHits), MaxHits), countRejected)
}

// FreshAt returns the instant from which a key in state s is as if never used, so that forgetting it changes no decision.
func FreshAt(l Limit, s State) Instant {
	k := statefulOf(l.Algorithm)
	if k == nil || l.Period <= 0 || s.Unused() {
		return math.MinInt64
	}
	return k.freshAt(l, s)
}

// Change carries a state over from one limit to another at instant now. Where algorithm and period stay, a bucket keeps its
// tokens, clamped to the new capacity, and a count stays, to be judged by the new limit. Where they differ, and where the
// key is as if never used by now, it starts fresh.
func Change(from, to Limit, s State, now Instant) State {
	if from.Algorithm != to.Algorithm || from.Period != to.Period || FreshAt(from, s) <= now {
		return State{}
	}
	if k := statefulOf(to.Algorithm); k != nil {
		return k.change(from, to, s, now)
	}
	return State{}
}

// TakeAs is Take for a key in state s whose last charge was under the limit was: it carries the state over as [Change] does,
// takes the hits under l, and returns the limit to go with the next state. That is l, but for a token bucket that had a larger
// capacity: there the larger one goes on to say when the key is as if never used, for else a moment under a small burst would
// make a spent bucket full again under the large one. What a bucket holds is clamped by a charge only, not by hits that took
// nothing, and a ban, which takes nothing, leaves state and limit as they were.
func TakeAs(was, l Limit, s State, now Instant, hits int64, countRejected bool) (State, Limit, Decision) {
	carried := Change(was, l, s, now)
	next, d := Take(l, carried, now, hits, countRejected)
	bucket := l.Algorithm == TokenBucket && was.Algorithm == TokenBucket && was.Period == l.Period
	switch {
	case !bucket || s.Unused() || FreshAt(was, s) <= now || was.Capacity() <= l.Capacity():
		return next, l, d
	case l.Requests == 0:
		return s, was, d
	}
	wide := l
	wide.Burst = was.Capacity()
	if next == carried {
		return tokenBucket{}.change(was, wide, s, now), wide, d
	}
	return tokenBucket{}.change(l, wide, next, now), wide, d
}

// refused is the decision for hits at a limit of 0, which never pass.
func refused(wait time.Duration) Decision { return Decision{RetryAfter: wait, ResetAfter: wait} }

// never is the wait reported for more hits than a window ever admits: until the key is as if never used, or a period where
// it is so already. Waiting will not help; callers see that the hits exceed the limit.
func never(l Limit, reset time.Duration) time.Duration {
	if reset > 0 {
		return reset
	}
	return l.Period
}
