package promise

import (
	"cmp"
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// Replay reports for each request whether one process would have admitted it that decided each
// request in the middle of its span.
func Replay(limits []algorithms.Limit, history []Request) (admitted []bool) {
	middle := func(r *Request) int64 { return r.Sent + (r.Received-r.Sent)/2 }
	ordered := make([]int, len(history))
	for i := range history {
		ordered[i] = i
	}
	slices.SortFunc(ordered, func(x, y int) int { return cmp.Compare(middle(&history[x]), middle(&history[y])) })
	states := make([]algorithms.State, len(limits))
	logs := make([]algorithms.Log, len(limits))
	admitted = make([]bool, len(history))
	for _, i := range ordered {
		r := &history[i]
		now, passes := algorithms.Instant(middle(r)), true
		for _, key := range r.Keys {
			passes = passes && fits(limits[key], &states[key], &logs[key], now)
		}
		if admitted[i] = passes; !passes {
			continue
		}
		for _, key := range r.Keys {
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
