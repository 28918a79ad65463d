package leased

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

const (
	shards       = 64
	keysPerShard = 1024
	sweepEvery   = 100 * time.Millisecond
	sketched     = 256 // counters of a shard's keys that are not tracked
	fewSketched  = 2   // calls in a slot, from then on a key is tracked
)

// shard is the leases of some keys.
type shard struct {
	mu      sync.Mutex // guards the fields below
	keys    map[string]*key
	swept   time.Duration
	leased  uint64 // charges that were decided from a lease
	calls   [sketched]uint8
	number  time.Duration // the slot of calls
	granted uint64        // hits
	back    uint64        // hits
	expired uint64        // hits
}

// key is a key that is asked often. The shard's mu guards it.
type key struct {
	lease
	name  []byte
	shard *shard
	spent time.Duration // when a request was last decided from the lease; 0: never
	vain  bool          // the last question or grant had no answer, or was not asked
}

// spot returns the shard of a key, and a counter in it.
func (s *Store) spot(name []byte) (sh *shard, counter int) {
	sum := maphash.Bytes(s.seed, name)
	return &s.shards[sum%shards], int(sum / shards % sketched)
}

// findLocked returns the key of a charge with its leases, ready for the charge's limit; nil if the
// key is not tracked. The shard's mu must be held.
func (s *Store) findLocked(sh *shard, c *store.Charge, now time.Duration) *key {
	k := sh.keys[string(c.Key)]
	if k == nil {
		return nil
	}
	if k.limit != c.Limit {
		before := k.limit
		back := k.use(c.Limit)
		s.giveLocked(k, before, now, back[:]...)
	}
	if k.first.left > 0 && now >= k.first.ends || k.second.left > 0 && now >= k.second.ends {
		back := k.ended(now)
		s.giveLocked(k, k.limit, now, back[:]...)
	}
	return k
}

// trackLocked is findLocked for a call that asks the other store, and begins to track a key that is
// asked often. The shard's mu must be held.
func (s *Store) trackLocked(sh *shard, counter int, c *store.Charge, now time.Duration) *key {
	if k := s.findLocked(sh, c, now); k != nil {
		return k
	}
	if number := now / slot; sh.number != number {
		sh.number, sh.calls = number, [sketched]uint8{}
	}
	if sh.calls[counter]++; sh.calls[counter] < fewSketched {
		return nil
	}
	sh.calls[counter] = fewSketched
	if len(sh.keys) >= keysPerShard && !s.sweepLocked(sh, now) {
		return nil
	}
	name := string(c.Key)
	k := &key{name: []byte(name), shard: sh}
	k.use(c.Limit)
	sh.keys[name] = k
	s.keys.Add(1)
	return k
}

// giveLocked gives hits of ended grants back to the shared store. The shard's mu must be held.
func (s *Store) giveLocked(k *key, limit algorithms.Limit, now time.Duration, parts ...part) {
	for _, p := range parts {
		if p.hits == 0 {
			continue
		}
		if limit.Algorithm == algorithms.FixedWindow && k.told.Now != 0 && k.instant(now).Sub(p.at) >= untilEnd(limit.Period, p.at) {
			k.shard.expired += uint64(p.hits) // the window is over, and its count with it
			continue
		}
		k.shard.back += uint64(p.hits)
		s.options.Outbox.Later(&store.Charge{Key: k.name, Limit: limit, Hits: -p.hits}, p.at)
	}
}

// each calls f with each tracked key.
func (s *Store) each(f func(k *key)) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, k := range sh.keys {
			f(k)
		}
		sh.mu.Unlock()
	}
}

// recall ends all leases and gives their hits back.
func (s *Store) recall() {
	now := s.now()
	s.each(func(k *key) {
		back := k.recall()
		s.giveLocked(k, k.limit, now, back[:]...)
	})
}

// drop forgets the leases on the keys of charges, which are being reset.
func (s *Store) drop(charges []store.Charge) {
	for i := range charges {
		sh, _ := s.spot(charges[i].Key)
		sh.mu.Lock()
		if k := sh.keys[string(charges[i].Key)]; k != nil {
			k.drop()
		}
		sh.mu.Unlock()
	}
}

// sweep gives back the hits of leases that have ended, and forgets keys that are not asked any
// more, until ctx ends.
func (s *Store) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for i := range s.shards {
				if s.keys.Load() == 0 {
					break
				}
				sh := &s.shards[i]
				sh.mu.Lock()
				s.sweepLocked(sh, s.now())
				sh.mu.Unlock()
			}
		case <-ctx.Done():
			return
		}
	}
}

// sweepLocked sweeps a shard, unless it has just done so, and reports whether keys went. The
// shard's mu must be held.
func (s *Store) sweepLocked(sh *shard, now time.Duration) bool {
	if now-sh.swept < sweepEvery/2 {
		return false
	}
	sh.swept = now
	before := len(sh.keys)
	for name, k := range sh.keys {
		back := k.ended(now)
		s.giveLocked(k, k.limit, now, back[:]...)
		back = k.unused(now)
		s.giveLocked(k, k.limit, now, back[:]...)
		if k.idle(now) {
			delete(sh.keys, name)
		}
	}
	s.keys.Add(int64(len(sh.keys) - before))
	return len(sh.keys) < before
}
