package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// ErrNoUsage is the error that the errors of [Limiter.Usage] wrap.
var ErrNoUsage = errors.New("there is no usage")

// UsageQuery chooses keys of one rule.
type UsageQuery struct {
	Domain string
	Path   string // Rule.Path of a rule with warn_at
	Last   bool   // the last window that has ended, not the window of now
	Most   int    // keys, at least 1; 0 means all
}

// Usage is the use of the keys of one rule.
type Usage struct {
	Keys    []KeyUsage // the most used hits first; equal ones in the order of their text. Keys without used hits are left out
	Since   time.Time  // the accounts have the charges of this process since then
	LeftOut uint64     // times that a key, of any rule, got no account or lost it: see MaxAccounts. 0: no key is missing
}

// KeyUsage is the used hits of one key under one limit.
type KeyUsage struct {
	Key      string // readable, see descriptors.AppendKey
	Rule     *descriptors.Rule
	Entries  []Entry           // of a descriptor that counts under the key, without the entry of a holder
	Limit    descriptors.Limit // now, with the numbers of a grant
	Used, Of uint64            // hits, and the capacity
	Until    time.Time         // the end of the window; zero for a limit without windows

	// Current is true when Used is of now, as the store says. Else Used is by the last decision of
	// this process: for a window that has ended, and when the store does not answer.
	Current bool
}

// Usage returns how much the keys of a rule have used. The keys are the ones with an account: the
// rule has warn_at, and this process has charged the key. The store says how much a key has used,
// by all processes. Of the window before only this process's last decision is known. All errors
// wrap [ErrNoUsage].
func (l *Limiter) Usage(ctx context.Context, q UsageQuery) (Usage, error) {
	set := l.current.Load()
	if err := l.hasUsage(set, q); err != nil {
		return Usage{}, err
	}
	now := l.options.Now()
	out := Usage{Since: l.accounts.since, LeftOut: l.accounts.leftOut.Load()}
	all, found := l.accounts.of(q.Domain), make([]candidate, 0)
	kept := all[:0]
	for i := range all {
		if c, ok := l.found(set, &all[i]); ok && c.Rule != nil && c.Rule.Path == q.Path {
			kept, found = append(kept, all[i]), append(found, c)
		}
	}
	if !q.Last {
		l.look(ctx, found)
		for i := range found { // a part of the count is no answer
			found[i].Current = found[i].Current && found[i].probe.Left.Source != store.Without
		}
	}
	for i := range found {
		k := found[i].usage(&kept[i], now)
		if q.Last {
			k = found[i].lastUsage(&kept[i], now)
		}
		if k.Used > 0 {
			out.Keys = append(out.Keys, k)
		}
	}
	slices.SortFunc(out.Keys, func(a, b KeyUsage) int { return cmp.Or(cmp.Compare(b.Used, a.Used), cmp.Compare(a.Key, b.Key)) })
	if q.Most > 0 {
		out.Keys = out.Keys[:min(len(out.Keys), q.Most)]
	}
	return out, nil
}

// hasUsage returns an error if no rule of a query has accounts.
func (l *Limiter) hasUsage(set *ruleSet, q UsageQuery) error {
	if l.options.Now == nil {
		return fmt.Errorf("%w: this process keeps no accounts", ErrNoUsage)
	}
	if set.rules.Domain(q.Domain) == nil {
		return fmt.Errorf("%w: domain %q has no rules", ErrNoUsage, q.Domain)
	}
	var known []string
	for _, r := range set.rules.All() {
		if r.Domain != q.Domain {
			continue
		}
		warns := slices.ContainsFunc(r.Limits, func(l descriptors.Limit) bool { return l.WarnAt[0] > 0 })
		if warns {
			known = append(known, r.Path)
		}
		switch windows := slices.ContainsFunc(r.Limits, hasWindows); {
		case r.Path != q.Path:
		case !warns:
			return fmt.Errorf("%w: rule %s has no limit with warn_at, and Weir keeps accounts of keys of such limits alone", ErrNoUsage, r.Path)
		case q.Last && !windows:
			return fmt.Errorf("%w: rule %s has no windows that end: %s", ErrNoUsage, r.Path, r.Limits[0].Algorithm)
		default:
			return nil
		}
	}
	if len(known) == 0 {
		return fmt.Errorf("%w: domain %q has no rule %q with warn_at, and no other one with it", ErrNoUsage, q.Domain, q.Path)
	}
	return fmt.Errorf("%w: domain %q has no rule %q with warn_at; these have: %s", ErrNoUsage, q.Domain, q.Path, strings.Join(known, ", "))
}

func hasWindows(l descriptors.Limit) bool { return l.WarnAt[0] > 0 && l.Algorithm.HasWindows() }

// known is a copy of an account, with the parts of its text.
type known struct {
	account

	key trackedKey
}

// of returns copies of the accounts of a domain.
func (a *accounts) of(domain string) (all []known) {
	for i := range a.shards {
		s := &a.shards[i]
		s.mu.Lock()
		copies := make([]account, 0, len(s.all))
		for _, one := range s.all {
			copies = append(copies, *one)
		}
		s.mu.Unlock()
		for _, one := range copies {
			if key, whole := readTracked([]byte(one.text)); whole && key.domain == domain {
				all = append(all, known{one, key})
			}
		}
	}
	return all
}

// found finds the rule and the limit of an account again. Where a grant lets everything pass, the
// store still has the hits of before.
func (l *Limiter) found(set *ruleSet, a *known) (candidate, bool) {
	c, ok := l.find(set, &a.key, false)
	if !ok {
		c, ok = l.find(set, &a.key, true)
	}
	c.Entries = a.key.entries
	return c, ok
}

// usage returns the use of a key in the window of now.
func (c *candidate) usage(a *known, now time.Time) KeyUsage {
	k := KeyUsage{Key: c.Key, Rule: c.Rule, Entries: c.Entries, Limit: c.Limit, Of: c.Limit.Capacity(), Current: c.Current}
	at, windows := algorithms.Instant(now.UnixNano()), c.Limit.Algorithm.HasWindows()
	end := algorithms.Instant(a.until)
	switch {
	case c.Current:
		k.Used = k.Of - min(c.Remaining, k.Of)
		end = at.Add(c.ResetAfter)
	case !windows || at < end:
		k.Used = a.used
	}
	if windows {
		k.Until = windowEnd(&c.Limit.Limit, end)
	}
	return k
}

// lastUsage returns the use of a key in the last window that has ended. Used is 0 when this process
// has charged no hits in that window.
func (c *candidate) lastUsage(a *known, now time.Time) KeyUsage {
	k := KeyUsage{Key: c.Key, Rule: c.Rule, Entries: c.Entries, Limit: c.Limit}
	if !c.Limit.Algorithm.HasWindows() {
		return k
	}
	last, at := a.closed, algorithms.Instant(now.UnixNano())
	if a.until <= int64(at) { // no charge in the window of now yet
		last = closedWindow{a.used, a.capacity, a.until}
	}
	ended, from := algorithms.Instant(last.until), at.Moved(-c.Limit.Period)
	if start, _, ok := c.Limit.Window(at); ok {
		before, _, _ := c.Limit.Window(start - 1)
		from = start.Moved(-start.Sub(before) / 2)
		if ended > from {
			ended = start
		}
	}
	if ended > from && ended <= at {
		k.Used, k.Of, k.Until = last.used, last.capacity, time.Unix(0, int64(ended))
	}
	return k
}
