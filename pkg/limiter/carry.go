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
	taker int       // place of the limit that takes its hits, after this one; the length of the list is the limit of now
}

func (f *former) of() *descriptors.Limit { return &f.rule.Limits[f.limit] }

// formersAfter returns the formers of the limits of rules that follow a set, by Rule.ID and index
// of the limit; nil without any.
func formersAfter(was *ruleSet, rules *descriptors.Rules, now time.Time) (all [][][]former) {
	for _, f := range rules.Follow(was.rules) {
		if f.From == nil {
			continue
		}
		formers := living(was.formersOf(f.From, f.FromLimit), now)
		limit, from := &f.Rule.Limits[f.Limit], &f.From.Limits[f.FromLimit]
		if !f.Same && (from.Requests > 0 || from.Table() != nil || from.Schedule() != nil) { // a ban keeps no counts
			end := now.Add(Rollout)
			formers = append(formers, former{f.From, f.FromLimit, end, end.Add(lifeOf(from)), len(formers) + 1})
		}
		formers = lastOf(comeBack(formers, limit))
		if len(formers) == 0 {
			continue
		}
		if all == nil {
			all = make([][][]former, rules.Len())
		}
		if all[f.Rule.ID] == nil {
			all[f.Rule.ID] = make([][]former, len(f.Rule.Limits))
		}
		all[f.Rule.ID][f.Limit] = formers
	}
	return all
}

// living returns the formers that matter at an instant.
func living(formers []former, now time.Time) []former {
	all := slices.Clone(formers)
	for i := 0; i < len(all); {
		if now.Before(all[i].until) {
			i++
		} else {
			all = without(all, i)
		}
	}
	return all
}

// without returns the list without a former whose hits carry over no more.
func without(formers []former, i int) []former {
	formers = slices.Delete(formers, i, i+1)
	for n := range formers {
		if formers[n].taker > i {
			formers[n].taker--
		}
	}
	return formers
}

// lastOf returns the last MaxFormers of a list. A former that takes the hits of another one matters
// as long as that one: else these hits carry over once more, past it.
func lastOf(formers []former) []former {
	for len(formers) > MaxFormers {
		formers = without(formers, 0)
	}
	for i := range formers {
		if at := formers[i].taker; at < len(formers) && formers[at].until.Before(formers[i].until) {
			formers[at].until = formers[i].until
		}
	}
	return formers
}

// comeBack returns the formers of a limit that is perhaps one of them. The hits of later limits
// take the way back, on which each two limits have marks.
func comeBack(formers []former, limit *descriptors.Limit) []former {
	at := slices.IndexFunc(formers, func(f former) bool {
		return f.of().Label() == limit.Label() && f.of().Table() == nil && limit.Table() == nil
	})
	if at < 0 {
		return formers
	}
	var way, order []int
	for i := formers[at].taker; i < len(formers); i = formers[i].taker {
		way = append(way, i)
	}
	for i := range formers {
		if i != at && !slices.Contains(way, i) {
			order = append(order, i)
		}
	}
	slices.Reverse(way)
	order = append(order, way...)
	back := make([]former, len(order))
	for n, i := range order {
		back[n] = formers[i]
		back[n].taker = slices.Index(order, formers[i].taker)
		if n >= len(order)-len(way) {
			back[n].taker = n + 1
		} else if back[n].taker < 0 { // the limit has come back
			back[n].taker = len(order)
		}
	}
	return back
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
	var olds [MaxFormers]*descriptors.Limit
	for i := range formers {
		olds[i] = l.formerOf(&formers[i], c.request.Descriptors[c.at].Entries)
	}
	stands := standIns(formers, olds[:], limit, now)
	var places [MaxFormers + 1]int
	for i := range formers {
		places[i+1] = places[i]
		if stands[i] != i {
			continue
		}
		places[i+1]++
		from := len(v.keys)
		v.keys = limit.AppendKeyOf(v.keys, charge.Key, olds[i])
		both := now.Before(formers[i].both)
		v.parts.formers = append(v.parts.formers, store.Former{Key: v.keys[from:], Limit: olds[i].Limit, Both: both})
		charge.Exact = charge.Exact || both
	}
	for i := range formers {
		if stands[i] == i {
			v.parts.formers[first+places[i]].Skips = uint8(places[stands[formers[i].taker]] - places[i] - 1)
		}
	}
	if len(v.parts.formers) > first {
		charge.Before = v.parts.formers[first:len(v.parts.formers):len(v.parts.formers)]
	}
}

// formerOf returns the limit of a former for the entries of a descriptor, as it is now.
func (l *Limiter) formerOf(f *former, entries []descriptors.Entry) *descriptors.Limit {
	old := f.of()
	if old.Table() != nil {
		var tabled descriptors.Limit
		f.rule.LimitFor(f.limit, entries, &tabled)
		old = &tabled
	}
	if old.Schedule() != nil {
		at, _ := old.At(l.now())
		old = &at
	}
	return old
}

// standIns returns for each former the one that stands in its place. A former without hits of its
// own has its taker there. The number of formers stands for the limit.
func standIns(formers []former, olds []*descriptors.Limit, limit *descriptors.Limit, now time.Time) (stands [MaxFormers + 1]int) {
	stands[len(formers)] = len(formers)
	for i := len(formers) - 1; i >= 0; i-- {
		stands[i] = i
		taker, by := stands[formers[i].taker], limit
		if taker < len(formers) {
			by = olds[taker]
		}
		if !now.Before(formers[i].until) || olds[i].Requests == 0 || olds[i].Label() == by.Label() {
			stands[i] = taker
		}
	}
	return stands
}
