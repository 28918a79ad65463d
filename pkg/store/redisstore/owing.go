package redisstore

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

const (
	outboxShards   = 64
	outboxPerShard = 1024 // deferred
	deferredOfKey  = 16   // more hits of one key to give back are lost
)

// outboxShard is the hits of some keys that Redis does not know of.
type outboxShard struct {
	mu    sync.Mutex // guards the fields below
	keys  map[string][]*deferred
	count int       // of deferred
	ends  time.Time // until then no deferred expires; zero: not known

	holds     map[string]map[owedHolder]*owedHold // by key
	holdCount int
}

func (o *outbox) shard(key []byte) *outboxShard {
	return &o.shards[maphash.Bytes(o.store.seed, key)%outboxShards]
}

// add adds the hits of a charge at an instant of the key's clock.
func (o *outbox) add(c *store.Charge, at algorithms.Instant) {
	if !chargeable(c) {
		if c.Limit.Period%Granularity != 0 {
			o.lose(c.Hits)
		}
		return
	}
	sh := o.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	o.addLocked(sh, c, at)
}

// chargeable reports whether Redis can have the hits of a charge.
func chargeable(c *store.Charge) bool {
	return c.Hits != 0 && c.Limit.Period%Granularity == 0 && (c.Limit.Requests > 0 || c.Limit.Algorithm.HasState())
}

// addLocked is add of hits that Redis can have. The shard's mu must be held.
func (o *outbox) addLocked(sh *outboxShard, c *store.Charge, at algorithms.Instant) {
	if !o.closed.Load() {
		if d := o.deferredLocked(sh, c, at); d != nil {
			d.add(c, at)
			return
		}
	}
	o.lose(c.Hits)
}

// deferredLocked returns the place of the hits of a charge; nil if there is no room.
func (o *outbox) deferredLocked(sh *outboxShard, c *store.Charge, at algorithms.Instant) *deferred {
	all := sh.keys[string(c.Key)]
	for _, d := range all {
		if d.takes(c, at) {
			if d.charge.Limit != c.Limit {
				sh.ends = time.Time{}
			}
			return d
		}
	}
	if sh.count >= outboxPerShard || c.Hits < 0 && len(all) >= deferredOfKey {
		return nil
	}
	d := newDeferred(o.store, c, at)
	sh.count++
	sh.ends = time.Time{}
	o.count.Add(1)
	if d.back {
		all = append(all, d)
	} else {
		all = slices.Insert(all, 0, d) // before hits to give back
	}
	sh.keys[string(c.Key)] = all
	return d
}

// endsBy notes that a deferred expires at an instant.
func (sh *outboxShard) endsBy(at time.Time) {
	if at.Before(sh.ends) {
		sh.ends = at
	}
}

// removeLocked removes a deferred without hits.
func (o *outbox) removeLocked(sh *outboxShard, d *deferred) {
	key := string(d.charge.Key)
	all := slices.DeleteFunc(sh.keys[key], func(other *deferred) bool { return other == d })
	if len(all) == len(sh.keys[key]) {
		return // removed before
	}
	if sh.keys[key] = all; len(all) == 0 {
		delete(sh.keys, key)
	}
	sh.count--
	o.count.Add(-1)
}

// tidyLocked removes a deferred if it has no hits left, and reports whether it has none.
func (o *outbox) tidyLocked(sh *outboxShard, d *deferred) (gone bool) {
	gone = d.under == 0 && d.slots == [deferredSlots]int64{}
	if gone {
		o.removeLocked(sh, d)
	}
	return gone
}

// expireLocked drops waiting hits that do not matter any more, and reports whether the deferred is
// gone. now is the instant by the clock of the deferred.
func (o *outbox) expireLocked(sh *outboxShard, d *deferred, now algorithms.Instant) (gone bool) {
	if over(d.charge.Limit, d.at, now-algorithms.Instant(deferredOverdue)) {
		hits := d.waiting()
		o.store.metrics.expiredHits.Add(uint64(max(hits, -hits)))
		d.slots = [deferredSlots]int64{}
		return o.tidyLocked(sh, d)
	}
	return false
}

// nowOf returns the instant by a key's clock.
func (o *outbox) nowOf(counter bool) algorithms.Instant {
	if counter {
		return o.store.now()
	}
	return o.store.Now(algorithms.Limit{})
}

// owed returns the hits of a key that matter at an instant, and that the answer of Redis at that
// instant does not have.
func (o *outbox) owed(c *store.Charge, now algorithms.Instant) (hits int64) {
	if o.count.Load() == 0 {
		return 0
	}
	sh := o.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, d := range sh.keys[string(c.Key)] {
		if l := d.charge.Limit; l.Algorithm == c.Limit.Algorithm && l.Period == c.Limit.Period && !over(l, d.at, now) {
			hits += max(d.waiting(), 0) + d.under
		}
	}
	return min(hits, algorithms.MaxHits)
}
