package leased

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

const (
	fewCalls    = 4        // in a slot: from then on a key is worth a lease
	leastHits   = 2        // a smaller grant saves nothing
	waits       = 3        // parts of a short lease, of which a grant is spent in one
	longestTrip = 2 * slot // of a grant for which a lease makes up
	pause       = slot     // without grants after one that was denied, or that failed
)

// want returns how many hits the holder should ask the store for now; 0: none. fleet is how many
// processes share the store, at least 1. After want has returned hits the holder must call granted
// or failed.
//
// The hits suffice for a slot and two round trips at the usual rate. So half of the hits suffice
// until the next grant comes. A grant waits while another is spent, so hits of a bucket suffice for
// a third of a lease at most. The most is half of the rest, divided by the fleet. Hits that the
// holder asks about do not belong to the rest. A bucket that lacks less than its park is asked for
// more.
func (l *lease) want(now time.Duration, fleet int) int64 {
	if l.asked > 0 || l.second.left > 0 || l.bounds.length == 0 || l.told.Now == 0 || now < l.quiet {
		return 0
	}
	if g := &l.first; 2*g.left > g.size && now < g.half {
		return 0
	}
	calls, hits := l.rate.perSlot(now)
	if calls < fewCalls {
		return 0
	}
	at := l.instant(now)
	spent := l.bounds.length / waits
	if w := l.bounds.window; w > 0 {
		if spent = untilEnd(w, at); spent < shortest {
			return 0
		}
	}
	spent = min(spent, slot+2*min(l.trip, longestTrip)) // the time in which the hits are spent
	hits = int64(scale(spent, uint64(hits), uint64(slot)))
	left, park := l.rest(at)
	hits = min(hits, (left-park-l.under)/(2*int64(fleet)), algorithms.MaxHits-park)
	if hits < leastHits {
		return 0
	}
	l.asked, l.wanted, l.fate = hits+park, hits, keep
	return l.asked
}

// rest returns the hits that the store would still admit by the last state that was told, and how
// many of them must be parked.
func (l *lease) rest(at algorithms.Instant) (left, park int64) {
	state := l.told
	left = int64(state.Take(l.limit, at, 0, false).Remaining)
	if park = l.bounds.park; park > 0 {
		park = max(0, park+park/reserve+1-l.deficit(left))
	}
	return left, park
}

// deficit returns how many whole hits a bucket lacks at least, of which remaining would pass.
func (l *lease) deficit(remaining int64) int64 {
	return int64(l.limit.Capacity()) - remaining - 1
}

// granted enters the hits of the grant under way, which the store has decided, with the state that
// it told. begun is an instant before the store was asked. The result is hits that must be given
// back at once.
func (l *lease) granted(begun, now time.Duration, d algorithms.Decision, told *store.State) (back part) {
	hits, wanted, fate := l.asked, l.wanted, l.fate
	l.asked, l.wanted, l.fate = 0, 0, keep
	if fate == lose {
		return part{}
	}
	l.hear(now, told)
	if l.bounds.park > 0 {
		hits = min(hits, l.deficit(int64(d.Remaining))-l.bounds.park) // all others stay charged
	}
	if !d.Allowed || told.Now == 0 || hits <= 0 {
		l.quiet = now + pause
		return part{}
	}
	at, length := told.Now, l.bounds.length
	if w := l.bounds.window; w > 0 {
		at, _, _ = told.State.Parts() // lies in the window that was charged, also where that is another clock's
		length = min(length, untilEnd(w, told.Now))
	}
	ends := begun + length - length/drift - slack
	if fate == giveBack || ends <= now {
		return part{hits, at}
	}
	if hits > 2*wanted { // others have parked meanwhile
		back = part{hits - wanted, at}
		hits = wanted
	}
	g := grant{left: hits, size: hits, at: at, half: now + (ends-now)/2, ends: ends}
	if l.first.left == 0 {
		l.first = g
	} else {
		l.second = g
	}
	return back
}

// failed notes that the store has not decided the grant under way, and returns the hits that may go
// back if the store charges them. Hits of a bucket stay charged, as the holder does not know
// whether enough are parked.
func (l *lease) failed(now time.Duration) (hits int64) {
	if l.bounds.park == 0 && l.fate != lose {
		hits = l.asked
	}
	l.asked, l.fate, l.quiet = 0, keep, now+pause
	return hits
}
