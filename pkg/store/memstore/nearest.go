package memstore

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// nearest is the keys of a shard in the order in which they are forgotten to make room. The key that is idle soonest goes first; keys
// that are denied now are left out. The list may have only some of the keys, and exists only while the store is about full.
type nearest struct {
	kept  bool
	known bool               // the list is made; else the shard must make the list before it can offer a key
	list  []candidate        // the nearest last
	bound algorithms.Instant // a key that is not denied and not in the list is idle after bound; MaxInt64: no such key
	made  algorithms.Instant
	opens algorithms.Instant // when the first of the keys that were denied at made is not denied any more
}

type candidate struct {
	key  digest
	idle algorithms.Instant // when the key is idle
}

// offer is a shard's nearest key for the other shards, as instants.
type offer struct {
	nearest atomic.Int64 // when the key is idle; MaxInt64: there is no key; 0, at the start: the shard must look for one
	opens   atomic.Int64 // nearest.opens, for a shard whose keys are all denied; 0 at the start
}

// at returns when the shard's nearest key is idle, or the smallest instant if the shard must look for a key.
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

// ranked is the longest use of a list: a key that was denied when the list was made may be free to go by then.
const ranked = time.Second

// evictLocked forgets the key that the shard offers, and reports whether it did. If there is no key, or the list must be made or
// corrected first, it forgets nothing. mu must be held.
func (sh *shard) evictLocked(now algorithms.Instant) bool {
	n := &sh.nearest
	if !n.known || now.Sub(n.made) >= ranked || len(n.list) == 0 {
		sh.rankLocked(now)
		return false // another shard may be nearer now
	}
	defer sh.publishLocked()
	for offered := true; len(n.list) > 0; offered = false {
		c := n.list[len(n.list)-1]
		idle, opens, ok := sh.standingLocked(c.key, now)
		stands := ok && idle == c.idle && opens <= now
		if stands && !offered {
			return false // another key than the offered one: another shard may be nearer
		}
		n.list = n.list[:len(n.list)-1]
		switch {
		case stands:
			sh.forgetLocked(c.key)
			return true
		case ok && idle == c.idle: // denied again
			n.opens = min(n.opens, opens)
		default: // gone, or charged since, and so in the list once more or beyond bound
		}
	}
	n.known = n.bound == math.MaxInt64
	return false
}

// publishLocked writes the shard's offer. mu must be held.
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
		sh.offer.nearest.Store(int64(n.list[len(n.list)-1].idle))
	}
}

// standingLocked returns when a key is idle, and when a hit passes if the key is denied now, else an instant not after now; ok is
// false if the shard does not remember the key. Under a limit of 0 the key is denied also without a state, so the state can go. mu
// must be held.
func (sh *shard) standingLocked(key digest, now algorithms.Instant) (idle, opens algorithms.Instant, ok bool) {
	var limit *algorithms.Limit
	var d algorithms.Decision
	if place, found := sh.table.find(key); found {
		state := sh.table.slots[place].state
		limit = sh.limits.of(sh.table.slots[place].limit())
		idle = algorithms.IdleAt(*limit, state)
		_, d = algorithms.Take(*limit, state, now, 1, false)
	} else if state := sh.logs[key]; state != nil {
		limit = &state.limit
		idle = state.log.IdleAt(*limit)
		_, d = state.log.Decide(*limit, now, algorithms.Pending{}, 1, false)
	} else {
		return 0, 0, false
	}
	if d.Allowed || limit.Requests == 0 {
		return idle, now, true
	}
	return idle, now.Add(d.RetryAfter), true
}

// noteLocked adds a key that was just charged to the list, if the key is idle before bound. mu must be held.
func (sh *shard) noteLocked(key digest, idle algorithms.Instant) {
	n := &sh.nearest
	if !n.known || idle > n.bound {
		return
	}
	i, _ := slices.BinarySearchFunc(n.list, idle, func(c candidate, at algorithms.Instant) int { return cmp.Compare(at, c.idle) })
	n.list = slices.Insert(n.list, i, candidate{key, idle})
	if len(n.list) > 2*keysPerShard { // too many are gone or doubled: make the list anew when needed
		*n = nearest{kept: true}
	}
	sh.publishLocked()
}

// rankLocked makes the list. mu must be held.
func (sh *shard) rankLocked(now algorithms.Instant) {
	n := &sh.nearest
	*n = nearest{kept: true, known: true, list: n.list[:0], bound: math.MaxInt64, made: now, opens: math.MaxInt64}
	add := func(key digest) {
		idle, opens, _ := sh.standingLocked(key, now)
		if opens > now {
			n.opens = min(n.opens, opens)
			return
		}
		n.list = append(n.list, candidate{key, idle})
	}
	for i := range sh.table.slots {
		if s := &sh.table.slots[i]; !s.empty() {
			add(s.key())
		}
	}
	for key := range sh.logs {
		add(key)
	}
	slices.SortFunc(n.list, func(a, b candidate) int { return cmp.Compare(b.idle, a.idle) })
	if maxList := max(64, len(n.list)/16); len(n.list) > maxList {
		n.bound = n.list[len(n.list)-maxList].idle
		n.list = append(n.list[:0], n.list[len(n.list)-maxList:]...)
	}
	sh.publishLocked()
}
