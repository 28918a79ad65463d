package memstore

import "github.com/weirproxy/weir/pkg/algorithms"

// logs keeps the logs of sliding_window_log by numbers. The state of a slot names its log and
// summarizes the log, so that samples and sweeps read no logs. A number lives as long as its slot.
// Not safe for concurrent use.
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
		return logState{number: number}.state()
	}
	l.known = append(l.known, log)
	return logState{number: uint32(len(l.known) - 1)}.state()
}

// of returns the log that the state of a slot names.
func (l *logs) of(s algorithms.State) *algorithms.Log { return l.known[logStateOf(s).number] }

// release gives up the log that the state of a slot names.
func (l *logs) release(s algorithms.State) {
	number := logStateOf(s).number
	l.known[number] = nil
	l.free = append(l.free, number)
}

// shrink frees the memory of unused numbers when these are the majority. The result has the new
// numbers by the old ones, and all slots must get their new numbers at once. Nil: nothing has
// changed.
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

// logState is the state of a slot with a log.
type logState struct {
	idle   algorithms.Instant // when the log is idle
	used   uint32             // hits of the limit used at the last charge; some may have expired since
	number uint32             // of the log
}

func logStateOf(s algorithms.State) logState {
	idle, used, number := s.Parts()
	return logState{idle, uint32(used), uint32(number)}
}

func (l logState) state() algorithms.State {
	return algorithms.StateOf(l.idle, uint64(l.used), uint64(l.number))
}

// after returns the state after a decision on the log.
func (l logState) after(log *algorithms.Log, limit *algorithms.Limit, d algorithms.Decision) algorithms.State {
	l.idle = log.IdleAt(*limit)
	if limit.Requests > 0 { // a ban says nothing about the log
		l.used = limit.Requests - uint32(d.Remaining)
	}
	return l.state()
}

// summarizeLocked updates the state of a slot whose log has changed otherwise than by one charge.
// mu must be held.
func (sh *shard) summarizeLocked(s *slot, now algorithms.Instant) {
	limit, log := sh.limits.of(s.limit()), sh.logs.of(s.state)
	_, d := log.Decide(*limit, now, algorithms.Pending{}, 0, false)
	s.state = logStateOf(s.state).after(log, limit, d)
}
