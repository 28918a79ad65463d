package algorithms

import "time"

// CalendarWindow is fixed_window with windows of [Limit.Calendar]: at most Requests hits in each
// window, and so up to twice as many across a boundary.
const CalendarWindow Algorithm = 7

// calendarWindow keeps the start of the window of the last charge in last, its count in a and its
// end in b.
type calendarWindow direct

func (calendarWindow) name() string { return fixedWindow{}.name() }

// stretch is the window of an instant, and the hits in it.
type stretch struct {
	now        Instant // held at the start of the key's window
	start, end Instant
	count      uint64
}

func (calendarWindow) at(l Limit, s State, now Instant) stretch {
	if s.Unused() {
		start, end := l.window(now)
		return stretch{now: now, start: start, end: end}
	}
	now = max(now, s.last)
	if end := Instant(s.b); now < end {
		return stretch{now: now, start: s.last, end: end, count: s.a}
	}
	start, end := l.window(now)
	return stretch{now: now, start: start, end: end}
}

// state returns the state of a key. A key with a count of 0 is as never used.
func (w stretch) state() State {
	if w.count == 0 {
		return State{}
	}
	return State{last: w.start, a: w.count, b: uint64(w.end)}
}

func (c calendarWindow) take(l Limit, s State, now Instant, hits int64, excess Excess) (State, Decision) {
	w := c.at(l, s, now)
	limit := l.PerPeriod()
	d := Decision{Allowed: true, ResetAfter: max(w.end.Sub(w.now), 1)}
	switch {
	case hits < 0:
		if w.count > 0 {
			w.count -= min(uint64(-hits), w.count)
			s = w.state()
		}
	case hits == 0:
		d.Allowed = w.count <= limit
	case w.count <= limit && uint64(hits) <= limit-w.count:
		w.count += uint64(hits)
		s = w.state()
	default:
		d.Allowed = false
		if excess != Refuse {
			w.count = min(w.count+uint64(hits), MaxCount)
			s = w.state()
		}
	}
	if !d.Allowed {
		d.RetryAfter = d.ResetAfter
	}
	if w.count < limit {
		d.Remaining = limit - w.count
	}
	return s, d
}

func (c calendarWindow) giveBack(l Limit, s State, charged, now Instant, hits uint64) State {
	w := c.at(l, s, now)
	if w.count == 0 || charged < w.start || charged >= w.end {
		return s
	}
	w.count -= min(hits, w.count)
	return w.state()
}

func (calendarWindow) idleAt(_ Limit, s State) Instant { return Instant(s.b) }

func (calendarWindow) change(_, _ Limit, s State, _ Instant) State { return s }

func (c calendarWindow) realign(l Limit, s State, now Instant, step time.Duration) State {
	w := c.at(l, s, now)
	w.start, w.end = l.moved(w.start, w.end, now, step)
	return w.state()
}

func (c calendarWindow) rewind(l Limit, s State, now Instant, tolerance time.Duration) State {
	if s.last <= now.Add(tolerance) {
		return s
	}
	start, end := l.window(now)
	return stretch{start: start, end: end, count: s.a}.state()
}

func (calendarWindow) clamp(l Limit, s State, now Instant) State {
	w := stretch{start: s.last, end: Instant(s.b), count: min(s.a, MaxCount)}
	w.start, w.end = l.clamped(w.start, w.end, now)
	return w.state()
}

func (c calendarWindow) content(l Limit, s State, now Instant) wide {
	return product(c.at(l, s, now).count, uint64(l.Period))
}

// A record holds the start of the window of the last charge, its count and its end.
func (calendarWindow) layout() string { return "777" }

func (calendarWindow) record(_ Limit, s State) numbers {
	return numbers{max(s.last, 0).ticks(), s.a, max(Instant(s.b), 0).ticks()}
}

func (calendarWindow) restore(l Limit, n numbers) (State, Limit) {
	return stretch{start: instantOf(n[0]), count: n[1], end: instantOf(n[2])}.state(), l
}

// late charges hits as of an earlier instant, see [Late].
func (c calendarWindow) late(l Limit, s State, at, now Instant, hits int64) State {
	if !s.Unused() && at < Instant(s.b) {
		if at < s.last || now >= Instant(s.b) {
			return s
		}
		s, _ = c.take(l, s, now, hits, Count)
		return s
	}
	if _, end := l.window(at); now < end {
		s, _ = c.take(l, s, at, hits, Count)
	}
	return s
}

// window returns the window that the first hit of a key at now falls into: start <= now < end. A
// window that begins with a hit starts at the whole second. Without a calendar the windows are
// aligned to the epoch, as for fixed_window. At the last instant the window is empty.
func (l Limit) window(now Instant) (start, end Instant) {
	switch {
	case l.Calendar == nil:
		return alignedWindow(l.Period, now)
	case l.Calendar.FirstHit():
		start, _ = alignedWindow(time.Second, now)
		return start, start.Add(l.Period)
	default:
		return l.Calendar.Window(now)
	}
}

// alignedWindow returns the aligned window of an instant, held at the first and the last instant.
func alignedWindow(period time.Duration, now Instant) (start, end Instant) {
	gone := elapsed(period, now)
	return now.Moved(-gone), now.Add(period - gone)
}

// moved returns the window of a key after a step of the clock at now, see Realign. A window that
// begins with a hit moves by whole seconds.
func (l Limit) moved(start, end, now Instant, step time.Duration) (Instant, Instant) {
	if l.Calendar != nil && l.Calendar.FirstHit() {
		if rest := step % time.Second; rest > 0 {
			step += time.Second - rest
		} else {
			step -= rest
		}
		return start.Moved(step), end.Moved(step)
	}
	next := now.Moved(step)
	if next >= end || next < start && past(next, start) >= uint64(l.Period) {
		return l.window(next)
	}
	return start, end
}

// clamped returns a window from outside if a key can have it at now: a calendar's window that
// begins at most a period ahead. Otherwise clamped returns the window of now, or of a period later.
func (l Limit) clamped(start, end, now Instant) (Instant, Instant) {
	switch latest := now.Add(l.Period); {
	case start >= end || past(start, end) > maxWindow:
		return l.window(now)
	case start > latest:
		return l.window(latest)
	}
	return start, end
}

// maxWindow is more than the longest window, which is ten years of a calendar.
const maxWindow = uint64(MaxPeriod + 30*24*time.Hour)
