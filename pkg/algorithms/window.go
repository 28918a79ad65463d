package algorithms

// Window returns the window of an instant, under a limit whose count begins anew with each window:
// start <= now < end. ok is false under other algorithms, and where windows begin with the first
// hit of a key. A key may keep a window of an earlier calendar, see [Calendar].
func (l Limit) Window(now Instant) (start, end Instant, ok bool) {
	switch {
	case !l.Algorithm.HasWindows(), l.Period <= 0:
		return 0, 0, false
	case l.Calendar != nil && l.Calendar.FirstHit():
		return 0, 0, false
	}
	start, end = l.window(now)
	return start, end, true
}

// HasWindows reports whether the count of a key begins anew with each window.
func (a Algorithm) HasWindows() bool { return a == FixedWindow || a == CalendarWindow }

// WindowOf returns the window of an instant under a limit with windows, also of a sliding count. A
// hit at the instant begins a window of first hits.
func (l Limit) WindowOf(now Instant) (start, end Instant) { return l.window(now) }
