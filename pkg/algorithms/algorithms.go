// Package algorithms decides whether hits fit a limit: from a state, a limit, an instant and hits
// it makes the next state and a decision. The package reads no clock, takes no lock, does no input
// or output and does not allocate (a [Log] grows with its hits). All arithmetic is exact, on
// integers of 64 and 128 bits.
//
// The algorithms:
//
//	name                    state of a key     promise
//	fixed_window            a count            at most Requests in each aligned window; up to twice
//	                                           that across a boundary
//	token_bucket            an exact level     at most Burst + Requests*T/Period in any interval of
//	                                           length T
//	sliding_window_log      every hit          at most Requests in any half-open interval of length
//	                                           Period
//	sliding_window_counter  two counts         at most Requests by an estimate that weighs the
//	                                           window before
//	token_bucket_integer    tokens and a mark  like token_bucket in whole tokens; slightly more where
//	                                           Requests does not divide Period
//	concurrency             every holder       at most Requests at the same instant
//
// [Learned] is no limit: it learns how many hits its charges have. [Escalation] stands beside a
// limit, and blocks keys.
//
// fixed_window and sliding_window_counter have a second form each, with windows of a [Calendar].
// Period is then only the nominal length of a window, and a part of the key's identity. A key keeps
// the start and the end of its window. Hits join the window of the key until it ends, also if the
// calendar has changed.
//
// A state takes 24 bytes, except with a log or holders.
//
// Sources: the token bucket is the meter of RFC 2697 with one rate. Cloudflare described the
// sliding counter in 2017 ("How we built rate limiting capable of scaling to millions of domains").
//
// A key is idle when its state no longer changes any decision, so that a store may forget the
// state. A bucket is idle when it is full, a window when it has ended, a log when its hits have
// expired. A key of concurrency is idle without holders.
//
// The package knows no keys: a store maps keys to states. CONTRIBUTING.md says how to add an
// algorithm.
package algorithms

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Instant is a point in time in nanoseconds. Aligned windows count from the Unix epoch: windows
// start on the hour if instants are Unix nanoseconds. Otherwise only differences have a meaning.
type Instant int64

// Add returns the instant d after i, held at the largest instant; d is at least 0.
func (i Instant) Add(d time.Duration) Instant {
	if sum := i + Instant(d); sum >= i {
		return sum
	}
	return math.MaxInt64
}

// Sub returns the duration from earlier to i, 0 if i is not later, held at the largest duration
// (292 years).
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
	MaxHits   = math.MaxUint32            // of one charge, either way
	MaxCount  = 1<<53 - 1                 // of one window: a script in Redis adds no larger numbers exactly
)

// Limit is the number of hits that a key may use in a period. The zero value is not valid, see
// [Limit.Validate].
type Limit struct {
	Requests  uint32        // hits per Period, of concurrency hits at the same time; 0 is a ban: every hit is denied
	Algorithm Algorithm     // beside Requests, so that == needs no call
	Period    time.Duration // MinPeriod to MaxPeriod; 0 of concurrency

	Extra
}

// Extra is the fields that some algorithms have. The compiler keeps structs of at most four fields
// in registers. With five fields in Limit a decision took 10 to 40 % longer.
type Extra struct {
	Burst    uint32    // token_bucket only: total capacity in hits; 0 means Requests. See also Escalate
	More     uint32    // fixed_window only: the limit has More times MaxHits hits beyond Requests; see Limit.SetPerPeriod, and Escalate
	Calendar *Calendar // of CalendarWindow and CalendarCounter: their windows; nil: windows of Period since the epoch
}

// Capacity returns the largest number of hits that an idle key admits at once, at most MaxCount.
func (l Limit) Capacity() uint64 {
	if l.Burst != 0 && (l.Algorithm == TokenBucket || l.Algorithm == Escalation) {
		return uint64(l.Burst)
	}
	return l.PerPeriod()
}

// MostPerPeriod returns the largest number of hits per period of limits of the algorithm.
func (a Algorithm) MostPerPeriod() uint64 {
	if a.HasWindows() || a == Escalation {
		return MaxCount
	}
	return MaxHits
}

// PerPeriod returns the hits per Period: Requests and More together.
func (l Limit) PerPeriod() uint64 { return uint64(l.Requests) + uint64(l.More)*MaxHits }

// SetPerPeriod sets Requests and More to that many hits per Period, at most MaxCount. More than
// MaxHits are for fixed_window alone. Each number has one form, so that == compares limits.
func (l *Limit) SetPerPeriod(hits uint64) {
	l.Requests, l.More = uint32(hits), 0
	if hits > MaxHits {
		l.More = uint32((hits - 1) / MaxHits)
		l.Requests = uint32(hits - uint64(l.More)*MaxHits)
	}
}

// Validate returns all mistakes of the limit, joined, or nil. The texts name fields as rule files
// do and say the allowed values.
func (l Limit) Validate() error {
	var errs []error
	if !l.Algorithm.known() {
		errs = append(errs, fmt.Errorf("algorithm: %d: must be one of %s", l.Algorithm, Names()))
	}
	switch {
	case l.Algorithm == Concurrency && l.Period != 0:
		errs = append(errs, fmt.Errorf("period: %v: concurrency has no period", l.Period))
	case l.Algorithm != Concurrency && (l.Period < MinPeriod || l.Period > MaxPeriod):
		errs = append(errs, fmt.Errorf("period: %v: must be between %v and 10 years (%v)", l.Period, MinPeriod, MaxPeriod))
	}
	switch {
	case l.Calendar != nil && !l.Algorithm.HasCalendar():
		errs = append(errs, fmt.Errorf("align: only fixed_window and sliding_window_counter have windows to align"))
	case l.Algorithm.HasCalendar() && l.Period%time.Second != 0:
		errs = append(errs, fmt.Errorf("period: %v: a window of a calendar must be whole seconds", l.Period))
	}
	if l.Algorithm == Learned && (l.Requests < MinQuantile || l.Requests > MaxQuantile) {
		errs = append(errs, fmt.Errorf("quantile: %d thousandths: must be from %d to %d", l.Requests, MinQuantile, MaxQuantile))
	}
	if l.Algorithm == Escalation {
		return errors.Join(append(errs, escalateOf(l).validate()...)...)
	}
	if l.Burst != 0 && l.Algorithm != TokenBucket {
		errs = append(errs, fmt.Errorf("burst: %d: only token_bucket has a burst", l.Burst))
	}
	if l.Burst != 0 && l.Requests == 0 {
		errs = append(errs, fmt.Errorf("burst: %d: requests_per_unit 0 denies every hit, so there is nothing to burst", l.Burst))
	}
	switch {
	case l.More != 0 && !l.Algorithm.HasWindows():
		errs = append(errs, fmt.Errorf("requests: %d: only fixed_window has more than %d", l.PerPeriod(), uint32(MaxHits)))
	case l.More != 0 && l.Requests == 0, l.PerPeriod() > MaxCount:
		errs = append(errs, fmt.Errorf("requests: %d and %d times %d: must be made by SetPerPeriod, of at most %d",
			l.Requests, l.More, uint32(MaxHits), uint64(MaxCount)))
	}
	if l.Algorithm == TokenBucketInteger && int64(l.Requests) > int64(l.Period) && l.Period >= MinPeriod {
		errs = append(errs, fmt.Errorf(
			"requests: %d: token_bucket_integer cannot refill more than a token per nanosecond, must be at most %d for %v",
			l.Requests, int64(l.Period), l.Period))
	}
	return errors.Join(errs...)
}

// Decision is the answer for some hits of one key. Durations are rounded up to the nanosecond and
// held at the largest [time.Duration] (292 years).
type Decision struct {
	Allowed    bool          // the hits fit the limit
	Remaining  uint64        // hits that would pass right now, after this charge; at most MaxCount
	RetryAfter time.Duration // 0 if allowed; else the shortest wait until the same hits would pass if no others came
	ResetAfter time.Duration // wait until the key is idle; fixed_window: until the window ends
}

// State is the state of one key under every algorithm but sliding_window_log, which keeps a [Log],
// and concurrency, which keeps [Slots]. The zero value is a key never used. A state belongs to the
// algorithm and the period of its charges; see [Change] for other numbers.
type State struct {
	last Instant // instant of the last charge (token_bucket_integer: the mark of the last refill)
	a, b uint64  // the algorithm's own; both are 0 only in the state of a key never used
}

// StateOf returns the state with these parts, for stores with a form of their own. The parts mean:
//
//	algorithm               last             a                       b
//	fixed_window            the last charge  count of its window     0
//	token_bucket            the last charge  deficit in 1/Period     the low 64 bits of the
//	                                         hits, the high 64 bits  deficit
//	sliding_window_counter  the last charge  count of its window     count of the window before
//	CalendarWindow          the start of     count of the window     the end of the window
//	                        the window
//	CalendarCounter         the start of     count of the window,    the same of the window before
//	                        the window       and 29 low bits: its
//	                        length in s
//	Learned                 the last charge  quantile in 2^-20 hits  number of charges, up to
//	                                                                 LearnedFrom
//	Escalation              the last         blocks, offenses and    gaps between offenses
//	                        offense          the block's seconds
//	token_bucket_integer    the refill mark  deficit in hits         nanoseconds from the mark to
//	                                                                 the last charge
func StateOf(last Instant, a, b uint64) State { return State{last: last, a: a, b: b} }

// Parts returns the parts of a state, see [StateOf].
func (s State) Parts() (last Instant, a, b uint64) { return s.last, s.a, s.b }

// Unused reports whether the state is the zero state of a key never used, which a store need not
// keep.
func (s State) Unused() bool { return s.a|s.b == 0 }

// Take applies hits to a key in state s at instant now and returns the next state and the decision.
//
// hits is held between -MaxCount and MaxCount. 0 is a probe, which changes nothing and is allowed
// unless the key is past its limit. Negative hits are a refund: Take gives back at most the hits
// used, always allows a refund and never moves a window's end.
//
// A denial returns s unchanged unless countRejected is set, see [Count].
//
// An instant before the last charge of the key counts as the instant of that charge. The waits in
// the decision count from now all the same. The limit must be valid. Take denies every hit under
// sliding_window_log, which has [Log.Take], and under concurrency, which has [Slots.Decide].
func Take(l Limit, s State, now Instant, hits int64, countRejected bool) (State, Decision) {
	return Charge(l, s, now, hits, Counting(countRejected))
}

// Excess is the treatment of hits that do not fit a limit, besides the denial.
type Excess uint8

// The choices.
const (
	Refuse Excess = iota // the hits do not count

	// Count has the hits count, so that the key can go into debt. A denial brings a key to at most
	// twice its capacity. A fixed window has no such bound.
	Count

	// Owe has the hits count, up to MaxOwed: the hits were spent already. A log, which remembers
	// every hit, counts these as Count does.
	Owe
)

// MaxOwed bounds the used hits of a key: more than a key needs that owes four charges.
const MaxOwed = 4 * MaxHits

// Counting returns Count if countRejected is set, else Refuse.
func Counting(countRejected bool) Excess {
	if countRejected {
		return Count
	}
	return Refuse
}

// most returns how many used hits a denial may leave behind.
func (e Excess) most(l Limit) uint64 {
	switch e {
	case Count:
		return 2 * l.Capacity()
	case Owe:
		return MaxOwed
	default:
		return 0
	}
}

// Charge is [Take] with a choice for hits above the limit.
func Charge(l Limit, s State, now Instant, hits int64, excess Excess) (State, Decision) {
	k := statefulOf(l.Algorithm)
	if k == nil || l.Period <= 0 {
		return s, Decision{}
	}
	next, d := k.take(l, s, now, min(max(hits, -MaxCount), MaxCount), excess)
	if last := s.charged(l.Algorithm); last > now && !s.Unused() {
		d = d.later(last.Sub(now))
	}
	return next, d
}

// charged returns the instant of the last charge of a state that is not unused.
// For calendar windows it is the start of its window.
func (s State) charged(a Algorithm) Instant {
	if a == TokenBucketInteger {
		return s.last + Instant(s.b)
	}
	return s.last
}

// later returns the decision for an instant that lies wait before the instant of d. Waits of 0
// stay.
func (d Decision) later(wait time.Duration) Decision {
	if d.RetryAfter > 0 {
		d.RetryAfter = saturate(uint64(d.RetryAfter) + uint64(wait))
	}
	if d.ResetAfter > 0 {
		d.ResetAfter = saturate(uint64(d.ResetAfter) + uint64(wait))
	}
	return d
}

// IdleAt returns the instant from which a key in state s is idle.
func IdleAt(l Limit, s State) Instant {
	k := statefulOf(l.Algorithm)
	if k == nil || l.Period <= 0 || s.Unused() {
		return math.MinInt64
	}
	return k.idleAt(l, s)
}

// Change carries a state over from one limit to another at instant now. If algorithm and period are
// the same, a bucket keeps its tokens, clamped to the new capacity, and a count stays as it is. If
// algorithm or period differ, or if the key is idle, the key starts anew.
func Change(from, to Limit, s State, now Instant) State {
	if from.Algorithm != to.Algorithm || from.Period != to.Period || IdleAt(from, s) <= now {
		return State{}
	}
	if k := statefulOf(to.Algorithm); k != nil {
		return k.change(from, to, s, now)
	}
	return State{}
}

// TakeAs is Charge for a key whose last charge was under the limit was; a zero was stands for a key
// never used. TakeAs carries the state over as [Change] does, takes the hits under l, and returns
// the limit of the next state. That limit is l unless a token bucket had a larger capacity: the
// larger capacity then goes on to say when the key is idle. Otherwise a moment under a small burst
// would make a spent bucket full again under the large one. Only hits that were taken clamp a
// bucket, and a ban leaves state and limit as they were.
func TakeAs(was, l Limit, s State, now Instant, hits int64, excess Excess) (State, Limit, Decision) {
	if was == l || was == (Limit{}) {
		next, d := Charge(l, s, now, hits, excess)
		return next, l, d
	}
	carried := Change(was, l, s, now)
	next, d := Charge(l, carried, now, hits, excess)
	if l.Requests == 0 && l.Algorithm == TokenBucketInteger && was.Algorithm == l.Algorithm && was.Period == l.Period && IdleAt(was, s) > now {
		return s, was, d // a ban leaves state and limit
	}
	bucket := l.Algorithm == TokenBucket && was.Algorithm == TokenBucket && was.Period == l.Period
	switch {
	case !bucket || s.Unused() || IdleAt(was, s) <= now || was.Capacity() <= l.Capacity():
		return next, l, d
	case l.Requests == 0:
		return s, was, d
	}
	wide := l
	wide.Burst = uint32(was.Capacity())
	if next == carried {
		return tokenBucket{}.change(was, wide, s, now), wide, d
	}
	return tokenBucket{}.change(l, wide, next, now), wide, d
}

// GiveBack gives hits back that were taken from a key at instant charged, and returns the next
// state and its limit. The last charge was under the limit was, as for [TakeAs]. Both limits have
// the algorithm and the period of the state. GiveBack gives back at most the hits used.
//
// A window gives back only its own hits. A fixed window does so if charged lies in the window of
// now. A sliding counter takes the hits from the count of the window of charged, if this is the
// window of now or the window before. Otherwise state and limit stay as they are. A bucket has no
// windows, and gives hits back as for any refund. Under sliding_window_log call [Log.GiveBack].
func GiveBack(was, l Limit, s State, charged, now Instant, hits uint32) (State, Limit) {
	k, ok := statefulOf(l.Algorithm).(windowed)
	if !ok {
		next, limit, _ := TakeAs(was, l, s, now, -int64(hits), Refuse)
		return next, limit
	}
	if l.Period <= 0 || s.Unused() || hits == 0 {
		return s, was
	}
	if next := k.giveBack(l, s, charged, now, uint64(hits)); next != s {
		return next, l
	}
	return s, was
}

// Late charges hits as of an earlier instant, also beyond the limit, and returns the next state.
// Now is the instant of the charge. The limit must have windows of a [Calendar]. Hits of a window
// that weighs nothing at now change nothing.
func Late(l Limit, s State, at, now Instant, hits int64) State {
	if k, ok := statefulOf(l.Algorithm).(interface {
		late(l Limit, s State, at, now Instant, hits int64) State
	}); ok {
		return k.late(l, s, min(at, now), now, hits)
	}
	return s
}

// windowed is an algorithm that counts hits in windows.
type windowed interface {
	giveBack(l Limit, s State, charged, now Instant, hits uint64) State // see GiveBack; s is not unused
}

// refused is the decision for hits under a limit of 0, which never pass.
func refused(wait time.Duration) Decision { return Decision{RetryAfter: wait, ResetAfter: wait} }

// never is the wait for more hits than the limit ever has: until the key is idle, else a period.
// Waiting will not help; callers see that the hits exceed the limit.
func never(l Limit, reset time.Duration) time.Duration {
	if reset > 0 {
		return reset
	}
	return l.Period
}
