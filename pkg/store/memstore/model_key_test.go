package memstore

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// known is a key as its charges left the key.
type known struct {
	state  algorithms.State
	log    []counted // of sliding_window_log: all charges, to be played again
	limit  algorithms.Limit
	denied uint64 // hits last denied, at most the capacity; 0: no denial since as many passed
}

type counted struct {
	at            algorithms.Instant
	hits          int64
	limit         algorithms.Limit
	countRejected bool
	joins         bool // the log found no place to grow: after this charge the two newest entries are one, at the later instant
}

func (k *known) played() *algorithms.Log {
	log := new(algorithms.Log)
	for _, h := range k.log {
		log.Take(h.limit, h.at, h.hits, h.countRejected)
		if entries := log.AppendEntries(nil); h.joins && len(entries) >= 2 {
			newest := &entries[len(entries)-1]
			newest.Hits += entries[len(entries)-2].Hits
			log = new(algorithms.Log)
			for _, e := range append(entries[:len(entries)-2], *newest) {
				log.Restore(h.limit, e, h.at)
			}
		}
	}
	return log
}

// take applies a charge to the key.
func (k *known) take(c *store.Charge, hits int64, now algorithms.Instant) (d algorithms.Decision) {
	was := k.limit
	if c.Limit.Algorithm == algorithms.SlidingWindowLog {
		d = k.played().Take(c.Limit, now, hits, c.CountRejected)
		k.log = append(slices.Clip(k.log), counted{at: now, hits: hits, limit: c.Limit, countRejected: c.CountRejected})
		k.limit = c.Limit
	} else {
		if k.limit == (algorithms.Limit{}) {
			k.limit = c.Limit
		}
		k.state, k.limit, d = algorithms.TakeAs(k.limit, c.Limit, k.state, now, hits, c.CountRejected)
	}
	if c.Limit.Requests == 0 && was.Requests > 0 {
		k.limit = was // a ban says nothing about the state
	}
	if d.Allowed && hits > 0 && uint64(hits) >= k.denied {
		k.denied = 0
	}
	k.deny(c, hits, d.Allowed)
	return d
}

// deny notes the hits of a denied charge.
func (k *known) deny(c *store.Charge, hits int64, allowed bool) {
	if !allowed && hits > 0 && c.Limit.Requests > 0 {
		k.denied = min(uint64(hits), uint64(c.Limit.Capacity()))
	}
}

// alive returns the entries of a log that have not expired.
func (k *known) alive(log *algorithms.Log, now algorithms.Instant) []algorithms.LogEntry {
	return slices.DeleteFunc(log.AppendEntries(nil), func(e algorithms.LogEntry) bool { return now.Sub(e.At) >= k.limit.Period })
}

func (k *known) unused() bool {
	if len(k.log) > 0 {
		return k.played().Unused()
	}
	return k.state.Unused()
}

func (k *known) idleAt() algorithms.Instant {
	if len(k.log) > 0 {
		return k.played().IdleAt(k.limit)
	}
	return algorithms.IdleAt(k.limit, k.state)
}

// wait returns how long the key is denied for hits, under its last limit. 0: the key may be
// forgotten.
func (k *known) wait(hits uint64, now algorithms.Instant) time.Duration {
	if k.limit.Requests == 0 {
		return 0
	}
	hits = min(max(hits, 1), uint64(k.limit.Capacity()))
	var d algorithms.Decision
	if len(k.log) > 0 {
		d = k.played().Take(k.limit, now, int64(hits), false)
	} else {
		_, d = algorithms.Take(k.limit, k.state, now, int64(hits), false)
	}
	return d.RetryAfter
}
