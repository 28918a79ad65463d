package memstore

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// nearest is a shard's keys in the order in which they are forgotten to make room: those nearest to as if never used, and
// not denied now. It holds some of them at a time (it is truncated then) and is kept only while the store is about full.
type nearest struct {
	kept  bool
	known bool               // list is made; else it must be before the shard can offer a key
	list  []candidate        // the nearest last
	bound algorithms.Instant // a key that is not in the list and not denied is fresh after bound; the largest instant: there is none
	made  algorithms.Instant
	opens algorithms.Instant // the first instant at which a key that was denied when the list was made no longer is
}

type candidate struct {
	key   digest
	fresh algorithms.Instant
}

// offer is what a shard tells the others of its nearest key, in instants.
type offer struct {
	nearest atomic.Int64 // when that key is fresh; MaxInt64: there is none; 0, the start, when it must be looked for
	opens   atomic.Int64 // as nearest.opens, for a shard whose keys are all denied; 0 at the start
}

// at returns when the shard's nearest key is fresh, the least of all where it must be looked for.
func (o *offer) at(now int64) int64 {
	at := o.nearest.Load()
	if at == math.MaxInt64 && o.opens.Load() <= now {
		return math.MinInt64
	}
	if at == 0 {
		return math.MinInt64
	}
	return at
}

// ranked bounds for how long a list is taken as it is: a key that was denied when it was made may be let go by then.
const ranked = time.Second

// evictLocked forgets the key that the shard offers and reports whether it did: not when there is none, and not when the
// order had to be made or mended first. mu must be held.
func (sh *shard) evictLocked(now algorithms.Instant) bool {
	n := &sh.nearest
	if !n.known || now.Sub(n.made) >= ranked || len(n.list) == 0 {
		sh.rankLocked(now)
		return false // its place among the shards may be another now
	}
	defer sh.publishLocked()
	for offered := true; len(n.list) > 0; offered = false {
		c := n.list[len(n.list)-1]
		fresh, opens, ok := sh.standingLocked(c.key, now)
		stands := ok && fresh == c.fresh && opens <= now
		if stands && !offered {
			return false // not what the shard offered: another shard's may be nearer
		}
		n.list = n.list[:len(n.list)-1]
		switch {
		case stands:
			sh.forgetLocked(c.key)
			return true
		case ok && fresh == c.fresh: // denied again
			n.opens = min(n.opens, opens)
		default: // gone, or charged since: then it is in the list once more, or beyond bound
		}
	}
	n.known = n.bound == math.MaxInt64
	return false
}

// publishLocked tells the shard's offer. mu must be held.
func (sh *shard) publishLocked() {
	n := &sh.nearest
	switch {
	case !n.known:
		sh.offer.nearest.Store(0)
		sh.offer.opens.Store(0)
	case len(n.list) == 0:
		sh.offer.opens.Store(int64(n.opens))
		sh.offer.nearest.Store(math.MaxInt64)
	default:
		sh.offer.nearest.Store(int64(n.list[len(n.list)-1].fresh))
	}
}

// standingLocked returns when the key is fresh, and when a hit to it passes if it is denied now, else an instant not after
// now; ok is false when the shard does not remember the key. A key under a limit of 0 is denied with a state or without, so
// that its state can go. mu must be held.
func (sh *shard) standingLocked(key digest, now algorithms.Instant) (fresh, opens algorithms.Instant, ok bool) {
	var limit *algorithms.Limit
	var d algorithms.Decision
	if place, found := sh.table.find(key); found {
		state := sh.table.slots[place].state
		limit = sh.limits.of(sh.table.slots[place].limit())
		fresh = algorithms.FreshAt(*limit, state)
		_, d = algorithms.Take(*limit, state, now, 1, false)
	} else if state := sh.logs[key]; state != nil {
		limit = &state.limit
		fresh = state.log.FreshAt(*limit)
		_, d = state.log.Decide(*limit, now, algorithms.Pending{}, 1, false)
	} else {
		return 0, 0, false
	}
	if d.Allowed || limit.Requests == 0 {
		return fresh, now, true
	}
	return fresh, now.Add(d.RetryAfter), true
}

// noteLocked puts a key that was just charged into the list if it belongs there. mu must be held.
func (sh *shard) noteLocked(key digest, fresh algorithms.Instant) {
	n := &sh.nearest
	if !n.known || fresh > n.bound {
		return
	}
	i, _ := slices.BinarySearchFunc(n.list, fresh, func(c candidate, f algorithms.Instant) int {
		switch {
		case c.fresh > f:
			return -1
		case c.fresh < f:
			return 1
		default:
			return 0
		}
	})
	n.list = slices.Insert(n.list, i, candidate{key, fresh})
	if len(n.list) > 2*keysPerShard { // too many that are gone or doubled: make it anew when it is needed
		*n = nearest{kept: true}
	}
	sh.publishLocked()
}

// rankLocked makes the list. mu must be held.
func (sh *shard) rankLocked(now algorithms.Instant) {
	n := &sh.nearest
	*n = nearest{kept: true, known: true, list: n.list[:0], bound: math.MaxInt64, made: now, opens: math.MaxInt64}
	add := func(key digest) {
		fresh, opens, _ := sh.standingLocked(key, now)
		if opens > now {
			n.opens = min(n.opens, opens)
			return
		}
		n.list = append(n.list, candidate{key, fresh})
	}
	for i := range sh.table.slots {
		if s := &sh.table.slots[i]; !s.empty() {
			add(s.key())
		}
	}
	for key := range sh.logs {
		add(key)
	}
	slices.SortFunc(n.list, func(a, b candidate) int {
		switch {
		case a.fresh > b.fresh:
			return -1
		case a.fresh < b.fresh:
			return 1
		default:
			return 0
		}
	})
	if most := max(64, len(n.list)/16); len(n.list) > most {
		n.bound = n.list[len(n.list)-most].fresh
		n.list = append(n.list[:0], n.list[len(n.list)-most:]...)
	}
	sh.publishLocked()
}
