package memstore

import "github.com/weirproxy/weir/pkg/algorithms"

// logs keeps the logs of sliding_window_log by numbers: a slot names its log in its state. A number lives as long as its slot. Not
// safe for concurrent use.
type logs struct {
	known []*algorithms.Log
	free  []uint32
}

// hold keeps the log and returns the state of a slot that names the log.
func (l *logs) hold(log *algorithms.Log) algorithms.State {
	if n := len(l.free); n > 0 {
		number := l.free[n-1]
		l.free = l.free[:n-1]
		l.known[number] = log
		return logState(number)
	}
	l.known = append(l.known, log)
	return logState(uint32(len(l.known) - 1))
}

// of returns the log that the state of a slot names.
func (l *logs) of(s algorithms.State) *algorithms.Log { return l.known[logNumber(s)] }

// release gives up the log that the state of a slot names.
func (l *logs) release(s algorithms.State) {
	number := logNumber(s)
	l.known[number] = nil
	l.free = append(l.free, number)
}

// shrink frees the memory of unused numbers when these are the majority. The result has the new numbers by the old ones, and all slots
// must get their new numbers at once. Nil: nothing has changed.
func (l *logs) shrink() (renumbered []uint32) {
	if len(l.known) <= minLimits || 2*len(l.free) <= len(l.known) {
		return nil
	}
	renumbered = make([]uint32, len(l.known))
	next := make([]*algorithms.Log, 0, len(l.known)-len(l.free))
	for number, log := range l.known {
		if log != nil {
			renumbered[number] = uint32(len(next))
			next = append(next, log)
		}
	}
	*l = logs{known: next}
	return renumbered
}

// logState returns the state of a slot that names a log by its number.
func logState(number uint32) algorithms.State { return algorithms.StateOf(0, 1, uint64(number)) }

func logNumber(s algorithms.State) uint32 {
	_, _, number := s.Parts()
	return uint32(number)
}
