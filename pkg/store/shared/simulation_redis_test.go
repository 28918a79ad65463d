package shared

import (
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// simulatedRedis is the states of keys, changed as the script of package redisstore changes them.
// The clock of Redis is the clock of the simulation.
type simulatedRedis struct {
	keys        []simulatedKey
	pausedUntil instantOfEvent
}

// simulatedKey is the state of a key with the limit of its last charge.
type simulatedKey struct {
	limit algorithms.Limit
	state algorithms.State
}

// forget forgets an idle key, as Redis lets it expire.
func (k *simulatedKey) forget(now algorithms.Instant) {
	if !k.state.Unused() && algorithms.IdleAt(k.limit, k.state) <= now {
		*k = simulatedKey{}
	}
}

// take applies a charge.
func (k *simulatedKey) take(l algorithms.Limit, now algorithms.Instant, hits int64, countRejected bool) (d algorithms.Decision, told store.State) {
	k.forget(now)
	k.state, k.limit, d = algorithms.TakeAs(k.limit, l, k.state, now, hits, countRejected)
	told = store.State{Now: now, Limit: k.limit, State: k.state}
	if k.state.Unused() {
		*k, told.Limit = simulatedKey{}, algorithms.Limit{}
	}
	return d, told
}

// deficit returns the deficit of a token bucket, in 1/Period hit. The limits here have deficits of
// one word.
func (k *simulatedKey) deficit(now algorithms.Instant) uint64 {
	last, _, deficit := k.state.Parts()
	if k.limit.Algorithm != algorithms.TokenBucket || now <= last {
		return deficit
	}
	return deficit - min(deficit, uint64(now-last)*uint64(k.limit.Requests))
}

// correct gives hits back as of an earlier instant: the script's action for the hits of an outbox.
// was is the deficit of a token bucket at that instant without the hits, if that is known.
func (k *simulatedKey) correct(l algorithms.Limit, now algorithms.Instant, hits int64, at algorithms.Instant, was uint64) {
	k.forget(now)
	if k.state.Unused() {
		return
	}
	if at > now.Add(2*time.Second) {
		at = now
	}
	last, a, b := k.state.Parts()
	switch l.Algorithm {
	case algorithms.FixedWindow:
		now = max(now, last)
		if int64(at)/int64(l.Period) == int64(now)/int64(l.Period) {
			k.state, _ = algorithms.Take(l, k.state, now, -hits, true)
		}
	case algorithms.SlidingWindowCounter:
		now = max(now, last)
		window := int64(now) / int64(l.Period)
		switch window - int64(last)/int64(l.Period) { // as seen from now
		case 0:
		case 1:
			a, b = 0, a
		default:
			a, b = 0, 0
		}
		back := uint64(hits)
		switch window - int64(at)/int64(l.Period) {
		case 0:
			a -= min(a, back)
		case 1:
			b -= min(b, back)
		default:
			return
		}
		k.state = algorithms.StateOf(now, a, b)
	case algorithms.TokenBucket:
		now = max(now, last)
		deficit, period := k.deficit(now), uint64(k.limit.Period)
		excess := uint64(max(0, now-at)) * uint64(k.limit.Requests)
		excess -= min(excess, was)
		if excess >= uint64(hits)*period {
			return
		}
		deficit -= min(deficit, uint64(hits)*period-excess)
		k.state = algorithms.StateOf(now, 0, deficit)
	case algorithms.TokenBucketInteger:
		k.correctInteger(now, hits, at)
	default: // has no leases
	}
	if k.state.Unused() {
		*k = simulatedKey{}
	}
}

// correctInteger is correct for an integer bucket.
func (k *simulatedKey) correctInteger(now algorithms.Instant, hits int64, at algorithms.Instant) {
	mark, deficit, since := k.state.Parts()
	now = max(now, mark+algorithms.Instant(since))
	rate, period := uint64(k.limit.Requests), uint64(k.limit.Period)
	refill := uint64(now-mark) * rate / period
	if refill >= deficit {
		deficit, mark = 0, now
	} else {
		deficit -= refill
		mark += algorithms.Instant(refill * period / rate)
	}
	back := uint64(hits)
	if now > at {
		back -= min(back, uint64(now-at)*rate/period+1)
	}
	if deficit -= min(deficit, back); deficit == 0 {
		*k = simulatedKey{}
		return
	}
	k.state = algorithms.StateOf(mark, deficit, uint64(now-mark))
}
