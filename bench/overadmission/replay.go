package main

import (
	"cmp"
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// replay returns how many of the requests one process would have admitted that decided each in the middle of its span. All
// limits enforce, and denied hits do not count.
func replay(p *plan, history []asked) int {
	ordered := slices.Clone(history)
	middle := func(a *asked) int64 { return a.sent + (a.received-a.sent)/2 }
	slices.SortFunc(ordered, func(x, y asked) int { return cmp.Compare(middle(&x), middle(&y)) })
	states := make([]algorithms.State, len(p.limits))
	logs := make([]algorithms.Log, len(p.limits))
	admitted := 0
	for i := range ordered {
		now, keys := algorithms.Instant(middle(&ordered[i])), p.choices[ordered[i].choice].keys
		passes := true
		for _, key := range keys {
			passes = passes && fits(p.limits[key], &states[key], &logs[key], now)
		}
		if !passes {
			continue
		}
		admitted++
		for _, key := range keys {
			if l := p.limits[key]; l.Algorithm == algorithms.SlidingWindowLog {
				logs[key].Take(l, now, 1, false)
			} else {
				states[key], _ = algorithms.Take(l, states[key], now, 1, false)
			}
		}
	}
	return admitted
}

// fits reports whether a key admits a hit, and changes nothing.
func fits(l algorithms.Limit, s *algorithms.State, g *algorithms.Log, now algorithms.Instant) bool {
	if l.Algorithm == algorithms.SlidingWindowLog {
		_, d := g.Decide(l, now, algorithms.Pending{}, 1, false)
		return d.Allowed
	}
	_, d := algorithms.Take(l, *s, now, 1, false)
	return d.Allowed
}
