package top

const (
	perMinute = 12 // slices of a minute
	minutes   = 9  // whole minutes of ten; the tenth is the one that goes on
	longest   = perMinute * (minutes + 1)
)

// cell is the hits of a time.
type cell struct{ hits, denied uint64 } // hits with the denied ones

func (c *cell) add(other cell) { c.hits, c.denied = c.hits+other.hits, c.denied+other.denied }

func (c cell) weight() uint64 { return c.hits + (deniedWeight-1)*c.denied }

// entry is the part of a place that the lock of its bucket guards.
type entry struct {
	text      []byte // of the key; the memory stays with the place
	cut       bool   // the text was longer
	group     *Group // of the key, or nil
	recent    [perMinute]cell
	minutes   [minutes]cell
	carried   uint64 // allowed hits of this slice that do not fit in the head
	score     uint64 // of all but this slice
	inherited uint64 // the rest of the score of the key that was here before

	missing, missingDenied uint64 // the hits that may have come while the key was not tracked
	since                  uint64 // the slice until which hits may be missing; 0: none is
}

// start makes the place one of a new key. The hits before are a geometric variable with the mean
// score, and came until the slice since; 0: there was no hit before.
func (e *entry) start(text []byte, group *Group, score, since uint64) {
	*e = entry{text: append(e.text[:0], text[:min(len(text), maxText)]...), cut: len(text) > maxText, group: group, since: since}
	if since > 0 {
		hits := score / group.weigh()
		e.missing, e.missingDenied = confidence*(hits+1), confidence*(hits+deniedWeight)/deniedWeight
	}
}

// end ends a slice, the number of which is at least 1.
func (e *entry) end(slice uint64, now cell) {
	e.carried = 0
	e.recent[slice%perMinute] = now
	if slice%perMinute == 0 {
		e.minutes[slice/perMinute%minutes] = e.minute()
	}
	e.inherited -= (e.inherited + perMinute - 1) / perMinute
	ten := e.tenMinutes(slice)
	e.score = e.group.weigh()*max(e.minute().weight(), (ten.weight()+9)/10) + e.inherited
}

// idle reports whether there was no hit in ten minutes.
func (e *entry) idle() bool {
	return e.score == 0
}

// minute returns the hits of the last perMinute slices that have ended.
func (e *entry) minute() (sum cell) {
	for _, c := range e.recent {
		sum.add(c)
	}
	return sum
}

// tenMinutes returns the hits of the last whole minutes and of the slices after them. last is the
// last slice that has ended.
func (e *entry) tenMinutes(last uint64) (sum cell) {
	for _, c := range e.minutes {
		sum.add(c)
	}
	for n := range last % perMinute {
		sum.add(e.recent[(last-n)%perMinute])
	}
	return sum
}

// window returns the hits of a window without the slice that goes on, and the errors of the hits.
func (e *entry) window(w Window, last uint64) (sum, missing cell) {
	if w == TenMinutes {
		sum = e.tenMinutes(last)
	} else {
		oldest := e.recent[(last+1)%perMinute]
		sum = e.minute()
		sum = cell{sum.hits - oldest.hits, sum.denied - oldest.denied}
	}
	if n := w.slices(last); e.since > 0 && e.since+n > last {
		// The key may have been tracked before, and lost its place as the key with the smallest score:
		// the score is hits of a minute.
		before := min(e.since+n-last-1, e.since) / perMinute
		missing = cell{e.missing + before*e.missing/confidence, e.missingDenied + before*e.missingDenied/confidence}
	}
	return sum, missing
}
