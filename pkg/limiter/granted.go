package limiter

import (
	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// granted returns the grant in force for a charge under a key, or nil.
func (l *Limiter) granted(set *ruleSet, limit *descriptors.Limit, key []byte) *Grant {
	found := set.grants.find(limit.Base(key))
	if found == nil || l.options.Now == nil {
		return nil
	}
	now := l.options.Now()
	for _, g := range found.grants {
		if g.isFor(limit) && now.Before(g.Until) {
			return g
		}
	}
	return nil
}

// addGranted adds a charge of descriptor i under the numbers of a grant, and no charge where the
// grant lets everything pass. The end of a holder then costs nothing, and gives back the held hits.
func (l *Limiter) addGranted(
	v *Verdict, i int, limit *descriptors.Limit, g *Grant, key []byte, mode store.Mode, holder holder,
) {
	s := &v.Statuses[i]
	if s.Grant == nil {
		s.Grant = g
	}
	if g.Gives == GivesUnlimited {
		if holder.phase != algorithms.HoldEnd || limit.AtMost == 0 {
			return
		}
		holder.hits = min(holder.hits, 0)
	} else {
		changed, _ := g.change(limit, l.options.MaxLogEntries) // within the bounds, also after a change of the rule
		v.limits = append(v.limits, changed)
		limit = &v.limits[len(v.limits)-1]
	}
	for len(v.granted) < len(v.charges) {
		v.granted = append(v.granted, nil)
	}
	v.granted = append(v.granted, g)
	l.add(v, i, limit, key, mode, holder)
}

// grantOf returns the grant of charge n, or nil.
func (v *Verdict) grantOf(n int) *Grant {
	if n < len(v.granted) {
		return v.granted[n]
	}
	return nil
}

// counted ends the charges of descriptor i. A quota without a charge, because of a grant, asks
// about 0 hits: it is a quota with room.
func (l *Limiter) counted(r *Request, i int, v *Verdict, mode store.Mode) {
	s := &v.Statuses[i]
	if s.count = len(v.charges) - s.charge; s.count > 0 {
		return
	}
	if s.Grant == nil {
		s.Outcome = Replaced
		return
	}
	s.Outcome, s.Limit = Unlimited, nil
	if mode == store.Quota || mode == store.ShadowQuota {
		limit, from := &s.Rule.Limits[0], len(v.keys)
		v.keys = s.Rule.AppendKey(v.keys, r.Domain, r.Descriptors[i].Entries, limit)
		v.charges = append(v.charges, store.Charge{Key: v.keys[from:], Limit: limit.Limit, Rule: i, Mode: store.ShadowQuota})
		v.charged = append(v.charged, limit)
	}
}
