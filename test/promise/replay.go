package promise

import (
	"cmp"
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// replay returns how many hits of each key one process would have admitted that decided each
// request in the middle of its span. Hits of requests sent before since are not in the result.
func replay(limits []algorithms.Limit, history []Request, since int64) []int {
	middle := func(r *Request) int64 { return r.Sent + (r.Received-r.Sent)/2 }
	ordered := make([]*Request, len(history))
	for i := range history {
		ordered[i] = &history[i]
	}
	slices.SortFunc(ordered, func(x, y *Request) int { return cmp.Compare(middle(x), middle(y)) })
	states := make([]algorithms.State, len(limits))
	logs := make([]algorithms.Log, len(limits))
	admitted := make([]int, len(limits))
	for _, r := range ordered {
		now, passes := algorithms.Instant(middle(r)), true
		for _, key := range r.Keys {
			passes = passes && fits(limits[key], &states[key], &logs[key], now)
		}
		if !passes {
			continue
		}
		for _, key := range r.Keys {
			if r.Sent >= since {
				admitted[key]++
			}
			if l := limits[key]; l.Algorithm == algorithms.SlidingWindowLog {
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
