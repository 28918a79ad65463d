package drive

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Arrivals yields random instants until span has passed or ctx ends: the first at once, and then
// perSecond in a second on average. Arrivals waits until an instant has come, and yields all that
// have come by then; the slice is valid until the next. A loop body that takes longer moves no
// later instant, so an instant may lie in the past.
//
// A timer of Go may be a millisecond late, so the calling goroutine has a thread of its own, which
// sleeps by itself.
func Arrivals(ctx context.Context, perSecond int, span time.Duration) iter.Seq[[]time.Time] {
	return func(yield func([]time.Time) bool) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // else Linux may wake the thread 50 µs late
		arrivals(perSecond, span, func(d time.Duration) bool {
			for rest := unix.NsecToTimespec(int64(min(d, time.Millisecond))); ctx.Err() == nil; {
				if err := unix.Nanosleep(&rest, &rest); !errors.Is(err, unix.EINTR) {
					return true
				}
			}
			return false
		}, yield)
	}
}

// arrivals is Arrivals with a function that waits for at most a duration, and reports false when
// that is all.
func arrivals(perSecond int, span time.Duration, wait func(time.Duration) bool, yield func([]time.Time) bool) {
	start := time.Now()
	var due []time.Time
	for after := time.Duration(0); after < span; {
		at := start.Add(after)
		if early := time.Until(at); early > 0 {
			if len(due) > 0 {
				if !yield(due) {
					return
				}
				due = due[:0]
				continue
			}
			if !wait(early) {
				return
			}
			continue
		}
		due = append(due, at)
		after += time.Duration(rand.ExpFloat64() / float64(perSecond) * float64(time.Second))
	}
	if len(due) > 0 {
		yield(due)
	}
}

// Pause waits, and reports whether ctx goes on.
func Pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
