// Package grants keeps the grants of a limiter: other limits for single keys, until an instant. A
// Keeper checks a grant, keeps the grant in the best place that there is, puts the grant in force,
// and logs each change.
//
// A Keeper keeps grants in one of three places:
//
//	memory             until the process ends
//	a state directory  one file, to which each change is appended before it counts; see journal
//	Redis              shared by all processes under one prefix, which look for changes about twice a
//	                   second; see shared. A state directory beside Redis has the last known grants,
//	                   for a start without Redis
//
// A Keeper ends a grant by the wall clock of its process, also after a step of that clock. A grant
// that has ended stays for the grace time, as the clock may have been wrong. See [limiter.Grant]
// for the effect of a grant.
package grants

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/lockfile"
	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/pkg/limiter"
)

// DefaultMax is an Options.Max that most users want.
const DefaultMax = 100_000

// Options configures Open. Limiter and Logger must be given.
type Options struct {
	Limiter *limiter.Limiter    // with an Options.Now, the clock of the process
	Max     int                 // most grants; 0 means DefaultMax
	Dir     string              // where grants outlive the process, or the last known ones of Redis; "" for none
	Lock    *lockfile.Directory // of Dir, looked at before the file there is replaced; nil: nothing else uses Dir
	Redis   Redis               // where processes share grants; nil: not
	Logger  *slog.Logger
}

// Keeper keeps grants. All methods are safe for concurrent use.
type Keeper struct {
	options Options
	wall    func() time.Time // the wall clock, by which grants end; readings may have a monotonic time
	journal *journal         // nil without a directory
	shared  *shared          // nil without Redis

	mu    sync.Mutex                // held while grants change; guards the fields below
	slots map[string]*limiter.Grant // kept grants by slot, also the ones that have ended
	byID  map[string]string         // the slots
	bytes int                       // of slots, see sizeOf
	ends  ends

	single   loglimit.Limiter // of lines about single grants
	failures atomic.Uint64    // changes that were not kept, and reads of Redis that failed
}

// Open loads the grants that are kept, and puts them in force. Grants that cannot be loaded go to
// the log, and never end the start: the Keeper then begins without them. With Redis, Open waits a
// second at most for each answer, and 10 seconds for all grants.
func Open(ctx context.Context, o Options) (*Keeper, error) { return open(ctx, o, time.Now) }

// open is Open with another wall clock.
func open(ctx context.Context, o Options, wall func() time.Time) (*Keeper, error) {
	if o.Limiter == nil || o.Logger == nil {
		return nil, errors.New("limiter and logger: must be given")
	}
	if o.Max < 0 {
		return nil, fmt.Errorf("max grants: %d: must be at least 1", o.Max)
	}
	o.Max = cmp.Or(o.Max, DefaultMax)
	k := &Keeper{options: o, wall: wall, slots: make(map[string]*limiter.Grant), byID: make(map[string]string), ends: newEnds(wall)}
	k.mu.Lock()
	defer k.mu.Unlock()
	if o.Redis != nil {
		k.shared = &shared{redis: o.Redis, begun: time.Now()}
	}
	if o.Dir != "" {
		k.openJournalLocked(ctx)
	}
	if o.Redis != nil {
		ctx, cancel := context.WithTimeout(ctx, loadTimeout)
		defer cancel()
		k.syncLocked(ctx)
	}
	return k, nil
}

// loadTimeout is the time in which a start reads all grants from Redis. 100 000 take 1.3 seconds of
// CPU, in 500 answers.
const loadTimeout = 10 * time.Second

// maxRule bounds Grant.Rule, in bytes.
const maxRule = 512

// Grant keeps a grant and puts it in force, in place of an earlier one for the same key and limit.
// A grant that adds hits is beside all others. Grant sets ID, Given and Rule, and From, Until and
// Over of a grant that adds hits. The errors wrap [limiter.ErrInvalidGrant],
// [limiter.ErrNotGrantable] or [limiter.ErrTooManyGrants]: then nothing has changed. Any other
// error says why Redis has not confirmed the grant. The grant then is in force, or never will be.
func (k *Keeper) Grant(ctx context.Context, in limiter.Grant) (given, replaced *limiter.Grant, err error) {
	now := k.wall()
	g := in
	g.ID, g.Given, g.Until = newID(), now.Round(0), in.Until.Round(0) // by the wall clock, also in this process
	target, err := k.check(ctx, now, &g)
	if err != nil {
		return nil, nil, err
	}
	g.Rule = strings.ToValidUTF8(target.Rule.Path[:min(len(target.Rule.Path), maxRule)], "")
	at := slot(string(target.Limits[0].Base([]byte(target.Key))), scope(&g, target))
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.shared != nil {
		if replaced, err = k.giveSharedLocked(ctx, at, &g); err != nil {
			return nil, nil, err
		}
	} else {
		k.sweepLocked(ctx)
		if replaced = k.slots[at]; !k.makeRoomLocked(ctx, now, at, &g) {
			return nil, nil, k.full()
		}
		k.appendLocked(ctx, change{Slot: at, Grant: encode(&g)})
		k.setLocked(map[string]*limiter.Grant{at: &g})
	}
	if replaced != nil && !replaced.Until.After(now) {
		replaced = nil
	}
	more := []slog.Attr{slog.String("key", harmless(target.Key))}
	if replaced != nil {
		more = append(more, slog.String("replaces", replaced.ID))
	}
	k.audit(ctx, "an operator gave a grant", &g, more...)
	return &g, replaced, nil
}

// check returns the limits that a grant changes. For a grant that adds hits, check sets From, Until
// and Over.
func (k *Keeper) check(ctx context.Context, now time.Time, g *limiter.Grant) (limiter.Grantable, error) {
	adds := g.Gives == limiter.GivesAdd
	if adds {
		if !g.Until.IsZero() {
			return limiter.Grantable{}, fmt.Errorf("%w: until: goes not with add, as the window has an end", limiter.ErrInvalidGrant)
		}
		g.Until = now.Add(1) // for Validate
	}
	if err := g.Validate(now); err != nil {
		return limiter.Grantable{}, err
	}
	if adds {
		if err := k.options.Limiter.TopUp(ctx, g); err != nil {
			return limiter.Grantable{}, err
		}
	}
	return k.options.Limiter.Grantable(g)
}

// Revoke ends a grant before its time and returns the grant. notKept is "", or says why the end is
// in memory alone, so that a restart may bring the grant back. The error wraps
// [limiter.ErrUnknownGrant], or says why Redis did not end the grant.
func (k *Keeper) Revoke(ctx context.Context, id, by string) (g *limiter.Grant, notKept string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.shared != nil {
		k.syncLocked(ctx) // the grant may have been given elsewhere a moment ago
	}
	at := k.byID[id]
	if g = k.slots[at]; g == nil && k.shared != nil && k.shared.failed.Load() {
		return nil, "", fmt.Errorf("grant %.40q is not known here, and redis does not answer", id)
	}
	if g == nil || !g.Until.After(k.wall()) {
		return nil, "", fmt.Errorf("%w: %.40q; reset ends a block of a limit with escalate", limiter.ErrUnknownGrant, id)
	}
	more := []slog.Attr{slog.String("revoked_by", harmless(by))}
	if k.shared != nil {
		if err := k.revokeSharedLocked(ctx, at, g); err != nil {
			return nil, "", err
		}
	} else {
		k.appendLocked(ctx, change{Slot: at})
		k.setLocked(map[string]*limiter.Grant{at: nil})
		if k.journal != nil && k.journal.failed != nil {
			notKept = notWritten + k.journal.failed.Error()
			more = append(more, slog.String("not_kept", notKept))
		}
	}
	k.audit(ctx, "an operator revoked a grant", g, more...)
	return g, notKept, nil
}

// List returns the grants in force, the next one to end first.
func (k *Keeper) List() []*limiter.Grant {
	now := k.wall()
	var all []*limiter.Grant
	for g := range k.options.Limiter.Grants() { // mu may be held while Redis does not answer
		if g.Until.After(now) {
			all = append(all, g)
		}
	}
	slices.SortFunc(all, func(a, b *limiter.Grant) int { return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.ID, b.ID)) })
	return all
}

// notWritten is the begin of the reason for which a change is in memory alone.
const notWritten = "the state directory cannot be written: "

// Kept says where grants are kept, in words, and whether they outlive the process.
func (k *Keeper) Kept() (where string, durable bool) {
	if k.shared != nil && k.shared.failed.Load() {
		if k.shared.without.Load() {
			return "in Redis, which does not answer: no grant is known here yet", true
		}
		return "in Redis, which does not answer: the grants that were known last go on", true
	} else if k.shared != nil {
		return "in Redis, for all processes that share it", true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.journal != nil && k.journal.failed != nil:
		return "in memory: a restart goes back to the saved grants, as " + notWritten + k.journal.failed.Error(), false
	case k.journal != nil:
		return "in the state directory", true
	default:
		return "in memory until the process ends", false
	}
}

// setLocked puts grants in place of the ones of their slots, in the list and in force; nil removes
// a grant. mu must be held.
func (k *Keeper) setLocked(changes map[string]*limiter.Grant) {
	var end []string
	var put []*limiter.Grant
	now := k.wall()
	for at, g := range changes {
		if was := k.slots[at]; was != nil {
			if g != nil && was.ID == g.ID {
				continue
			}
			delete(k.byID, was.ID)
			delete(k.ends.at, at)
			k.bytes -= sizeOf(was)
			end = append(end, was.ID)
		}
		if g == nil {
			delete(k.slots, at)
			continue
		}
		k.slots[at], k.byID[g.ID] = g, at
		k.bytes += sizeOf(g)
		if g.Until.After(now) {
			put = append(put, g)
			k.ends.runs(g)
		} else {
			k.ends.ended(at, g, time.Now())
		}
	}
	k.options.Limiter.ChangeGrants(end, put)
}

// Run sweeps, and follows Redis, until ctx ends. The result is nil.
func (k *Keeper) Run(ctx context.Context) error {
	every := sweepEvery
	if k.shared != nil {
		every = syncEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	swept := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			k.mu.Lock()
			if k.shared != nil {
				k.syncLocked(ctx)
			}
			if now.Sub(swept) >= sweepEvery {
				swept = now
				k.sweepLocked(ctx)
				if k.journal != nil && k.journal.due() {
					k.rewriteLocked(ctx)
				}
			}
			k.mu.Unlock()
		}
	}
}

// Close ends the use of the directory. No method may be called after.
func (k *Keeper) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.journal != nil {
		k.journal.close()
	}
}
