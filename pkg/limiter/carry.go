package limiter

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store"
)

// Rollout is the time after a change of rules in which other processes may still use the rules
// before. A new file takes up to two minutes to all pods of a Kubernetes cluster.
const Rollout = 2 * time.Minute

// MaxFormers is the most limits before that a limit remembers. If a limit changes more often
// within the life of its states, the oldest limit is forgotten.
const MaxFormers = 3

// former is a limit of earlier rules, which another limit has replaced.
type former struct {
	rule  *descriptors.Rule
	limit int       // index in rule.Limits
	both  time.Time // until then other processes may charge it
	until time.Time // from then on no state under it matters
}

func (f *former) of() *descriptors.Limit { return &f.rule.Limits[f.limit] }

// formersAfter returns the formers of the limits of rules that follow a set, by Rule.ID and index
// of the limit; nil without any.
func formersAfter(was *ruleSet, rules *descriptors.Rules, now time.Time) (all [][][]former) {
	for _, f := range rules.Follow(was.rules) {
		if f.From == nil {
			continue
		}
		var formers []former
		for _, old := range was.formersOf(f.From, f.FromLimit) {
			if now.Before(old.until) {
				formers = append(formers, old)
			}
		}
		limit, from := &f.Rule.Limits[f.Limit], &f.From.Limits[f.FromLimit]
		if !f.Same && (from.Requests > 0 || from.Table() != nil || from.Schedule() != nil) { // a ban keeps no counts
			formers = append(formers, former{f.From, f.FromLimit, now.Add(Rollout), now.Add(Rollout + lifeOf(from))})
		}
		formers = slices.DeleteFunc(formers, func(f former) bool {
			return f.of().Label() == limit.Label() && f.of().Table() == nil && limit.Table() == nil
		})
		if len(formers) == 0 {
			continue
		}
		if all == nil {
			all = make([][][]former, rules.Len())
		}
		if all[f.Rule.ID] == nil {
			all[f.Rule.ID] = make([][]former, len(f.Rule.Limits))
		}
		all[f.Rule.ID][f.Limit] = formers[max(0, len(formers)-MaxFormers):]
	}
	return all
}

// lifeOf returns the longest life of a state under a limit. A table may have any unit.
func lifeOf(l *descriptors.Limit) time.Duration {
	if l.Table() != nil {
		return 2 * descriptors.Year.Duration()
	}
	life := func(numbers algorithms.Limit) time.Duration {
		if l.AtMost > 0 { // an end may leave any debt
			return min(algorithms.Life(numbers, algorithms.Owe), 10*algorithms.MaxPeriod)
		}
		return algorithms.Life(numbers, algorithms.Count)
	}
	longest := life(l.Limit)
	if s := l.Schedule(); s != nil {
		for _, e := range s.Entries() {
			if e.Factor == "" { // else the life is the same
				longest = max(longest, life(e.Limit))
			}
		}
	}
	return longest
}

// formersOf returns the limits that a limit of a rule has replaced, the oldest first.
func (s *ruleSet) formersOf(r *descriptors.Rule, limit int) []former {
	if s.formers == nil || s.formers[r.ID] == nil {
		return nil
	}
	return s.formers[r.ID][limit]
}

// carry gives a charge under limit n of the rule the limits that this limit replaced. As long as
// other processes may use one of these, the shared store decides each hit.
func (l *Limiter) carry(c *charging, n int, limit *descriptors.Limit, charge *store.Charge) {
	v := c.verdict
	formers := v.set.formersOf(v.Statuses[c.at].Rule, n)
	if len(formers) == 0 {
		return
	}
	now, first := l.options.Now(), len(v.parts.formers)
	for i := range formers {
		f := &formers[i]
		if !now.Before(f.until) {
			continue
		}
		old := f.of()
		if old.Table() != nil {
			var tabled descriptors.Limit
			f.rule.LimitFor(f.limit, c.request.Descriptors[c.at].Entries, &tabled)
			old = &tabled
		}
		if old.Schedule() != nil {
			at, _ := old.At(l.now())
			old = &at
		}
		if old.Label() == limit.Label() || old.Requests == 0 {
			continue
		}
		from := len(v.keys)
		v.keys = limit.AppendKeyOf(v.keys, charge.Key, old)
		v.parts.formers = append(v.parts.formers, store.Former{Key: v.keys[from:], Limit: old.Limit, Both: now.Before(f.both)})
		charge.Exact = charge.Exact || now.Before(f.both)
	}
	if len(v.parts.formers) > first {
		charge.Before = v.parts.formers[first:len(v.parts.formers):len(v.parts.formers)]
	}
}
