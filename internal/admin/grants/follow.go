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
	if ctx.Err() != nil && k.shared.loaded {
		return // the caller's time is over
	}
	s, logger := k.shared, k.options.Logger
	switch {
	case err != nil:
		k.failures.Add(1)
		if !s.failed.Swap(true) {
			logger.LogAttrs(ctx, slog.LevelWarn, "grants cannot be read from Redis: the last known ones go on",
				slog.Int("known", len(k.slots)), slog.String("error", err.Error()))
		}
	case s.failed.Swap(false):
		logger.LogAttrs(ctx, slog.LevelInfo, "grants are read from Redis again", slog.Int("grants", len(k.slots)))
	}
}

// takeLocked puts changes in force. mu must be held.
func (k *Keeper) takeLocked(ctx context.Context, changes map[string]*limiter.Grant) {
	s, logger, kept := k.shared, k.options.Logger, len(k.slots)
	each := s.loaded && len(changes) <= manyChanges
	for at, g := range changes {
		if g == nil && k.slots[at] != nil {
			kept--
		}
	}
	for at, g := range changes {
		was := k.slots[at]
		if g != nil && was == nil {
			if kept++; kept > k.options.Max {
				kept--
				logger.LogAttrs(ctx, slog.LevelError, "a grant in Redis is above the bound here, and has no effect here", Attrs(g)...)
				delete(changes, at)
				continue
			}
		}
		if each && g != nil && (was == nil || was.ID != g.ID) && g.ID != s.own {
			logger.LogAttrs(ctx, slog.LevelInfo, "a grant is in force here", Attrs(g)...)
		} else if each && g == nil && was != nil && was.Until.After(k.wall()) && was.ID != s.own {
			logger.LogAttrs(ctx, slog.LevelInfo, "a grant was revoked", Attrs(was)...)
		}
	}
	k.setLocked(changes)
}

// manyChanges is a number of changes in one answer, from which on each has no line in the log.
const manyChanges = 20

// warnLost logs that Redis has lost grants, once until a look succeeds.
func (k *Keeper) warnLost(ctx context.Context) {
	if k.shared.warned {
		return
	}
	k.shared.warned = true
	k.options.Logger.LogAttrs(ctx, slog.LevelWarn, "Redis has lost changes of grants: the grants that are known here are put back",
		slog.Int("known", len(k.slots)))
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
	if now := time.Now(); now.Sub(s.counted) >= countEvery {
		s.counted = now
		if more := grants - len(k.slots); more != s.more && grants <= k.options.Max {
			s.more = more
			s.epoch, s.version, s.loaded = "", 0, false
		}
	}
}
