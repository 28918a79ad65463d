package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirproxy/weir/bench/drive"
)

// limit is a fixed window.
type limit struct {
	most     int
	period   time.Duration
	anchored bool // a window begins with the first hit after the last one; else at a multiple of the period
}

// slack is how far the clocks of a service and its Redis may be from the client's. All run on one
// machine, and some count milliseconds.
const slack = int64(2 * time.Millisecond)

// tally is the verdict of the oracle.
type tally struct {
	asked, admitted, failed int
	over                    int // admitted beyond a window's limit: a lower bound
	under                   int // denied although the window had room: a lower bound
}

func (t *tally) add(o tally) {
	t.asked, t.admitted, t.failed = t.asked+o.asked, t.admitted+o.admitted, t.failed+o.failed
	t.over, t.under = t.over+o.over, t.under+o.under
}

// window is when a window may have begun and ended, at the earliest and the latest.
type window struct{ from, latestFrom, to, latestTo int64 }

// surely reports whether a request was decided in the window.
func (w window) surely(r *drive.Record) bool { return r.Sent >= w.latestFrom && r.Received < w.to }

// perhaps reports whether a request may have been decided in the window.
func (w window) perhaps(r *drive.Record) bool { return r.Received >= w.from && r.Sent < w.latestTo }

// judge counts the wrong answers to the requests for one key, of one hit each. The oracle
// has only the instants of requests and answers. So a hit counts as over only if no instants of the
// decisions explain it, and a denial as under the same.
func judge(l limit, all []drive.Record) (t tally) {
	t.asked = len(all)
	for i := range all {
		switch all[i].Result {
		case drive.Allowed:
			t.admitted++
		case drive.Failed, drive.Unreached, drive.Open:
			t.failed++
		case drive.Denied:
		}
	}
	over, under, full := 0, 0, true // of the windows up to here, taken together
	for n, w := range l.windows(all) {
		f := w.find(all)
		t.over += max(0, f.sure-l.most)
		t.under += min(f.denied, max(0, l.most-f.perhaps))
		over = max(over, f.ended-(n+1)*l.most)
		if full = full && f.denied > 0; full {
			under = max(under, min(f.denied, (n+1)*l.most-f.begun))
		}
	}
	t.over, t.under = max(t.over, over), max(t.under, under)
	return t
}

// found is the hits and denials around a window.
type found struct {
	sure, perhaps int // hits in the window
	denied        int // surely in the window
	ended, begun  int // hits surely in the windows up to this one, and perhaps
}

// find counts around a window. A request that failed may have been charged.
func (w window) find(all []drive.Record) (f found) {
	for i := range all {
		r := &all[i]
		if r.Result == drive.Denied {
			if w.surely(r) {
				f.denied++
			}
			continue
		}
		if w.perhaps(r) {
			f.perhaps++
		}
		if r.Sent < w.latestTo {
			f.begun++
		}
		if r.Result == drive.Allowed && r.Received < w.to {
			f.ended++
			if w.surely(r) {
				f.sure++
			}
		}
	}
	return f
}

// windows returns the windows of a key that has these requests.
func (l limit) windows(all []drive.Record) (windows []window) {
	if len(all) == 0 {
		return nil
	}
	period := int64(l.period)
	if l.anchored {
		return l.anchors(all)
	}
	first, last := all[0].Sent, all[0].Received
	for i := range all {
		first, last = min(first, all[i].Sent), max(last, all[i].Received)
	}
	for at := first - first%period; at <= last; at += period {
		windows = append(windows, window{at - slack, at + slack, at + period - slack, at + period + slack})
	}
	return windows
}

// anchors follows windows that begin with their first hit. The first request after the end of a
// window is admitted, and so begins the next.
func (l limit) anchors(all []drive.Record) (windows []window) {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(x, y drive.Record) int { return cmp.Compare(x.Sent, y.Sent) })
	for from, after := sorted[0].Sent, sorted[0].Sent; ; {
		latest := int64(-1) // the earliest answer that shows that the window has begun
		for i := range sorted {
			if r := &sorted[i]; r.Result == drive.Allowed && r.Sent >= after && (latest < 0 || r.Received < latest) {
				latest = r.Received
			}
		}
		if latest < 0 {
			return windows
		}
		// A request after the end of the last window is in this one, or in a later one.
		w := window{from - slack, after, from + int64(l.period) - slack, latest + int64(l.period) + slack}
		windows = append(windows, w)
		i := slices.IndexFunc(sorted, func(r drive.Record) bool { return r.Received >= w.to })
		if i < 0 {
			return windows
		}
		from, after = max(w.to, sorted[i].Sent), w.latestTo
	}
}
