package leased

import "time"

// slot is the time over which calls and hits of a key are added up, and for which a lease should
// suffice.
const slot = 100 * time.Millisecond

// rate is how often a key is asked here. In each average the last slot weighs a half, the slot
// before a quarter, and so on. The zero value is a key that was never asked.
type rate struct {
	number      int64 // of the current slot, by the holder's clock
	calls, hits int64 // in the current slot

	asked int64 // number of the slot of the last call

	usualCalls, usualHits int64 // averages of a slot, in 1/256
}

// fraction is the unit of the averages.
const fraction = 256

// mostHits bounds the hits of a slot, so that no average overflows.
const mostHits = 1 << 48

// note counts a call for some hits; hits is at least 0.
func (r *rate) note(now time.Duration, hits int64) {
	r.turn(now)
	r.asked = r.number
	r.calls++
	r.hits = min(r.hits+hits, mostHits)
}

// forget takes back a call that note has just counted.
func (r *rate) forget(hits int64) { r.calls, r.hits = max(0, r.calls-1), max(0, r.hits-hits) }

// turn ends the slots that are over. An instant before the current slot counts as of this slot.
func (r *rate) turn(now time.Duration) {
	number := int64(now / slot)
	if number <= r.number {
		return
	}
	gone := uint(min(number-r.number, 63))
	r.usualCalls = (r.usualCalls + r.calls*fraction) >> gone
	r.usualHits = (r.usualHits + r.hits*fraction) >> gone
	r.number, r.calls, r.hits = number, 0, 0
}

// perSlot returns the calls and hits to expect in a slot: the averages, or the current slot's if
// these are more already.
func (r *rate) perSlot(now time.Duration) (calls, hits int64) {
	r.turn(now)
	return max(r.calls, r.usualCalls/fraction), max(r.hits, r.usualHits/fraction)
}

// rests reports whether the key was not asked for a whole slot.
func (r *rate) rests(now time.Duration) bool { return int64(now/slot) > r.asked+1 }

// idle reports whether the key was not asked for a while.
func (r *rate) idle(now time.Duration) bool {
	calls, _ := r.perSlot(now)
	return calls == 0
}
