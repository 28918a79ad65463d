package redisstore

import (
	"fmt"
	"strconv"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// kept is a state with the limit of its last charge. A key never used has no limit.
type kept struct {
	limit   algorithms.Limit
	state   algorithms.State
	counter bool // the state is a counter's
}

func (k *kept) take(l algorithms.Limit, now algorithms.Instant, hits int64, excess algorithms.Excess) (d algorithms.Decision) {
	k.state, k.limit, d = algorithms.TakeAs(k.limit, l, k.state, now, hits, excess)
	return d
}

// correct charges hits as of the instant at, or gives them back, as a correction of the script does
// at the instant now. A bucket can get back up to a hit more.
func (k *kept) correct(c *store.Charge, at, now algorithms.Instant) {
	last, a, b := k.state.Parts()
	if k.counter { // which has one window
		if !k.state.Unused() {
			at = last
		}
		now = at
	}
	older := algorithms.Instant(0) // from the window of the hits to the window of the state
	switch l := c.Limit; l.Algorithm {
	case algorithms.FixedWindow, algorithms.SlidingWindowCounter:
		older = window(l.Period, last) - window(l.Period, at)
	case algorithms.CalendarWindow, algorithms.CalendarCounter:
		if c.Hits >= 0 {
			k.state, k.limit = algorithms.Late(l, k.state, at, now, c.Hits), l
			return
		}
	default:
		if c.Hits >= 0 {
			break
		}
		alone, _ := algorithms.Take(l, algorithms.State{}, at, -c.Hits, true)
		_, left := algorithms.Take(l, alone, now, 0, false)
		k.take(l, now, int64(left.Remaining)-int64(l.Capacity()), algorithms.Refuse)
		return
	}
	switch {
	case c.Hits < 0:
		k.state, k.limit = algorithms.GiveBack(k.limit, c.Limit, k.state, at, now, uint32(-c.Hits))
	case older <= 0 || k.state.Unused():
		k.take(c.Limit, at, c.Hits, algorithms.Count)
	case older == algorithms.Instant(c.Limit.Period) && c.Limit.Algorithm == algorithms.SlidingWindowCounter:
		k.state = algorithms.StateOf(last, a, b+uint64(c.Hits))
	}
}

func parse(value string, l algorithms.Limit) (kept, error) {
	state, limit, err := algorithms.ParseRecord(value, l)
	if err != nil {
		return kept{}, fmt.Errorf("%w: %w", errReply, err)
	}
	return kept{limit: limit, state: state}, nil
}

// value returns the state as the script writes it to Redis; "" for a key never used.
func (k *kept) value() string {
	if k.counter && !k.state.Unused() {
		_, count, _ := k.state.Parts()
		return strconv.FormatUint(count, 10)
	}
	return string(algorithms.AppendRecord(nil, k.limit, k.state))
}

// seenAt returns the state as the limit finds it at an instant, which is held at the last charge,
// and that instant in microseconds.
func (k *kept) seenAt(l algorithms.Limit, now algorithms.Instant) (us int64, value string) {
	if k.state.Unused() || k.counter {
		return int64(now) / int64(Granularity), ""
	}
	last, _, _ := k.state.Parts()
	now = max(now, last)
	seen := kept{limit: l, state: algorithms.Change(k.limit, l, k.state, now)}
	return int64(now) / int64(Granularity), seen.value()
}

func parseCounter(raw string, l algorithms.Limit) (kept, error) {
	n, err := strconv.ParseUint(raw, 10, 63)
	if err != nil {
		return kept{}, fmt.Errorf("%w: a counter that is %q", errReply, raw)
	}
	return kept{limit: l, state: algorithms.StateOf(0, n, 0), counter: true}, nil
}

// enter makes the state a counter's: of limit l, whichever limit was charged last, in the window of
// the instant at by this process's clock. enter returns the instant now of Redis's clock, held
// within the window.
func (k *kept) enter(l algorithms.Limit, at, now algorithms.Instant) algorithms.Instant {
	start, end := l.WindowOf(at)
	now = min(max(now, start), end.Moved(-Granularity))
	_, count, _ := k.state.Parts()
	k.limit, k.state, k.counter = l, algorithms.StateOf(now, count, 0), true
	if l.Algorithm == algorithms.CalendarWindow {
		k.state = algorithms.StateOf(start, count, uint64(end))
	}
	return now
}
