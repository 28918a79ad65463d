package owed

import (
	"math"
	"math/bits"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// level is hits to charge to a bucket, less the gain of the bucket since. A hit of long ago may
// cost nothing: a bucket that was charged at its instant would be full again.
//
// A process that decides alone has a part of the limit. The gain of this part is for the hits of
// the process, from the instant at which the bucket would be full without them. Before, the gain
// fills the hits of others. So Redis and all processes together never have a smaller deficit than
// with hits charged at their own instants. See decision 66.
//
// told and all are deficits of a bucket that gains by the part. told has the hits of which Redis
// was told, and all has all hits. So the difference is owed. Both are full at the end together.
type level struct {
	limit     algorithms.Limit // of the two states: the capacity is beyond all hits
	mine, of  uint32           // of the part
	full      algorithms.Instant
	told, all algorithms.State
	added     int64 // hits, without the gain; 0: nothing waits
}

// limitOf returns the limit by which hits of a part are gained.
func limitOf(l algorithms.Limit, p store.Part) algorithms.Limit {
	period := l.Period
	if p.Mine > 0 && p.Mine < p.Of {
		period = gain(algorithms.Limit{Requests: p.Mine, Period: period}, uint64(p.Of))
	}
	return algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: l.Requests, Period: period, Extra: algorithms.Extra{Burst: math.MaxUint32}}
}

// add adds hits of an instant. The zero part says nothing. The hits are then of the same part as
// those before. The first ones are of the whole limit, and the bucket may have been empty before.
func (v *level) add(l algorithms.Limit, p store.Part, at algorithms.Instant, hits int64) {
	limit := limitOf(l, p)
	if p == (store.Part{}) {
		if p.Full = at.Add(gain(l, l.Capacity())); v.added > 0 {
			limit.Period, p.Mine, p.Of = v.limit.Period, v.mine, v.of
		}
	}
	v.mine, v.of = p.Mine, p.Of
	if v.added == 0 && v.told.Unused() {
		v.full = p.Full
	}
	if v.limit != limit {
		left := v.left(at)
		v.limit, v.told, v.all = limit, algorithms.State{}, algorithms.State{}
		v.take(at, left)
	}
	v.take(at, hits)
	v.added = min(v.added+hits, mostSum)
}

func (v *level) take(at algorithms.Instant, hits int64) {
	v.all, _ = algorithms.Take(v.limit, v.all, max(at, v.full), min(hits, algorithms.MaxHits), false)
}

// left returns the hits that are owed at an instant, rounded up.
func (v *level) left(now algorithms.Instant) int64 {
	if v.added == 0 {
		return 0
	}
	return max(0, used(v.limit, v.all, now)-used(v.limit, v.told, now))
}

// ends returns the instant from which nothing is owed.
func (v *level) ends() algorithms.Instant { return algorithms.IdleAt(v.limit, v.all) }

// tell returns the hits that are owed at an instant. From then on Redis counts them. So the
// fraction of a hit that is told too much is not owed: told and all differ by whole hits.
func (v *level) tell(now algorithms.Instant) (hits int64) {
	hits = v.left(now)
	if used(v.limit, v.told, now) == 0 {
		v.all = algorithms.State{}
		v.take(now, hits)
	}
	v.told, v.added = v.all, 0
	return hits
}

// again puts hits back that tell has returned. was is the level before tell, and after the hits
// that Redis was told of with it.
func (v *level) again(was level, after algorithms.State, hits int64, now algorithms.Instant) {
	switch {
	case v.limit != was.limit:
		v.take(now, was.left(now))
	case v.told == after && v.added == 0:
		*v = was // without the rounding
		return
	case v.told == after:
		v.told = was.told
	default: // a later call has told hits, too: without these, they may have been gained in part
		v.told, _ = algorithms.Take(v.limit, v.told, now, -min(hits, algorithms.MaxHits), false)
	}
	v.added = min(v.added+was.added, mostSum)
}

func used(l algorithms.Limit, s algorithms.State, now algorithms.Instant) int64 {
	if s.Unused() {
		return 0
	}
	_, d := algorithms.Take(l, s, now, 0, false)
	return math.MaxUint32 - int64(d.Remaining)
}

// gain returns the time in which a limit gains hits, rounded up.
func gain(l algorithms.Limit, hits uint64) time.Duration {
	if l.Requests == 0 {
		return l.Period
	}
	high, low := bits.Mul64(uint64(l.Period), hits)
	if high >= uint64(l.Requests) {
		return math.MaxInt64
	}
	took, rest := bits.Div64(high, low, uint64(l.Requests))
	if rest > 0 {
		took++
	}
	return time.Duration(min(took, math.MaxInt64))
}
