package grants

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/limiter"
)

// Redis runs scripts in Redis. Safe for concurrent use.
type Redis interface {
	// Run runs a script and returns the texts of its answer. All keys lie in one slot of a cluster. Run puts a prefix before them.
	Run(ctx context.Context, script string, keys, args []string) ([]string, error)
}

//go:embed script/sync.lua script/change.lua
var scripts embed.FS

// shared is the grants in Redis. Each change there gets the next version. A process asks for the changes after the version that it knows,
// about twice a second, with one short script. No message can be lost, and a failover changes nothing.
//
// An epoch is a text that Redis gets with the first grant. Another epoch, or an older version, says that Redis lost data, as after a restart
// without persistence. The processes then restore the grants that they know. A grant that has changed since is not restored.
type shared struct {
	redis   Redis
	epoch   string      // "": unknown
	version uint64      // up to which all changes are known
	failed  atomic.Bool // the last look failed. The mu of the Keeper guards all other fields
	warned  bool        // that Redis has lost grants, since the last look that succeeded
	loaded  bool        // all grants were read once
	counted time.Time
}

const (
	syncEvery   = 400 * time.Millisecond
	syncTimeout = time.Second
	pageSize    = 200         // grants in one answer: at most 3 MB, as redisconn takes 4 MB
	countEvery  = time.Minute // between two looks whether Redis has as many grants as known here
)

// keys returns the keys in Redis. The braces make one slot of a cluster.
func keys() []string {
	return []string{"{grants}", "{grants}:changes", "{grants}:ends", "{grants}:meta"}
}

// run runs one of the scripts.
func (s *shared) run(ctx context.Context, name string, args ...string) ([]string, error) {
	text, err := scripts.ReadFile("script/" + name + ".lua")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	return s.redis.Run(ctx, string(text), keys(), args)
}

// change runs a change.
func (k *Keeper) change(ctx context.Context, what string, args ...string) (outcome, was string, err error) {
	answer, err := k.shared.run(ctx, "change", append([]string{what, newID(), strconv.Itoa(k.options.Max)}, args...)...)
	if err == nil && len(answer) != 2 {
		err = errAnswer
	}
	if err != nil {
		k.failures.Add(1)
		return "", "", fmt.Errorf("redis has not confirmed the change: %w", err)
	}
	return answer[0], answer[1], nil
}

var errAnswer = errors.New("an answer in a form that the script does not have")

// item returns the arguments of a grant.
func item(at string, g *limiter.Grant) []string {
	return []string{at, strconv.FormatInt(g.Until.UnixMilli()+1, 10), string(encode(g))} // the end, rounded up
}

// value reads the value of a slot.
func value(text string) (*limiter.Grant, error) {
	_, line, _ := strings.Cut(text, " ")
	return decode([]byte(line))
}

// giveSharedLocked gives a grant in Redis, and reads it from there. mu must be held.
func (k *Keeper) giveSharedLocked(ctx context.Context, at string, g *limiter.Grant) (replaced *limiter.Grant, err error) {
	outcome, was, err := k.change(ctx, "give", item(at, g)...)
	if err != nil {
		return nil, err
	}
	if outcome == "full" {
		return nil, fmt.Errorf("%w: %d", limiter.ErrTooManyGrants, k.options.Max)
	}
	if was != "" {
		replaced, _ = value(was) // nil if nobody can read the value
	}
	k.syncLocked(ctx)
	return replaced, nil
}

// revokeSharedLocked ends a grant in Redis. mu must be held.
func (k *Keeper) revokeSharedLocked(ctx context.Context, at string, g *limiter.Grant) error {
	outcome, _, err := k.change(ctx, "end", at, fmt.Sprintf(`{"id":%q`, g.ID))
	if err != nil {
		return err
	}
	k.syncLocked(ctx)
	if outcome == "unknown" {
		return fmt.Errorf("%w: %.40q", limiter.ErrUnknownGrant, g.ID)
	}
	return nil
}

// page is an answer of the script sync.
type page struct {
	epoch         string
	version, from uint64
	grants        int
	changes       map[string]*limiter.Grant // nil: none in the slot now
	last          uint64                    // version of the last change
	full          bool                      // there may be more changes
}

// read asks for changes after the known version.
func (k *Keeper) read(ctx context.Context, all bool) (*page, error) {
	s, flag := k.shared, "0"
	if all {
		flag = "1"
	}
	answer, err := s.run(ctx, "sync", s.epoch, strconv.FormatUint(s.version, 10), strconv.Itoa(pageSize), flag)
	if err != nil {
		return nil, err
	}
	if len(answer) < 4 || len(answer)%3 != 1 {
		return nil, errAnswer
	}
	p := &page{epoch: answer[0], changes: make(map[string]*limiter.Grant)}
	number := func(text string) (n uint64) {
		n, e := strconv.ParseUint(text, 10, 64)
		err = errors.Join(err, e)
		return n
	}
	p.version, p.from, p.grants = number(answer[1]), number(answer[2]), int(number(answer[3]))
	p.last = p.from
	for i := 4; i < len(answer); i += 3 {
		at, text := answer[i], answer[i+2]
		p.last = number(answer[i+1])
		p.changes[at] = nil
		if text == "" {
			continue
		}
		g, e := value(text)
		if e != nil {
			k.options.Logger.LogAttrs(ctx, slog.LevelError, "a grant in Redis cannot be read, and has no effect here",
				slog.String("slot", at), slog.String("error", e.Error()))
			continue
		}
		p.changes[at] = g
	}
	p.full = len(answer) == 4+3*pageSize
	return p, err
}

// syncLocked reads the changes of grants from Redis. After an error the last known grants go on. mu must be held.
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

// followLocked reads changes until there are no more. mu must be held.
func (k *Keeper) followLocked(ctx context.Context) error {
	s := k.shared
	var seen map[string]bool // slots with a grant, while all grants are read
	lost := false            // grants that Redis has lost, and that are not yet put back
	warn := func() {
		if !s.warned {
			k.warnLost(ctx)
		}
		s.warned = true
	}
	for tries := 0; ; {
		p, err := k.read(ctx, seen != nil)
		if err != nil {
			return err
		}
		switch {
		case p.epoch == "!":
			if _, _, err := k.change(ctx, "repair"); err != nil {
				return err
			}
			if tries++; tries > 3 {
				return errors.New("the keys in Redis do not fit together")
			}
			continue
		case p.epoch == "" && len(k.slots) == 0:
			s.epoch, s.version, s.loaded = "", 0, true
			return nil
		case p.epoch == "":
			warn()
			if err := k.restoreLocked(ctx, nil); err != nil {
				return err
			}
			if tries++; tries > 3 || !k.aliveLocked() {
				k.setLocked(k.emptyLocked(nil))
				return nil
			}
			s.epoch, s.version = "", 0
			continue
		case p.from < s.version || p.epoch != s.epoch: // all grants come
			if s.loaded && seen == nil && (p.epoch != s.epoch || p.version < s.version) {
				lost = true
			}
			seen = make(map[string]bool)
			s.epoch = p.epoch
		}
		k.takeLocked(ctx, p, seen)
		s.version = p.last
		if p.full {
			continue
		}
		s.version = max(s.version, p.version)
		if seen != nil && lost {
			lost = false
			warn()
			if err := k.restoreLocked(ctx, seen); err != nil {
				return err
			}
			continue
		}
		if seen != nil {
			k.setLocked(k.emptyLocked(seen))
		}
		s.loaded = true
		k.countLocked(p.grants)
		return nil
	}
}

// takeLocked puts the changes of a page in force. mu must be held.
func (k *Keeper) takeLocked(ctx context.Context, p *page, seen map[string]bool) {
	for at, g := range p.changes {
		if seen != nil {
			if delete(seen, at); g != nil {
				seen[at] = true
			}
		}
		if g != nil && k.slots[at] == nil && len(k.slots) >= k.options.Max {
			k.options.Logger.LogAttrs(ctx, slog.LevelError, "a grant in Redis is above the bound here, and has no effect here", Attrs(g)...)
			delete(p.changes, at)
		}
		if was := k.slots[at]; k.shared.loaded && g != nil && (was == nil || was.ID != g.ID) && len(p.changes) <= manyChanges {
			k.options.Logger.LogAttrs(ctx, slog.LevelInfo, "a grant is in force here", Attrs(g)...)
		} else if k.shared.loaded && g == nil && was != nil && was.Until.After(time.Now()) && len(p.changes) <= manyChanges {
			k.options.Logger.LogAttrs(ctx, slog.LevelInfo, "a grant was revoked", Attrs(was)...)
		}
	}
	k.setLocked(p.changes)
}

// manyChanges is a number of changes in one answer, from which on each has no line in the log.
const manyChanges = 20

// warnLost logs that Redis has lost grants.
func (k *Keeper) warnLost(ctx context.Context) {
	k.options.Logger.LogAttrs(ctx, slog.LevelWarn, "Redis has lost changes of grants: the grants that are known here are put back",
		slog.Int("known", len(k.slots)))
}

// restoreLocked puts the grants back that Redis does not have: those not in seen. mu must be held.
func (k *Keeper) restoreLocked(ctx context.Context, seen map[string]bool) error {
	var args []string
	now := time.Now()
	for at, g := range k.slots {
		if seen[at] || !g.Until.After(now) {
			continue
		}
		if args = append(args, item(at, g)...); len(args) >= 3*pageSize {
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
	now := time.Now()
	for _, g := range k.slots {
		if g.Until.After(now) {
			return true
		}
	}
	return false
}

// emptyLocked returns changes that remove the grants of all slots that are not in seen. mu must be held.
func (k *Keeper) emptyLocked(seen map[string]bool) map[string]*limiter.Grant {
	gone := make(map[string]*limiter.Grant)
	for at := range k.slots {
		if !seen[at] {
			gone[at] = nil
		}
	}
	return gone
}

// countLocked reads all grants the next time if Redis has another number of grants than known here. That finds changes that a failover lost
// between two looks. mu must be held.
func (k *Keeper) countLocked(grants int) {
	s := k.shared
	if now := time.Now(); now.Sub(s.counted) >= countEvery {
		s.counted = now
		if grants != len(k.slots) && grants <= k.options.Max {
			s.epoch, s.version, s.loaded = "", 0, false
		}
	}
}
