package memstore

import (
	"log/slog"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// clock tells instants: the wall clock of the start, and the monotonic time since. A clock never
// changes; after a step of the wall clock the store has another one.
type clock struct {
	start   time.Time                 // with its monotonic reading
	epoch   int64                     // of start in Unix nanoseconds, and all steps since
	virtual func() algorithms.Instant // tells the instants, if it is not nil; then there are no steps
}

func (c *clock) now() algorithms.Instant {
	if c.virtual != nil {
		return c.virtual()
	}
	return algorithms.Instant(c.epoch + int64(time.Since(c.start)))
}

// ahead returns by how much a reading of the wall clock is ahead of the clock.
func (c *clock) ahead(t time.Time, wall func(time.Time) int64) time.Duration {
	return time.Duration(wall(t) - c.epoch - int64(t.Sub(c.start)))
}

// minStep is the smallest step of the wall clock that the store follows. NTP corrects less by
// another speed of both clocks.
const minStep = 100 * time.Millisecond

// step returns the step of the wall clock since the store last followed it; 0 if it is smaller than
// minStep. A process that the system stops between its readings of the two clocks would see a step,
// so the smallest of three is the step.
func (s *Store) step() time.Duration {
	c := s.clock.Load()
	if c.virtual != nil {
		return 0
	}
	step := c.ahead(time.Now(), s.wall)
	for tries := 0; tries < 2 && step.Abs() >= minStep; tries++ {
		if again := c.ahead(time.Now(), s.wall); again.Abs() < step.Abs() {
			step = again
		}
	}
	if step.Abs() < minStep {
		return 0
	}
	return step
}

// followWallClock realigns the windows of all keys after a step of the wall clock. A shard whose
// turn is yet to come follows when the next charge locks it, so that no charge sees two clocks.
func (s *Store) followWallClock() {
	step := s.step()
	if step == 0 {
		return
	}
	next := *s.clock.Load()
	next.epoch += int64(step)
	s.clock.Store(&next)
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.instantLocked(s)
		sh.mu.Unlock()
	}
	for i := range s.blocks {
		s.blocks[i].mu.Lock()
		s.blocks[i].instantLocked(s)
		s.blocks[i].mu.Unlock()
	}
	s.metrics.clockSteps.Add(1)
	if s.logger != nil {
		s.logger.Warn("the wall clock has stepped: windows in memory now end by the new time",
			slog.Duration("step", step), slog.Time("now", time.Unix(0, int64(next.now()))))
	}
}

// followLocked brings the shard to the clock, which must have been loaded while mu was held: then
// it is not older than the shard's. mu must be held.
func (sh *shard) followLocked(s *Store, c *clock) {
	step := time.Duration(c.epoch - sh.epoch)
	before := max(sh.latest, c.now()-algorithms.Instant(step))
	count, places := sh.table.count, 0
	sh.table.sweep(func(slot *slot) (idle bool) {
		limit := sh.limits.of(slot.limit())
		switch limit.Algorithm {
		case algorithms.Concurrency:
			return false
		case algorithms.SlidingWindowLog:
			sh.logs.of(slot.state).Realign(step)
			sh.summarizeLocked(slot, before+algorithms.Instant(step))
			return false
		default:
		}
		slot.state = algorithms.Realign(*limit, slot.state, before, step)
		if slot.state.Unused() {
			places += sh.releaseLocked(slot)
			return true
		}
		return false
	})
	s.metrics.free(int(count-sh.table.count), places)
	sh.holders.realign(step)
	sh.nextReturn = min(sh.nextReturn, 1) // the next touch looks
	sh.latest = before + algorithms.Instant(step)
	sh.epoch = c.epoch
	sh.candidates.reset()
}
