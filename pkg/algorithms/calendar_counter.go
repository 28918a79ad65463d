package algorithms

import "time"

// CalendarCounter is sliding_window_counter with windows of [Limit.Calendar]. With previous hits in
// the window before, which was Before long, the estimate is previous*(Before-elapsed)/Before +
// current. The window before weighs nothing once Before has passed, or unless it ends where the
// current one starts.
const CalendarCounter Algorithm = 8

// calendarCounter keeps the start of the window of the last charge in last. a and b are the counts
// of that window and of the window before, each above lengthBits of the window's length in seconds.
type calendarCounter direct

const (
	lengthBits = 29 // of maxWindow in seconds
	maxLength  = 1<<lengthBits - 1
	maxWeight  = 1<<34 - 1 // of a count: more than MaxOwed
)

func (calendarCounter) name() string { return slidingWindowCounter{}.name() }

// stretches is the window of an instant and the one before, and the hits in them.
type stretches struct {
	now, start               Instant // now is held at the start of the key's window
	length, before           uint64  // ns; before is 0 unless the window before ends at the start
	current, previous, spent uint64  // spent is the elapsed ns of the window
}

// load takes over the parts of a state.
func (w *stretches) load(s State) {
	second := uint64(time.Second)
	w.now, w.start = s.last, s.last
	w.length, w.before = s.a&maxLength*second, s.b&maxLength*second
	w.current, w.previous = s.a>>lengthBits, s.b>>lengthBits
}

func stretchesOf(s State) (w stretches) {
	w.load(s)
	return w
}

func (c calendarCounter) at(l Limit, s State, now Instant) (w stretches) {
	w.see(l, s, now)
	return w
}

// see makes w the windows of a key, as at does, without a copy: that would take as long as the rest
// of a decision.
func (w *stretches) see(l Limit, s State, now Instant) {
	w.load(s)
	w.now = max(now, w.start)
	w.spent = past(w.start, w.now)
	if w.current == 0 || w.now >= w.end() {
		*w = calendarCounter{}.turn(l, s, now)
	}
}

// turn is at for a key without hits in its window, and for an instant behind the end of its window.
func (c calendarCounter) turn(l Limit, s State, now Instant) stretches {
	if s.Unused() || c.idleAt(l, s) <= now {
		start, end := l.window(now)
		return stretches{now: now, start: start, length: wholeSeconds(start, end), spent: past(start, now)}
	}
	w := stretchesOf(s)
	w.now = max(now, w.start)
	if end := w.end(); w.now >= end && end > w.start {
		start, next := l.window(w.now)
		if l.begins() && past(end, w.now) < min(uint64(l.Period), w.length) {
			start, next = end, end.Add(l.Period)
		}
		before, previous := w.length, w.current
		if start > end {
			before, previous = 0, 0
		}
		start = max(start, end)
		w = stretches{now: w.now, start: start, length: wholeSeconds(start, next), before: before, previous: previous}
	}
	w.spent = past(w.start, w.now)
	return w
}

// begins reports whether a window begins with a hit.
func (l Limit) begins() bool { return l.Calendar != nil && l.Calendar.FirstHit() }

// wholeSeconds returns the length of a window in nanoseconds, rounded up to whole seconds.
func wholeSeconds(start, end Instant) uint64 {
	second := uint64(time.Second)
	return (past(start, end) + second - 1) / second * second
}

func (w *stretches) end() Instant { return w.start.after(w.length) }

// left returns how long the window before still weighs, in ns.
func (w *stretches) left() uint64 { return w.before - min(w.spent, w.before) }

// carried returns how much the window before still counts, in units of 1/before hit.
func (w *stretches) carried() wide { return product(w.previous, w.left()) }

// used returns the estimate rounded up to whole hits, which leaves the remaining rounded down.
func (w *stretches) used() uint64 {
	if w.previous == 0 {
		return w.current
	}
	return w.current + w.carried().ceilDiv(w.before)
}

// fit reports whether hits on top of the estimate stay within the limit, exactly.
func (w *stretches) fit(limit, hits uint64) bool {
	if w.current > limit || hits > limit-w.current {
		return false
	}
	return w.previous == 0 || w.carried().atMost(product(limit-w.current-hits, w.before))
}

// next returns how long the current window weighs in the next one, in ns. Without a calendar the
// next window counts as no shorter.
func (w *stretches) next(l Limit) uint64 {
	switch {
	case l.Calendar == nil:
		return w.length
	case l.Calendar.FirstHit():
		return min(w.length, uint64(l.Period))
	}
	end := w.end()
	if around := l.Calendar.Around(w.start); around[2] == end {
		return min(w.length, past(end, around[3]))
	}
	_, next := l.Calendar.Window(end) // the calendar has changed
	return min(w.length, past(end, next))
}

// retry returns the wait until the estimate has decayed so far that hits fit, in this window or the
// next ones. The hits must not fit now, and are at most the limit.
func (w *stretches) retry(l Limit, hits uint64) uint64 {
	limit := uint64(l.Requests)
	if w.current <= limit && hits <= limit-w.current { // previous*(before-e) <= room*before, for the least e
		room := limit - w.current - hits
		if e := w.before - product(room, w.before).floorDiv(w.previous); e < w.length {
			return e - w.spent
		}
	}
	wait := w.length - min(w.spent, w.length)
	room := limit - hits // in the next window: current*(length-e) <= room*length
	if w.current <= room {
		return wait
	}
	return wait + min(w.length-product(room, w.length).floorDiv(w.current), w.next(l))
}

// reset returns the wait until both windows weigh nothing.
func (w *stretches) reset(l Limit) uint64 {
	switch {
	case w.current > 0:
		return w.length - min(w.spent, w.length) + w.next(l)
	case w.previous > 0:
		return min(w.left(), w.length-min(w.spent, w.length))
	default:
		return 0
	}
}

// state returns the state of a key. A key without hits is as never used.
func (w *stretches) state() State {
	if w.current|w.previous == 0 {
		return State{}
	}
	second := uint64(time.Second)
	return State{last: w.start, a: w.current<<lengthBits | w.length/second, b: w.previous<<lengthBits | w.before/second}
}

func (calendarCounter) take(l Limit, s State, now Instant, hits int64, excess Excess) (State, Decision) {
	limit := uint64(l.Requests)
	var w stretches
	w.see(l, s, now)
	var d Decision
	switch {
	case hits < 0:
		d.Allowed = true
		back := uint64(-hits)
		fromCurrent := min(back, w.current)
		w.current -= fromCurrent
		w.previous -= min(back-fromCurrent, w.previous)
		s = w.state()
	case w.fit(limit, uint64(hits)):
		d.Allowed = true
		if hits > 0 {
			w.current += uint64(hits)
			s = w.state()
		}
	default:
		if used, most := w.used(), excess.most(l); hits > 0 && used < most {
			w.current += min(uint64(hits), most-used)
			s = w.state()
		}
	}
	d.ResetAfter = saturate(w.reset(l))
	if used := w.used(); used < limit {
		d.Remaining = uint64(l.Requests) - used
	}
	switch {
	case d.Allowed:
	case l.Requests == 0 && hits > 0:
		return s, refused(saturate(w.length - min(w.spent, w.length)))
	case hits > int64(l.Requests):
		d.RetryAfter = never(l, d.ResetAfter)
	default:
		d.RetryAfter = max(saturate(w.retry(l, uint64(hits))), 1)
	}
	return s, d
}

func (c calendarCounter) giveBack(l Limit, s State, charged, now Instant, hits uint64) State {
	w := c.at(l, s, now)
	from := &w.current
	switch {
	case charged >= w.end():
		return s
	case charged >= w.start:
	case past(charged, w.start) <= w.before:
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

// late charges hits as of an earlier instant, see [Late].
func (c calendarCounter) late(l Limit, s State, at, now Instant, hits int64) State {
	w := c.at(l, s, now)
	if at >= w.start || l.begins() && s.Unused() {
		s, _ = c.take(l, s, at, hits, Count)
		return s
	}
	if w.before == 0 && !l.begins() { // no hit of the window before is known
		if from, end := l.window(at); end == w.start {
			w.before = wholeSeconds(from, end)
		}
	}
	if past(at, w.start) > w.before {
		return s
	}
	w.previous = max(w.previous, min(w.previous+uint64(hits), Count.most(l)))
	return w.state()
}

// idleAt is later than the reset where the next window is shorter. Under another calendar the hits
// may still weigh then.
func (c calendarCounter) idleAt(_ Limit, s State) Instant {
	w := stretchesOf(s)
	if w.current > 0 {
		return w.end().after(w.length)
	}
	return w.start.after(min(w.before, w.length))
}

func (calendarCounter) change(_, _ Limit, s State, _ Instant) State { return s }

// realign keeps the estimate of now. In the same window the window before gets a count that weighs
// as much. A new window gets the estimate as its own count.
func (c calendarCounter) realign(l Limit, s State, now Instant, step time.Duration) State {
	w := c.at(l, s, now)
	if l.begins() {
		w.start, _ = l.moved(w.start, w.end(), now, step)
		return w.state()
	}
	after := w
	start, end := l.moved(w.start, w.end(), now, step)
	after.spent = past(start, now.Moved(step))
	switch left := after.left(); {
	case start != w.start || left == 0 && w.previous > 0:
		after = stretches{start: start, length: wholeSeconds(start, end), current: min(w.used(), maxWeight)}
	case left < w.left() && w.previous > 0:
		after.previous = min(w.carried().ceilDiv(left), maxWeight)
	}
	return after.state()
}

// rewind counts the hits of the window before, as far as they weigh at the start, in its window.
func (c calendarCounter) rewind(l Limit, s State, now Instant, tolerance time.Duration) State {
	if s.last <= now.Add(tolerance) {
		return s
	}
	start, end := l.window(now)
	w := stretchesOf(s)
	w = stretches{start: start, length: wholeSeconds(start, end), current: min(w.used(), maxWeight)}
	return w.state()
}

func (calendarCounter) clamp(l Limit, s State, now Instant) State {
	w := stretchesOf(s)
	w.current, w.previous = min(w.current, maxWeight), min(w.previous, maxWeight)
	if w.before == 0 {
		w.previous = 0
	}
	start, end := l.clamped(w.start, w.end(), now)
	if start != w.start {
		w = stretches{start: start, length: wholeSeconds(start, end), current: min(w.used(), maxWeight)}
	}
	return w.state()
}

// content is of whole hits, rounded up: the units of two windows differ.
func (c calendarCounter) content(l Limit, s State, now Instant) wide {
	w := c.at(l, s, now)
	return product(w.used(), uint64(l.Period))
}

// A record holds the start of the last charge's window, two counts, and two lengths in seconds: of
// that window, and of the window before.
func (calendarCounter) layout() string { return "75544" }

func (calendarCounter) record(_ Limit, s State) numbers {
	return numbers{max(s.last, 0).ticks(), s.a >> lengthBits, s.b >> lengthBits, s.a & maxLength, s.b & maxLength}
}

func (calendarCounter) restore(l Limit, n numbers) (State, Limit) {
	weight := func(count, length uint64) uint64 { return min(count, maxWeight)<<lengthBits | length&maxLength }
	return State{last: instantOf(n[0]), a: weight(n[1], n[3]), b: weight(n[2], n[4])}, l
}
