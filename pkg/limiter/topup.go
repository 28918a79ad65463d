package limiter

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// MaxAdds is the most grants that add hits to one window of one limit.
const MaxAdds = 100

// inForce is the grants that change a limit now. The zero value is no grant.
type inForce struct {
	grant *Grant // the one that counts; without one, the first that adds hits
	added uint64 // hits that grants add
	adds  int    // the grants that add hits
}

// forceOf returns the grants in force for a limit, of all grants of its key by precedence. override
// is the limit of a request with an override, else nil. A grant that blocks or lets everything pass
// counts alone.
func forceOf(found []*Grant, limit *descriptors.Limit, now time.Time, rule *descriptors.Rule, override *descriptors.Limit) (f inForce) {
	replaced := false // the first grant does not suit the override, and the others do not count
	for _, g := range found {
		switch {
		case !g.isFor(limit) || !now.Before(g.Until):
		case g.Gives != GivesAdd && (f.grant != nil || replaced):
		case override != nil && !g.suitsOverride(rule, override):
			replaced = true
		case g.Gives != GivesAdd:
			f.grant = g
		case g.addsTo(limit) && !now.Before(g.From) && f.grant.leaves():
			if f.grant == nil {
				f.grant = g
			}
			f.added += g.Requests + g.Over
			f.adds++
		}
	}
	return f
}

// leaves reports whether grants may add hits beside a grant, which may be nil.
func (g *Grant) leaves() bool { return g == nil || g.Gives != GivesUnlimited && !g.blocks() }

func (g *Grant) blocks() bool { return g.Gives == GivesRequests && g.Requests == 0 }

// addsTo reports whether hits can be added to a limit. The count must begin anew with a window:
// else the added hits would be missing later.
func (g *Grant) addsTo(limit *descriptors.Limit) bool {
	return limit.Algorithm.HasWindows() && limit.Requests > 0
}

// change returns the limit with the numbers of the grants, within the bounds of the algorithm also
// after a change of the rule.
func (f *inForce) change(limit *descriptors.Limit) descriptors.Limit {
	changed := *limit
	if f.grant != nil {
		changed, _ = f.grant.change(limit)
	}
	if f.added > 0 && changed.Requests > 0 {
		changed.SetPerPeriod(min(changed.PerPeriod()+f.added, algorithms.MaxCount))
	}
	return changed
}

// with returns a limit of a rule before and after a grant.
func (l *Limiter) with(g *Grant, rule *descriptors.Rule, entries []Entry, limit *descriptors.Limit) (before, after descriptors.Limit, err error) {
	if g.Gives != GivesAdd {
		after, err = g.change(limit)
		return *limit, after, err
	}
	wrong := func(format string, args ...any) (before, after descriptors.Limit, err error) {
		return before, after, fmt.Errorf("%w: add: %d: "+format, append([]any{ErrInvalidGrant, g.Requests}, args...)...)
	}
	if !limit.Algorithm.HasWindows() {
		return wrong("%s has no windows that begin anew, must be fixed_window; give requests or a factor", limit.Label())
	}
	if limit.Requests == 0 {
		return wrong("%s denies every hit; give requests", limit.Label())
	}
	var others inForce
	if l.options.Now != nil {
		found := l.current.Load().grants.find(limit.Base(rule.AppendKey(nil, g.Domain, entries, limit)))
		found = slices.DeleteFunc(slices.Clone(found), func(other *Grant) bool { return other.ID == g.ID })
		others = forceOf(found, limit, l.options.Now(), rule, nil)
	}
	switch of := others.grant; {
	case !of.leaves() && of.blocks():
		return wrong("grant %s blocks the key until %s; revoke that grant first", of.ID, of.Until.UTC().Format(time.RFC3339))
	case !of.leaves():
		return wrong("grant %s lets everything pass until %s", of.ID, of.Until.UTC().Format(time.RFC3339))
	case others.adds >= MaxAdds:
		return wrong("%d grants add hits to this window, must be at most %d", others.adds, MaxAdds)
	}
	before = others.change(limit)
	if g.Requests > algorithms.MaxCount-before.PerPeriod() {
		return wrong("must be at most %d, as the limit is %d now", algorithms.MaxCount-before.PerPeriod(), before.PerPeriod())
	}
	after = before
	after.SetPerPeriod(min(after.PerPeriod()+g.Requests+g.Over, algorithms.MaxCount))
	return before, after, nil
}

// TopUp sets From, Until and Over of a grant that adds hits, by the window and the count that the
// key has now. The store says when the window ends, as a key may keep a window of an earlier
// calendar. The errors wrap [ErrNotGrantable] or [ErrInvalidGrant], or come from the store.
func (l *Limiter) TopUp(ctx context.Context, g *Grant) error {
	target, err := l.Grantable(g)
	if err != nil {
		return err
	}
	set := l.current.Load()
	r := &Request{Domain: g.Domain, Descriptors: []Descriptor{{Entries: g.Entries}}}
	v := Verdict{noGrants: true}
	if err := l.charges(set, withHolders(set.rules.Domain(r.Domain), r), &v); err != nil {
		return fmt.Errorf("%w: %w", ErrNotGrantable, err)
	}
	i := slices.IndexFunc(v.charges, func(c store.Charge) bool { return string(c.Key) == target.Key })
	if i < 0 {
		return fmt.Errorf("%w: the rules have changed meanwhile", ErrNotGrantable)
	}
	limit, probe := v.terms[i].limit, v.charges[i]
	probe.Hits, probe.Hold = 0, nil
	probe.Limit.SetPerPeriod(algorithms.MaxCount) // the rest is the count, with denied hits that count too
	var d [1]algorithms.Decision
	if err := l.store.Peek(ctx, []store.Charge{probe}, d[:]); err != nil {
		return err
	}
	count, now := algorithms.MaxCount-d[0].Remaining, l.options.Now().Round(0)
	if limit.Calendar != nil && limit.Calendar.FirstHit() && count == 0 {
		return fmt.Errorf("%w: add: %d: the window of the key begins with its first hit, and the key has no window now", ErrInvalidGrant, g.Requests)
	}
	g.Over = count - min(count, target.Before[0].PerPeriod())
	if most := algorithms.MaxCount - target.Before[0].PerPeriod(); g.Requests+g.Over > most {
		return fmt.Errorf("%w: add: %d: must be at most %d, as the key has used %d hits", ErrInvalidGrant, g.Requests, most-min(g.Over, most), count)
	}
	g.From, g.Until = window(&limit.Limit, now, now.Add(d[0].ResetAfter))
	return nil
}

// window returns the window of now that ends about then.
func window(limit *algorithms.Limit, now, about time.Time) (from, until time.Time) {
	until = windowEnd(limit, algorithms.Instant(about.UnixNano()))
	if start, end, ok := limit.Window(algorithms.Instant(until.UnixNano()) - 1); ok && int64(end) == until.UnixNano() {
		return time.Unix(0, int64(start)), until
	}
	from = until.Add(-limit.Period)
	if from.After(now) {
		from = now
	}
	return from, until
}

// maxLate is the largest error of the end of a window, as a store says the end. Answers take time,
// and the clock of a store may be another one.
const maxLate = time.Minute

// windowEnd returns the end of a window that ends about then. Where a key keeps a window of an
// earlier calendar the limit does not have that end; it is a whole second.
func windowEnd(limit *algorithms.Limit, about algorithms.Instant) time.Time {
	if start, end, ok := limit.Window(about); ok {
		nearest := end
		if about.Sub(start) < end.Sub(about) {
			nearest = start
		}
		if off := max(about.Sub(nearest), nearest.Sub(about)); off <= maxLate || limit.Calendar == nil {
			return time.Unix(0, int64(nearest))
		}
	}
	return time.Unix(0, int64(about)).Round(time.Second)
}
