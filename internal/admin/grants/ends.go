package grants

import (
	"context"
	"log/slog"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// graceTime is the time for which a grant that has ended stays. If the wall clock goes back before
// the end meanwhile, the grant is in force again.
const graceTime = 24 * time.Hour

// sweepEvery is the time between two looks for grants that have ended. A grant has no effect from
// its end on, swept or not. A grant is in force again so long after a step of the wall clock.
const sweepEvery = time.Second

// minStep is the smallest step of the wall clock that the log names, as memstore has it.
const minStep = 100 * time.Millisecond

// ends is the ends of grants. Instants of the wall clock say whether a grant has ended. The
// monotonic clock says for how long.
type ends struct {
	at    map[string]time.Time // instants at which the end of a grant was seen, by slot; not by the wall clock
	next  time.Time            // the earliest end of a grant in force; zero: none
	last  time.Time            // the latest end of a grant that has ended; zero: none
	past  time.Time            // the wall clock was at this instant or later for the whole grace time; zero: unknown
	wall  time.Time            // at the last sweep
	swept time.Time            // instant of the last sweep
	whole time.Time            // instant of the last look at all grants
}

func newEnds(wall func() time.Time) ends {
	now := time.Now()
	return ends{at: make(map[string]time.Time), wall: wall().Round(0), swept: now, whole: now}
}

func (e *ends) runs(g *limiter.Grant) {
	if e.next.IsZero() || g.Until.Before(e.next) {
		e.next = g.Until
	}
}

// ended notes a grant that has ended.
func (e *ends) ended(at string, g *limiter.Grant, seen time.Time) {
	e.at[at] = seen
	if g.Until.After(e.last) {
		e.last = g.Until
	}
}

// step returns the step of the wall clock since the last sweep; 0 if it is smaller than minStep.
func (e *ends) step(now, instant time.Time) time.Duration {
	step := now.Sub(e.wall) - instant.Sub(e.swept)
	e.wall, e.swept = now, instant
	if step.Abs() < minStep {
		return 0
	}
	return step
}

// due reports whether a look at all grants may find something.
func (e *ends) due(now, instant time.Time) bool {
	return !e.next.IsZero() && !e.next.After(now) || e.last.After(now) || instant.Sub(e.whole) >= time.Minute
}

// sweepLocked follows the wall clock. Grants that have ended go from the limiter, and come back
// after a step back. After the grace time they go for good; the ones in Redis go from there first.
// mu must be held.
func (k *Keeper) sweepLocked(ctx context.Context) {
	e, now, instant := &k.ends, k.wall().Round(0), time.Now()
	step := e.step(now, instant)
	if !e.due(now, instant) {
		return
	}
	e.next, e.last, e.past, e.whole = time.Time{}, time.Time{}, time.Time{}, instant
	var over, again, gone []string
	for at, g := range k.slots {
		seen, ended := e.at[at]
		switch {
		case g.Until.After(now):
			e.runs(g)
			if ended {
				again = append(again, at)
			}
		case !ended:
			e.ended(at, g, instant)
			over = append(over, at)
		case instant.Sub(seen) >= graceTime && k.shared == nil:
			gone = append(gone, at)
		default:
			e.ended(at, g, seen)
			if instant.Sub(seen) >= graceTime && g.Until.After(e.past) {
				e.past = g.Until
			}
		}
	}
	if step != 0 && len(over)+len(again) > 0 {
		k.options.Logger.LogAttrs(ctx, slog.LevelWarn, "the wall clock has stepped: grants end by the new time",
			slog.Duration("step", step), slog.Int("ended", len(over)), slog.Int("in_force_again", len(again)))
	}
	k.overLocked(ctx, over)
	k.againLocked(ctx, again)
	k.goneLocked(ctx, gone)
}

// overLocked ends grants, and notes the ends in the directory. mu must be held.
func (k *Keeper) overLocked(ctx context.Context, slots []string) {
	var ids []string
	var lines []change
	for _, at := range slots {
		g := k.slots[at]
		ids = append(ids, g.ID)
		lines = append(lines, change{Slot: at, Ended: k.endedAt(at)})
		k.logOne(ctx, "a grant has ended", g)
	}
	k.appendLocked(ctx, lines...)
	k.options.Limiter.ChangeGrants(ids, nil)
}

// againLocked puts grants in force whose end is to come again. mu must be held.
func (k *Keeper) againLocked(ctx context.Context, slots []string) {
	var put []*limiter.Grant
	var lines []change
	for _, at := range slots {
		g := k.slots[at]
		delete(k.ends.at, at)
		put = append(put, g)
		lines = append(lines, change{Slot: at, Grant: encode(g)})
		k.logOne(ctx, "a grant is in force again", g)
	}
	k.appendLocked(ctx, lines...)
	k.options.Limiter.ChangeGrants(nil, put)
}

// goneLocked removes grants for good. mu must be held.
func (k *Keeper) goneLocked(ctx context.Context, slots []string) {
	changes, lines := make(map[string]*limiter.Grant), []change(nil)
	for _, at := range slots {
		changes[at] = nil
		lines = append(lines, change{Slot: at})
	}
	k.appendLocked(ctx, lines...)
	k.setLocked(changes)
}

// endedAt returns the time at which a grant was seen to have ended, by the wall clock of now; nil
// for a grant in force.
func (k *Keeper) endedAt(at string) *time.Time {
	seen, ended := k.ends.at[at]
	if !ended {
		return nil
	}
	t := k.wall().Round(0).Add(-time.Since(seen)).UTC()
	return &t
}
