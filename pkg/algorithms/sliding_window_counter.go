package algorithms

import "time"

// SlidingWindowCounter weighs two aligned windows: the estimate is previous*(Period-elapsed)/Period
// + current, and hits pass while it stays within Requests.
const SlidingWindowCounter Algorithm = 4

// slidingWindowCounter keeps the count of the last charge's window in a, and the count of the
// window before in b.
type slidingWindowCounter direct

func (slidingWindowCounter) name() string { return "sliding_window_counter" }

// windows is the two counts as seen from an instant.
type windows struct {
	now               Instant
	elapsed           uint64 // ns into the current window, less than the period
	current, previous uint64
}

func (slidingWindowCounter) windows(l Limit, s State, now Instant) windows {
	if s.Unused() {
		return windows{now: now, elapsed: uint64(elapsed(l.Period, now))}
	}
	now = max(now, s.last)
	w := windows{now: now, elapsed: uint64(elapsed(l.Period, now)), current: s.a, previous: s.b}
	switch gone := past(s.last, now); {
	case gone <= w.elapsed:
	case gone <= w.elapsed+uint64(l.Period):
		w.current, w.previous = 0, s.a
	default:
		w.current, w.previous = 0, 0
	}
	return w
}

// carried returns how much the previous window still counts, in units of 1/Period hit.
func (w windows) carried(l Limit) wide {
	return product(w.previous, uint64(l.Period)-w.elapsed)
}

// used returns the estimate rounded up to whole hits, which leaves the remaining rounded down.
func (w windows) used(l Limit) uint64 {
	return w.current + w.carried(l).ceilDiv(uint64(l.Period))
}

// fit reports whether hits on top of the estimate stay within the limit, exactly.
func (w windows) fit(l Limit, hits uint64) bool {
	limit := uint64(l.Requests)
	if w.current > limit || hits > limit-w.current {
		return false
	}
	return w.carried(l).atMost(product(limit-w.current-hits, uint64(l.Period)))
}

// retry returns the wait until the estimate has decayed so far that hits fit, in this window or the
// next one. The hits must not fit now.
func (w windows) retry(l Limit, hits uint64) uint64 {
	limit, period := uint64(l.Requests), uint64(l.Period)
	if w.current <= limit && hits <= limit-w.current { // previous*(period-e) <= room*period, for the least e
		room := limit - w.current - hits
		return period - product(room, period).floorDiv(w.previous) - w.elapsed
	}
	room := limit - hits // in the next window: current*(period-e) <= room*period
	return period - w.elapsed + period - product(room, period).floorDiv(w.current)
}

// reset returns the wait until both windows have passed.
func (w windows) reset(l Limit) uint64 {
	switch {
	case w.current > 0:
		return 2*uint64(l.Period) - w.elapsed
	case w.previous > 0:
		return uint64(l.Period) - w.elapsed
	default:
		return 0
	}
}

func (w windows) state() State { return State{last: w.now, a: w.current, b: w.previous} }

func (c slidingWindowCounter) take(l Limit, s State, now Instant, hits int64, excess Excess) (State, Decision) {
	w := c.windows(l, s, now)
	var d Decision
	switch {
	case hits < 0:
		d.Allowed = true
		back := uint64(-hits)
		fromCurrent := min(back, w.current)
		w.current -= fromCurrent
		w.previous -= min(back-fromCurrent, w.previous)
		s = w.state()
	case w.fit(l, uint64(hits)):
		d.Allowed = true
		if hits > 0 {
			w.current += uint64(hits)
			s = w.state()
		}
	default:
		if most := excess.most(l); excess != Refuse && hits > 0 && w.used(l) < most {
			w.current += min(uint64(hits), most-w.used(l))
			s = w.state()
		}
	}
	d.ResetAfter = saturate(w.reset(l))
	if used := w.used(l); used < uint64(l.Requests) {
		d.Remaining = uint64(l.Requests) - used
	}
	switch {
	case d.Allowed:
	case l.Requests == 0 && hits > 0:
		return s, refused(l.Period - elapsed(l.Period, w.now))
	case hits > int64(l.Requests):
		d.RetryAfter = never(l, d.ResetAfter)
	default:
		d.RetryAfter = saturate(w.retry(l, uint64(hits)))
	}
	return s, d
}

func (c slidingWindowCounter) giveBack(l Limit, s State, charged, now Instant, hits uint64) State {
	w := c.windows(l, s, now)
	from := &w.current
	switch uint64(windowStart(l.Period, w.now)) - uint64(windowStart(l.Period, charged)) {
	case 0:
	case uint64(l.Period):
		from = &w.previous
	default:
		return s
	}
	if *from == 0 {
		return s
	}
	*from -= min(hits, *from)
	return w.state()
}

func (c slidingWindowCounter) idleAt(l Limit, s State) Instant {
	return s.last.Add(saturate(c.windows(l, s, s.last).reset(l)))
}

func (slidingWindowCounter) change(_, _ Limit, s State, _ Instant) State { return s }

// realign keeps the estimate of now. A window that ends later than before gets a previous count
// that decays from that estimate more slowly. A window that ends sooner gets the estimate as its
// own count.
func (c slidingWindowCounter) realign(l Limit, s State, now Instant, step time.Duration) State {
	w := c.windows(l, s, now)
	carried, left := w.carried(l), uint64(l.Period)-w.elapsed
	w.now = windowAfter(l, w.now, now, step)
	if after := uint64(l.Period - elapsed(l.Period, w.now)); after >= left {
		w.previous = carried.ceilDiv(after)
	} else {
		w.current, w.previous = w.current+carried.ceilDiv(uint64(l.Period)), 0
	}
	return w.state()
}

// rewind counts the hits of the window before, as far as they weigh at the last charge, in its
// window.
func (c slidingWindowCounter) rewind(l Limit, s State, now Instant, tolerance time.Duration) State {
	const most = 1<<40 - 1 // that a number of the record holds
	if s.last <= now.Add(tolerance) {
		return s
	}
	return State{last: now, a: min(c.windows(l, s, s.last).used(l), most)}
}

func (slidingWindowCounter) clamp(l Limit, s State, now Instant) State {
	const most = 2 * MaxOwed // a step of the clock adds to a count
	return State{last: min(s.last, now.Add(l.Period)), a: min(s.a, most), b: min(s.b, most)}
}

func (c slidingWindowCounter) content(l Limit, s State, now Instant) wide {
	w := c.windows(l, s, now)
	return product(w.current, uint64(l.Period)).plus(w.carried(l))
}

// A record holds the instant of the last charge, the count of its window and the count of the
// window before.
func (slidingWindowCounter) layout() string { return "755" }

func (slidingWindowCounter) record(_ Limit, s State) numbers {
	return numbers{s.last.ticks(), s.a, s.b}
}

func (slidingWindowCounter) restore(l Limit, n numbers) (State, Limit) {
	return State{last: instantOf(n[0]), a: n[1], b: n[2]}, l
}
