package top

import "sync/atomic"

// Group is the keys of one rule. Where a group has fewer hits than the mean of all groups, its hits
// weigh more. Else the keys of one busy rule would push out the keys of all others. The zero value
// is ready, and its hits weigh 1.
type Group struct {
	weight atomic.Uint64 // of a hit; 0 means 1
	tries  atomic.Uint64 // of keys to replace others, since the last Balance
	most   atomic.Uint64 // tries with this weight; after these a hit weighs 1 until the next Balance, for a quiet group has become a busy one

	// For Balance alone.
	total  uint64 // hits until the last call
	recent uint64 // hits of about a minute
}

const (
	maxGroupWeight = 256 // of a hit

	// Bounds of Group.most. Between them the tries weigh no more together than the hits of a mean
	// group in a minute. So few clients cannot push out the keys of all other groups with random keys
	// of a quiet one.
	leastTries = 16
	mostTries  = 5000
)

// weigh returns the weight of a hit of the group, which may be nil.
func (g *Group) weigh() uint64 {
	if g == nil || g.tries.Load() > g.most.Load() {
		return 1
	}
	return max(g.weight.Load(), 1)
}

// try counts a try of a key of the group, which may be nil.
func (g *Group) try() {
	if g != nil {
		g.tries.Add(1)
	}
}

// Balance gives the groups new weights. totals[i] is the hits of groups[i] since the start. Balance
// is called once in a Slice, by one goroutine at a time.
func Balance(groups []*Group, totals []uint64) {
	var sum, active uint64
	for i, g := range groups {
		now := totals[i] - min(g.total, totals[i])
		g.total = totals[i]
		g.recent = g.recent - (g.recent+perMinute-1)/perMinute + now
		if g.recent > 0 {
			sum, active = sum+g.recent, active+1
		}
	}
	mean := sum / max(active, 1)
	for _, g := range groups {
		weight := min(max(mean/max(g.recent, 1), 1), maxGroupWeight)
		g.weight.Store(weight)
		g.most.Store(min(max(mean/weight, leastTries), mostTries))
		g.tries.Store(0)
	}
}
