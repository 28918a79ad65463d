package limiter

import (
	"context"
	"errors"
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// ErrNoHolders is the error of [Limiter.Holders] and [Limiter.Release] for entries that no rule
// with holders matches.
var ErrNoHolders = errors.New("no rule with hold matches these entries")

// LimitHolders is the holders of one limit and key.
type LimitHolders struct {
	Limit descriptors.Limit
	Key   string

	Listed bool         // the store can list holders of this limit; else Held and All are zero
	Held   []store.Held // the next one to run out first
	All    int          // the number of all holders
}

// Holders returns the holders of each limit with holders that the entries of a descriptor lead to,
// at most that many of each. The entries need not name a holder. The error is [ErrNoHolders], or
// the error of the store or of ctx.
func (l *Limiter) Holders(ctx context.Context, domain string, entries []Entry, most int) (*descriptors.Rule, []LimitHolders, error) {
	v := Verdict{noGrants: true}
	if _, err := l.prepareHolders(&v, domain, entries); err != nil {
		return nil, nil, err
	}
	all := make([]LimitHolders, len(v.charges))
	for i := range v.charges {
		var err error
		if all[i], err = l.holders(ctx, &v.charges[i], v.charged[i], most); err != nil {
			return nil, nil, err
		}
	}
	return v.Statuses[0].Rule, all, nil
}

// holders lists the holders of a charge.
func (l *Limiter) holders(ctx context.Context, c *store.Charge, limit *descriptors.Limit, most int) (LimitHolders, error) {
	out := LimitHolders{Limit: *limit, Key: string(c.Key)}
	var err error
	out.Held, out.All, err = l.store.Holders(ctx, c, most)
	if errors.Is(err, store.ErrNotListed) {
		return out, nil
	}
	out.Listed = err == nil
	return out, err
}

// Release ends a holder of each limit with holders that the entries of a descriptor lead to, at no
// cost. A later end of the holder does nothing under a rate limit. Release returns the limits, and
// the hold of the holder before. The entries need not name a holder. The errors are as in
// [Limiter.Holders].
func (l *Limiter) Release(ctx context.Context, domain string, entries []Entry, holder store.Holder) ([]LimitState, error) {
	v := Verdict{noGrants: true}
	counts, err := l.prepareHolders(&v, domain, entries)
	if err != nil {
		return nil, err
	}
	for i := range v.charges {
		hold := v.charges[i].Hold
		hold.Phase, hold.Holder = algorithms.HoldCancel, holder
		v.charges[i].Hits = 0
	}
	if _, err := store.Take(ctx, l.store, v.charges, v.decisions); err != nil {
		return nil, err
	}
	if was := v.charges[0].Hold.Was; was.Status == algorithms.HoldHeld {
		counts.holds.released.Add(1)
		counts.holds.held.end(was)
	}
	all := make([]LimitState, len(v.charges))
	for i := range v.charges {
		all[i] = LimitState{Limit: *v.charged[i], Key: string(v.charges[i].Key), Decision: v.decisions[i], Hold: v.charges[i].Hold}
	}
	return all, nil
}

// prepareHolders prepares the end of some holder, which charges all limits with holders, and
// returns the counts of their rule.
func (l *Limiter) prepareHolders(v *Verdict, domain string, entries []Entry) (*Counts, error) {
	set := l.current.Load()
	var rule *descriptors.Rule
	if d := set.rules.Domain(domain); d != nil {
		rule = d.MatchHolders(entries)
	}
	if rule == nil {
		return nil, ErrNoHolders
	}
	entries = append(slices.Clone(rule.WithoutHolder(entries)), Entry{Key: rule.End})
	return set.counts[rule.ID], l.charges(set, &Request{Domain: domain, Descriptors: []Descriptor{{Entries: entries}}}, v)
}

// withHolders returns a request like r that charges all limits of the rules with holders that its
// descriptors lead to. d may be nil.
func withHolders(d *descriptors.Domain, r *Request) *Request {
	if d == nil {
		return r
	}
	begin := *r
	begin.Descriptors = slices.Clone(r.Descriptors)
	for i := range begin.Descriptors {
		entries := begin.Descriptors[i].Entries
		if rule := d.Match(entries); rule != nil && !rule.Holds() {
			continue
		}
		if rule := d.MatchHolders(entries); rule != nil {
			begin.Descriptors[i].Entries = append(slices.Clone(rule.WithoutHolder(entries)), Entry{Key: rule.Begin})
		}
	}
	return &begin
}
