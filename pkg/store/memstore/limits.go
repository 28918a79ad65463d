package memstore

import "github.com/weirproxy/weir/pkg/algorithms"

// limits numbers the distinct limits of the last charges of a shard's states, so that a slot names
// its limit in two bytes. A number lives as long as a slot has it. There is at most one number more
// than keys in the shard, and New makes enough shards to stay far below 65536. Not safe for
// concurrent use.
type limits struct {
	known   []knownLimit
	numbers map[algorithms.Limit]uint16
	free    []uint16
	last    uint16 // the last number that hold gave out, which most keys need next
}

type knownLimit struct {
	limit algorithms.Limit
	slots int
}

// of returns the limit of that number.
func (l *limits) of(number uint16) *algorithms.Limit { return &l.known[number].limit }

// hold returns the number of the limit for one more slot.
func (l *limits) hold(limit algorithms.Limit) uint16 {
	if int(l.last) < len(l.known) {
		if k := &l.known[l.last]; k.slots > 0 && k.limit == limit {
			k.slots++
			return l.last
		}
	}
	number, ok := l.numbers[limit]
	if !ok {
		if n := len(l.free); n > 0 {
			number, l.free = l.free[n-1], l.free[:n-1]
		} else {
			number = uint16(len(l.known))
			l.known = append(l.known, knownLimit{})
		}
		l.known[number] = knownLimit{limit: limit}
		if l.numbers == nil {
			l.numbers = make(map[algorithms.Limit]uint16)
		}
		l.numbers[limit] = number
	}
	l.known[number].slots++
	l.last = number
	return number
}

// release gives up one slot's hold of the number.
func (l *limits) release(number uint16) {
	k := &l.known[number]
	if k.slots--; k.slots == 0 {
		delete(l.numbers, k.limit)
		l.free = append(l.free, number)
	}
}

// minLimits is the number of limits up to which shrink does nothing.
const minLimits = 4 * minHomes

// shrink frees the memory of unused numbers when these are the majority: requests with limits of
// their own can make a number for each key. The result has the new numbers by the old ones, and all
// slots must get their new numbers at once. Nil: nothing has changed.
func (l *limits) shrink() (renumbered []uint16) {
	if len(l.known) <= minLimits || len(l.numbers) >= len(l.known)/2 {
		return nil
	}
	renumbered = make([]uint16, len(l.known))
	next := limits{known: make([]knownLimit, 0, len(l.numbers)), numbers: make(map[algorithms.Limit]uint16, len(l.numbers))}
	for limit, number := range l.numbers {
		renumbered[number] = uint16(len(next.known))
		next.numbers[limit] = renumbered[number]
		next.known = append(next.known, l.known[number])
	}
	*l = next
	return renumbered
}
