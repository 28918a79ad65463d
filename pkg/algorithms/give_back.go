package algorithms

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
		next, limit, _ := TakeAs(was, l, s, now, -int64(hits), false)
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

// windowed is an algorithm that counts hits in windows.
type windowed interface {
	giveBack(l Limit, s State, charged, now Instant, hits uint64) State // see GiveBack; s is not unused
}

func (f fixedWindow) giveBack(l Limit, s State, charged, now Instant, hits uint64) State {
	count, now := f.count(l, s, now)
	if count == 0 || windowStart(l.Period, charged) != windowStart(l.Period, now) {
		return s
	}
	return State{last: now, a: count - min(hits, count)}
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

// GiveBack gives hits back that were taken at instant charged: from the entry of exactly that
// instant, at most its hits. Without such an entry the log stays as it is. An entry in the middle
// of n others takes the time of n/2 moves.
func (g *Log) GiveBack(l Limit, now, charged Instant, hits uint32) {
	i, found := g.find(charged)
	if !found || hits == 0 || g.expired(l, g.at(i), g.held(now)) {
		return
	}
	g.last = g.held(now)
	e := g.at(i)
	back := min(uint64(hits), e.hits)
	e.hits -= back
	g.hits -= back
	if e.hits == 0 {
		g.remove(i)
		g.shrink()
	}
}

// find returns the first entry that is not before an instant, and whether the entry is of that
// instant.
func (g *Log) find(at Instant) (i int, found bool) {
	low, high := 0, g.len
	for low < high {
		if middle := low + (high-low)/2; g.at(middle).at < at {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low, low < g.len && g.at(low).at == at
}

// remove takes the i-th oldest entry out of the ring, and moves the fewer ones of the older and the
// newer entries.
func (g *Log) remove(i int) {
	if i < g.len/2 {
		for ; i > 0; i-- {
			*g.at(i) = *g.at(i - 1)
		}
		g.head = (g.head + 1) & (len(g.ring) - 1)
	} else {
		for ; i < g.len-1; i++ {
			*g.at(i) = *g.at(i + 1)
		}
	}
	g.len--
}
