package memstore

import (
	"container/heap"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// MaxBlocks is the most keys of [algorithms.Escalation] that a store remembers. These take no place
// of other keys. At the bound the key goes whose block ends first, or has ended first: before all
// keys that are blocked, the ones that are not. A new key that would itself be that one is not
// remembered. So offenders neither push out counts nor free blocked keys.
const MaxBlocks = 100_000

const blockShards = 16 // a power of two

// blocks keeps the keys of algorithms.Escalation. Safe for concurrent use.
type blocks [blockShards]blockShard

type blockShard struct {
	mu     sync.Mutex // guards all below
	latest algorithms.Instant
	epoch  int64 // as of a shard
	known  map[digest]*offender
	order  offenders
	forced uint64 // forgotten or not remembered, because of the bound
}

// offender is a key with offenses.
type offender struct {
	key   digest
	limit algorithms.Limit
	state algorithms.State
	place int // in the heap
}

// offenders is a heap: the first one to go is first.
type offenders []*offender

func (o offenders) Len() int           { return len(o) }
func (o offenders) Less(i, j int) bool { return o[i].end() < o[j].end() }

func (o offenders) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].place, o[j].place = i, j
}

func (o *offenders) Push(x any) {
	added, _ := x.(*offender)
	added.place = len(*o)
	*o = append(*o, added)
}

func (o *offenders) Pop() any {
	last := len(*o) - 1
	gone := (*o)[last]
	(*o)[last] = nil
	*o = (*o)[:last]
	return gone
}

func (o *offender) end() algorithms.Instant { return algorithms.BlockEnd(o.state) }

// lock locks the shard of a key and returns its instant.
func (b *blocks) lock(s *Store, key digest) (*blockShard, algorithms.Instant) {
	sh := &b[key.lo>>digestBits&(blockShards-1)]
	sh.mu.Lock()
	return sh, sh.instantLocked(s)
}

// instantLocked returns the instant of a charge. After a step of the wall clock the time since an
// offense stays as it was. mu must be held.
func (sh *blockShard) instantLocked(s *Store) algorithms.Instant {
	c := s.clock.Load()
	if sh.epoch != c.epoch {
		step := time.Duration(c.epoch - sh.epoch)
		for _, o := range sh.order {
			o.state = algorithms.Realign(o.limit, o.state, sh.latest, step)
		}
		heap.Init(&sh.order)
		sh.latest, sh.epoch = sh.latest.Moved(step), c.epoch
	}
	sh.latest = max(sh.latest, c.now())
	return sh.latest
}

// take applies a charge of algorithms.Escalation, or only asks.
func (b *blocks) take(s *Store, c *store.Charge, asks bool) algorithms.Decision {
	key := s.digest(c)
	sh, now := b.lock(s, key)
	defer sh.mu.Unlock()
	o := sh.known[key]
	var state algorithms.State
	if o != nil {
		state = o.state
	}
	next, d := algorithms.Charge(c.Limit, state, now, c.Hits, algorithms.Count)
	if !asks && c.Hits > 0 && next != state {
		sh.putLocked(key, c.Limit, next)
	}
	return d
}

// putLocked makes a state the state of a key. mu must be held.
func (sh *blockShard) putLocked(key digest, limit algorithms.Limit, state algorithms.State) {
	if o := sh.known[key]; o != nil {
		o.limit, o.state = limit, state
		heap.Fix(&sh.order, o.place)
		return
	}
	if sh.known == nil {
		sh.known = make(map[digest]*offender)
	}
	o := &offender{key: key, limit: limit, state: state}
	if len(sh.order) >= MaxBlocks/blockShards {
		sh.forced++
		if sh.order[0].end() >= o.end() {
			return
		}
		sh.removeLocked(sh.order[0])
	}
	sh.known[key] = o
	heap.Push(&sh.order, o)
}

func (sh *blockShard) removeLocked(o *offender) {
	heap.Remove(&sh.order, o.place)
	delete(sh.known, o.key)
}

// forget forgets a key, and reports whether the store remembered it.
func (b *blocks) forget(s *Store, key digest) bool {
	sh, _ := b.lock(s, key)
	defer sh.mu.Unlock()
	o := sh.known[key]
	if o != nil {
		sh.removeLocked(o)
	}
	return o != nil
}

// sweep frees the idle keys, some thousand under each lock.
func (b *blocks) sweep(s *Store) {
	for i := range b {
		sh := &b[i]
		sh.mu.Lock()
		now := sh.instantLocked(s)
		for n := range slices.Backward(sh.order) {
			if n < len(sh.order) && algorithms.IdleAt(sh.order[n].limit, sh.order[n].state) <= now {
				sh.removeLocked(sh.order[n])
			}
		}
		sh.mu.Unlock()
	}
}

// continueFrom puts the state that another store told in place of the own one.
func (b *blocks) continueFrom(s *Store, c *store.Charge, told *store.State) {
	key := s.digest(c)
	sh, now := b.lock(s, key)
	defer sh.mu.Unlock()
	state := told.State
	if !state.Unused() {
		state = algorithms.Realign(told.Limit, state, told.Now, time.Duration(now-told.Now))
	}
	switch o := sh.known[key]; {
	case !state.Unused():
		sh.putLocked(key, told.Limit, state)
	case o != nil:
		sh.removeLocked(o)
	}
}

// stats returns the number of remembered keys, the number of blocked ones among them, and the
// number of keys that the bound has cost.
func (b *blocks) stats(s *Store) (keys, blocked int, forced uint64) {
	for i := range b {
		sh := &b[i]
		sh.mu.Lock()
		now := sh.instantLocked(s)
		keys, forced = keys+len(sh.order), forced+sh.forced
		for _, o := range sh.order {
			if o.end() > now {
				blocked++
			}
		}
		sh.mu.Unlock()
	}
	return keys, blocked, forced
}

// clear forgets every key.
func (b *blocks) clear() {
	for i := range b {
		b[i].mu.Lock()
		b[i].known, b[i].order = nil, nil
		b[i].mu.Unlock()
	}
}

// guarded is a transaction with charges of algorithms.Escalation, reused.
type guarded struct {
	charges   []store.Charge
	decisions []algorithms.Decision
	index     []int // of charges, in the transaction; -1 stands for a charge of algorithms.Escalation
}

// escalates reports whether a charge is of algorithms.Escalation.
func escalates(charges []store.Charge) bool {
	for i := range charges {
		if charges[i].Limit.Algorithm == algorithms.Escalation {
			return true
		}
	}
	return false
}

// takeGuarded applies a transaction with charges of algorithms.Escalation. These come first, one by
// one: a charge that asks changes nothing, and an offense counts in any case. The others are one
// transaction, in which a charge that is always denied stands for a blocked key.
func (s *Store) takeGuarded(charges []store.Charge, decisions []algorithms.Decision) (admitted bool) {
	g, _ := s.guarded.Get().(*guarded)
	defer s.guarded.Put(g)
	g.charges, g.index = g.charges[:0], g.index[:0]
	for i := range charges {
		c := &charges[i]
		if c.Limit.Algorithm != algorithms.Escalation {
			g.charges, g.index = append(g.charges, *c), append(g.index, i)
			continue
		}
		decisions[i] = s.blocks.take(s, c, false)
		if !decisions[i].Allowed {
			g.charges, g.index = append(g.charges, denied(c)), append(g.index, -1)
		}
	}
	if len(g.charges) == 0 {
		return store.Admitted(charges, decisions)
	}
	for len(g.decisions) < len(g.charges) {
		g.decisions = append(g.decisions, algorithms.Decision{})
	}
	admitted, _ = s.TakeNow(g.charges, g.decisions)
	for n, i := range g.index {
		if i >= 0 {
			decisions[i], charges[i].Hits = g.decisions[n], g.charges[n].Hits // of a pair, the hits change
		}
	}
	clear(g.charges) // releases the memory of the caller
	return admitted
}

// denied returns a charge that is always denied, and leaves no state.
func denied(c *store.Charge) store.Charge {
	ban := algorithms.Limit{Algorithm: algorithms.FixedWindow, Period: algorithms.MaxPeriod}
	return store.Charge{Key: c.Key, Hash: c.Hash, Rule: c.Rule, Mode: c.Mode, Limit: ban, Hits: 1}
}
