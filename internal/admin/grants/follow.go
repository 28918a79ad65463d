package grants

import (
	"context"
	"log/slog"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// syncLocked reads the changes of grants from Redis. After an error the last known grants go on. mu
// must be held.
func (k *Keeper) syncLocked(ctx context.Context) {
	err := k.followLocked(ctx)
	k.shared.warned = k.shared.warned && err != nil
	k.shared.without.Store(!k.shared.loaded && len(k.slots) == 0)
	if ctx.Err() != nil && k.shared.loaded {
		return // the caller's time is over
	}
	s, logger := k.shared, k.options.Logger
	switch {
	case err != nil:
		k.failures.Add(1)
		if s.failed.Swap(true) {
			return
		}
		if missed, ok := s.away.Due(saysEvery); ok {
			s.saidAway = true
			text := "grants cannot be read from Redis: the last known ones go on"
			if s.without.Load() {
				text = "grants cannot be read from Redis: no grant is in force until Redis answers"
			}
			logger.LogAttrs(ctx, slog.LevelWarn, text, //nolint:sloglint // one of two texts
				slog.Int("known", len(k.slots)), slog.String("error", err.Error()), slog.Uint64("not_logged", missed))
		}
	case s.failed.Swap(false) && s.saidAway:
		s.saidAway = false
		logger.LogAttrs(ctx, slog.LevelInfo, "grants are read from Redis again", slog.Int("grants", len(k.slots)))
	}
}

// takeLocked puts changes in force. mu must be held.
func (k *Keeper) takeLocked(ctx context.Context, changes map[string]*limiter.Grant) {
	s, kept, bytes, above := k.shared, len(k.slots), k.bytes, 0
	each := s.loaded && len(changes) <= manyChanges
	for at := range changes {
		if was := k.slots[at]; was != nil {
			kept, bytes = kept-1, bytes-sizeOf(was)
		}
	}
	for at, g := range changes {
		was := k.slots[at]
		if g != nil && !k.fits(kept+1, bytes+sizeOf(g)) {
			above++
			changes[at] = nil // also in place of an earlier one
			continue
		}
		if g != nil {
			kept, bytes = kept+1, bytes+sizeOf(g)
		}
		if each && g != nil && (was == nil || was.ID != g.ID) && g.ID != s.own {
			k.logOne(ctx, "a grant is in force here", g)
		} else if each && g == nil && was != nil && was.Until.After(k.wall()) && was.ID != s.own {
			k.logOne(ctx, "a grant was revoked", was)
		}
	}
	if above > 0 {
		k.warnAbove(ctx)
	}
	k.copyLocked(ctx, changes)
	k.setLocked(changes)
}

func (k *Keeper) warnAbove(ctx context.Context) {
	if missed, ok := k.shared.above.Due(saysEvery); ok {
		k.options.Logger.LogAttrs(ctx, slog.LevelError, "there are more grants in Redis than there may be here: the others have no effect here",
			slog.Int("max", k.options.Max), slog.Int("max_bytes", maxBytes), slog.Uint64("not_logged", missed))
	}
}

// manyChanges is a number of changes in one answer, from which on each has no line in the log.
const manyChanges = 20

// warnLost logs that Redis has lost grants, once until a look succeeds.
func (k *Keeper) warnLost(ctx context.Context) {
	if k.shared.warned {
		return
	}
	k.shared.warned = true
	if missed, ok := k.shared.lost.Due(saysEvery); ok {
		k.options.Logger.LogAttrs(ctx, slog.LevelWarn, "Redis has lost changes of grants: the grants that are known here are put back",
			slog.Int("known", len(k.slots)), slog.Uint64("not_logged", missed))
	}
}

// restoreLocked puts the grants back that Redis has lost: grants of slots that are not in seen, and
// grants in place of older ones. older has the IDs of these by slot. mu must be held.
func (k *Keeper) restoreLocked(ctx context.Context, seen map[string]bool, older map[string]string) error {
	var args []string
	now := k.wall()
	for at, g := range k.slots {
		id, replaces := older[at]
		if seen[at] && !replaces || !g.Until.After(now) {
			continue
		}
		first := ""
		if replaces {
			first = begins(id)
		}
		if args = append(append(args, item(at, g)...), first); len(args) >= 4*pageSize {
			if _, _, err := k.change(ctx, "restore", args...); err != nil {
				return err
			}
			args = args[:0]
		}
	}
	if len(args) == 0 {
		return nil
	}
	_, _, err := k.change(ctx, "restore", args...)
	return err
}

// aliveLocked reports whether a grant has not ended. mu must be held.
func (k *Keeper) aliveLocked() bool {
	now := k.wall()
	for _, g := range k.slots {
		if g.Until.After(now) {
			return true
		}
	}
	return false
}

// missingLocked returns changes that remove the grants of all slots that are not in seen. mu must
// be held.
func (k *Keeper) missingLocked(seen map[string]bool) map[string]*limiter.Grant {
	gone := make(map[string]*limiter.Grant)
	for at := range k.slots {
		if !seen[at] {
			gone[at] = nil
		}
	}
	return gone
}

// countLocked reads all grants the next time if Redis has another number of grants than known here.
// That finds changes that a failover lost between two looks. Grants that cannot be read make the
// same difference each time, and cause one such read. mu must be held.
func (k *Keeper) countLocked(grants int) {
	s := k.shared
	s.unknown.Store(int64(max(grants-len(k.slots), 0)))
	if now := time.Now(); now.Sub(s.counted) >= countEvery {
		s.counted = now
		if more := grants - len(k.slots); more != s.more && grants <= k.options.Max {
			s.more = more
			s.epoch, s.version, s.loaded = "", 0, false
		}
	}
}
