package memstore

import "github.com/weirproxy/weir/pkg/algorithms"

// The bound of a store is in places, so that the bound holds for memory too. A key takes one place,
// for its slot. A key of sliding_window_log takes further places for its log, rounded up: two with
// one instant.
const (
	// placeBytes is the memory of one place in bytes: a slot of 40 bytes in a table that is 0.78 full.
	// Growing leaves tables so full.
	placeBytes = 52
	// logBytes is the memory of a log without its entries, in bytes. The allocator rounds the Log up
	// to 64. There is a pointer of 8 bytes to the log, and a number of 4 bytes among the free ones.
	// Slices of both are up to twice as large as their content.
	logBytes = 64 + 2*8 + 2*4
)

// placesOf returns the places that a log takes whose entries have that many bytes, rounded up.
func placesOf(entries int) int { return (logBytes + entries + placeBytes - 1) / placeBytes }

// placesLocked returns the places that a slot takes. mu must be held.
func (sh *shard) placesLocked(s *slot) int {
	if sh.limits.of(s.limit()).Algorithm != algorithms.SlidingWindowLog {
		return 1
	}
	return 1 + placesOf(sh.logs.of(s.state).Size())
}

// heldLocked returns the places that the key of the view takes before the commit. mu must be held.
func (v *view) heldLocked() int {
	switch {
	case !v.found:
		return 0
	case v.log == nil:
		return 1
	default:
		return 1 + placesOf(v.log.Size())
	}
}

// wantsLocked returns the further places that the commit of the view takes. mu must be held.
func (v *view) wantsLocked(now algorithms.Instant) int {
	switch {
	case v.log == nil:
		if v.grows() {
			return 1
		}
		return 0
	case !v.found && !v.used():
		return 0
	default:
		after := v.log.SizeAfter(v.limit, now, v.pending)
		if v.found && after == v.log.Size() {
			return 0
		}
		return 1 + placesOf(after) - v.heldLocked()
	}
}
