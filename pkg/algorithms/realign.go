package algorithms

import (
	"math"
	"time"
)

// Realign carries a state over a step of the clock by which instants are told: now becomes
// now+step, forward or back. The time that has passed since a charge stays as it was, so a step
// gives a bucket nothing. An idle state becomes the zero state.
//
// The windows of fixed_window and sliding_window_counter stay aligned to the epoch, so a step can
// end a window sooner or later. The count of the window of now goes into the window of now+step.
// After a step back over a window's start, the key stays in the window that it has begun. Where its
// window then ends d sooner than before, a fixed window can admit its limit d sooner, once. A
// sliding count can gain d/Period of its limit, once. Realign never lowers an estimate at the
// instant of the step.
//
// Under sliding_window_log call [Log.Realign].
func Realign(l Limit, s State, now Instant, step time.Duration) State {
	if IdleAt(l, s) <= now {
		return State{}
	}
	if k := statefulOf(l.Algorithm); k != nil {
		return k.realign(l, s, now, step)
	}
	return State{}
}

// Clamp returns the state nearest to s that the algorithm can have reached by now. A state from
// outside, such as a file, needs it. The limit must be valid. A state in the future becomes one of
// now, or of the next window after a step of the clock, see [Realign].
func Clamp(l Limit, s State, now Instant) State {
	k := statefulOf(l.Algorithm)
	if k == nil || l.Period <= 0 || s.Unused() {
		return State{}
	}
	return k.clamp(l, s, now)
}

// Rewind carries a state over to now after the clock has gone back. If the last charge lies more
// than tolerance ahead of now, the charge counts as of now. A bucket gains nothing, and the count
// of a window becomes the count of the window of now. Other states stay as they are.
func Rewind(l Limit, s State, now Instant, tolerance time.Duration) State {
	if s.Unused() {
		return s
	}
	if k, ok := statefulOf(l.Algorithm).(rewinder); ok {
		return k.rewind(l, s, now, tolerance)
	}
	if s.last > now.Add(tolerance) {
		s.last = now
	}
	return s
}

// rewinder is an algorithm whose states are more than an instant and a weight that is the same
// everywhere.
type rewinder interface {
	rewind(l Limit, s State, now Instant, tolerance time.Duration) State // see Rewind; s is not unused
}

// Moved returns the instant step after i, or before it, held at the ends.
func (i Instant) Moved(step time.Duration) Instant {
	sum := i + Instant(step)
	switch {
	case step > 0 && sum < i:
		return math.MaxInt64
	case step < 0 && sum > i:
		return math.MinInt64
	default:
		return sum
	}
}

// windowAfter returns the instant after a step that stands for the key's instant now, which is held
// at the last charge. The result is now+step, or the start of the key's window if the window then
// starts less than a period ahead.
func windowAfter(l Limit, held, now Instant, step time.Duration) Instant {
	next := now.Moved(step)
	if start := windowStart(l.Period, held); start <= held && past(next, start) > 0 && past(next, start) < uint64(l.Period) {
		return start
	}
	return next
}
