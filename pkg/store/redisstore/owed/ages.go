package owed

import (
	"slices"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// ages is hits of a log, the oldest first. The hits of one slot of time stand together, as of the
// newest of them. So a hit counts at most the width of a slot too long, and never too short.
type ages []age

type age struct {
	at   algorithms.Instant
	hits int64
}

// slotsOfAPeriod bounds the memory of a log. A hit counts at most 3 % of a period too long.
const slotsOfAPeriod = 32

// add adds hits, and drops hits that are a period older than the newest of the key.
func (g *ages) add(l algorithms.Limit, more age, newest algorithms.Instant) {
	slot := func(at algorithms.Instant) int64 { return int64(at) / max(1, int64(l.Period)/slotsOfAPeriod) }
	all := *g
	i := len(all)
	for i > 0 && slot(all[i-1].at) > slot(more.at) {
		i--
	}
	if i > 0 && slot(all[i-1].at) == slot(more.at) {
		was := &all[i-1]
		was.at, was.hits = max(was.at, more.at), min(was.hits+more.hits, mostSum)
	} else {
		all = slices.Insert(all, i, more)
	}
	for len(all) > 0 && newest.Sub(all[0].at) >= l.Period {
		all = all[1:]
	}
	*g = all
}

func (g ages) sum() (hits int64) {
	for _, a := range g {
		hits += a.hits
	}
	return hits
}
