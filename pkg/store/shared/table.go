package shared

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

const (
	shards         = 64
	trackedByShard = 1024 // keys that are asked often
	deniedByShard  = 1024 // keys with a denial: a bound of its own, so that a flood of denied keys evicts no lease
	sweepEvery     = 100 * time.Millisecond
	sketched       = 256 // counters of a shard's keys that are not tracked
	fewSketched    = 2   // calls in a slot, from then on a key is tracked
)

// allotment is the right of this process to decide alone for one key until an instant. A lease says
// yes: it has hits that the remote store has charged in advance. A denial says no: it has the
// fewest hits that the remote store denied. Both have the limit and the last state that the remote
// store told, less the hits that were decided here since. Operations on an allotment:
//
//	decide   spend, peekLease: a lease; denyAll: denials
//	undo     unspend: the request was denied, or not decided here
//	learn    learnLease: a lease has the newest state; learnDenials: denials begin or end
//	recall   recall: the hits of leases go back, and denials end
//	expire   sweep: at the end of a lease, of a denial, or when the key is not asked any more
//
// An answer to a question of an earlier generation of the shard teaches no denial. An older state
// than the last one teaches no lease.
type allotment struct {
	yes *key    // nil: the key is not asked often
	no  *denial // nil: no denial is remembered
}

type table struct {
	shards  [shards]shard
	tracked atomic.Int64  // keys that are asked often
	denials atomic.Int64  // keys with a denial
	keys    atomic.Int64  // both; a key with a lease and a denial counts twice
	filled  chan struct{} // has a value when the table is not empty any more
}

// add adds to the numbers of keys.
func (t *table) add(tracked, denials int) {
	t.tracked.Add(int64(tracked))
	t.denials.Add(int64(denials))
	if more := int64(tracked + denials); t.keys.Add(more) == more && more > 0 {
		select {
		case t.filled <- struct{}{}:
		default:
		}
	}
}

type shard struct {
	// generation changes when a key is refunded or reset. A denial in an answer to a question of an
	// earlier generation is too old to learn.
	generation atomic.Uint64

	mu         sync.Mutex // guards the fields below
	allotments map[string]allotment
	tracked    int           // allotments with a key that is asked often
	denials    int           // allotments with a denial
	swept      time.Duration // by Store.now
	calls      [sketched]uint8
	number     time.Duration // the slot of calls
	leased     uint64        // charges that were decided from a lease
	charged    uint64        // hits
	back       uint64        // hits
	expired    uint64        // hits
}

// key is a key that is asked often. The shard's mu guards it.
type key struct {
	lease

	name  []byte
	hash  uint64
	shard *shard
}

func (t *table) spot(c *store.Charge) *shard { return &t.shards[c.KeyHash()%shards] }

// lock returns the shard of a charge's key, with its mu held.
func (t *table) lock(c *store.Charge) *shard {
	sh := t.spot(c)
	sh.mu.Lock()
	return sh
}

// leaseLocked returns the key of a charge with its leases, ready for the charge's limit; nil if the
// key is not tracked. The shard's mu must be held.
func (s *Store) leaseLocked(sh *shard, c *store.Charge, now time.Duration) *key {
	k := sh.allotments[string(c.Key)].yes
	if k == nil {
		return nil
	}
	if k.limit != c.Limit {
		before := k.limit
		s.giveLocked(k, before, now, k.use(c.Limit))
	}
	if k.first.left > 0 && now >= k.first.ends || k.second.left > 0 && now >= k.second.ends {
		s.giveLocked(k, k.limit, now, k.ended(now))
	}
	return k
}

// trackLocked is leaseLocked for a charge that the remote store is asked about. trackLocked begins
// to track a key that is asked often. The shard's mu must be held.
func (s *Store) trackLocked(sh *shard, c *store.Charge, now time.Duration) *key {
	if k := s.leaseLocked(sh, c, now); k != nil {
		return k
	}
	if number := now / slot; sh.number != number {
		sh.number, sh.calls = number, [sketched]uint8{}
	}
	hash := c.KeyHash()
	counter := &sh.calls[hash/shards%sketched]
	if *counter++; *counter < fewSketched {
		return nil
	}
	*counter = fewSketched
	if sh.tracked >= trackedByShard && !s.sweepLocked(sh, now) {
		return nil
	}
	name := string(c.Key)
	k := &key{name: []byte(name), hash: hash, shard: sh}
	k.use(c.Limit)
	a := sh.allotments[name]
	a.yes = k
	sh.allotments[name] = a
	sh.tracked++
	s.table.add(1, 0)
	return k
}

// giveLocked gives hits of a lease that has ended back to the remote store. The shard's mu must be
// held.
func (s *Store) giveLocked(k *key, limit algorithms.Limit, now time.Duration, parts [2]taken) {
	for _, p := range parts {
		if p.hits == 0 {
			continue
		}
		if limit.Algorithm.HasWindows() && k.told.Now != 0 && k.instant(now).Sub(p.at) >= untilEnd(limit, p.at) {
			k.shard.expired += uint64(p.hits) // the window is over, and its count with it
			continue
		}
		k.shard.back += uint64(p.hits)
		s.remote.Later(&store.Charge{Key: k.name, Hash: k.hash, Limit: limit, Hits: -p.hits}, p.at, store.Part{})
	}
}

// rememberDenialLocked remembers a denial, unless there is no room. The shard's mu must be held.
func (s *Store) rememberDenialLocked(sh *shard, name []byte, d *denial, now time.Duration) {
	a := sh.allotments[string(name)]
	if a.no == nil {
		if sh.denials >= deniedByShard && !s.sweepLocked(sh, now) {
			return
		}
		a = sh.allotments[string(name)] // the sweep may have removed the key
		sh.denials++
		s.table.add(0, 1)
	}
	a.no = d
	sh.allotments[string(name)] = a
}

// forgetDenialLocked forgets the denial of a key. The shard's mu must be held.
func (s *Store) forgetDenialLocked(sh *shard, name []byte) {
	a := sh.allotments[string(name)]
	if a.no == nil {
		return
	}
	if a.no = nil; a.yes == nil {
		delete(sh.allotments, string(name))
	} else {
		sh.allotments[string(name)] = a
	}
	sh.denials--
	s.table.add(0, -1)
}

// forget forgets the denial of a charge's key, and answers about the key that are under way. After
// a reset the lease of the key goes, too.
func (s *Store) forget(c *store.Charge, reset bool) {
	sh := s.table.lock(c)
	defer sh.mu.Unlock()
	sh.generation.Add(1)
	if k := sh.allotments[string(c.Key)].yes; reset && k != nil {
		k.drop()
	}
	s.forgetDenialLocked(sh, c.Key)
}

func (s *Store) reset(charges []store.Charge) {
	for i := range charges {
		s.forget(&charges[i], true)
	}
}

// recall ends all leases of this process, gives their hits back, and forgets all denials.
func (s *Store) recall() {
	now := s.now()
	for i := range s.table.shards {
		sh := &s.table.shards[i]
		sh.mu.Lock()
		sh.generation.Add(1)
		for name, a := range sh.allotments {
			if a.yes != nil {
				s.giveLocked(a.yes, a.yes.limit, now, a.yes.recall())
			}
			s.forgetDenialLocked(sh, []byte(name))
		}
		sh.mu.Unlock()
	}
}

// sweep expires allotments until ctx ends: leases each time, and the denials of one shard at a
// time. There are no sweeps while the table is empty.
func (s *Store) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for n := 0; ; n = (n + 1) % shards {
		due := tick.C
		if s.table.keys.Load() == 0 {
			due = nil
		}
		select {
		case <-due:
		case <-s.table.filled:
			continue
		case <-ctx.Done():
			return
		}
		for i := range s.table.shards {
			sh := &s.table.shards[i]
			sh.mu.Lock()
			if sh.tracked > 0 || i == n {
				s.sweepLocked(sh, s.now())
			}
			sh.mu.Unlock()
		}
	}
}

// sweepLocked expires the allotments of a shard, unless it has just done so, and reports whether
// keys or denials went. The shard's mu must be held.
func (s *Store) sweepLocked(sh *shard, now time.Duration) bool {
	if now-sh.swept < s.sweepRest {
		return false
	}
	sh.swept = now
	tracked, denials := sh.tracked, sh.denials
	for name, was := range sh.allotments {
		a := was
		if k := a.yes; k != nil {
			s.giveLocked(k, k.limit, now, k.ended(now))
			s.giveLocked(k, k.limit, now, k.unused(now))
			if k.idle(now) {
				a.yes = nil
				sh.tracked--
			}
		}
		if a.no != nil && s.instant(a.no, now).Sub(a.no.told) >= s.maxAge {
			a.no = nil
			sh.denials--
		}
		switch a {
		case was:
		case allotment{}:
			delete(sh.allotments, name)
		default:
			sh.allotments[name] = a
		}
	}
	s.table.add(sh.tracked-tracked, sh.denials-denials)
	return sh.tracked < tracked || sh.denials < denials
}
