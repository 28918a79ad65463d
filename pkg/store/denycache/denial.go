package denycache

import (
	"context"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

const (
	shards       = 64
	keysPerShard = 1024
	sweepEvery   = 100 * time.Millisecond // one shard at a time
	nothing      = math.MaxInt64          // as denial.hits: no hits of this key were denied
)

// shard is the denials of some keys.
type shard struct {
	// generation changes when a key is refunded or reset. An answer to a question of an earlier
	// generation is too old to learn.
	generation atomic.Uint64

	mu    sync.Mutex // guards the fields below
	known map[string]*denial
	swept time.Duration // when, since Store.started
}

// denial is a key of a denied request.
type denial struct {
	limit algorithms.Limit
	hits  int64               // fewest that were denied; nothing for another key of the request
	until algorithms.Instant  // when these hits would pass if nothing else came
	now   algorithms.Instant  // of the answer, by the store's clock
	heard time.Duration       // when the answer came, since Store.started
	state store.State         // as the request left the key, with the hits counted here since
	log   algorithms.Decision // of an algorithm without a state
}

func (s *Store) shard(key []byte) *shard { return &s.shards[maphash.Bytes(s.seed, key)%shards] }

// instant returns the instant by the store's clock.
func (s *Store) instant(d *denial) algorithms.Instant {
	if s.now != nil {
		return s.now()
	}
	return d.now.Add(time.Since(s.started) - d.heard)
}

// decide decides a charge from memory, and reports at which instant and whether memory suffices.
func (s *Store) decide(c *store.Charge, to *algorithms.Decision) (now algorithms.Instant, known bool) {
	sh := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	d := sh.known[string(c.Key)]
	if d == nil || d.limit != c.Limit {
		return 0, false
	}
	now = s.instant(d)
	age := now.Sub(d.now)
	if age >= s.maxAge || now < d.now {
		return 0, false
	}
	if !c.Limit.Algorithm.HasState() {
		return now, d.decideLog(c, age, to)
	}
	state := d.state
	*to = state.Take(c.Limit, now, c.Hits, c.CountRejected)
	return now, to.Allowed || c.Hits >= d.hits && now < d.until
}

// decideLog is decide for an algorithm without a state: the decision counts down with the age of
// the answer.
func (d *denial) decideLog(c *store.Charge, age time.Duration, to *algorithms.Decision) bool {
	*to = d.log
	switch {
	case c.Limit.Requests == 0:
		return c.Hits >= d.hits // always denied, with the same waits
	case c.CountRejected:
		return false
	}
	to.ResetAfter = max(to.ResetAfter-age, 0)
	if to.Allowed {
		return c.Hits <= int64(to.Remaining)
	}
	to.RetryAfter -= age
	return c.Hits == d.hits && to.RetryAfter > 0
}

// count counts hits of a denied request at an instant, here and in the outbox.
func (s *Store) count(c *store.Charge, at algorithms.Instant) {
	sh := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if d := sh.known[string(c.Key)]; d != nil && d.limit == c.Limit && c.Limit.Algorithm.HasState() {
		d.state.Take(c.Limit, at, c.Hits, true)
	}
	s.outbox.Later(c, at)
}

// look gives a charge that would have been allowed the decision of its key as the denied request
// leaves it.
func (s *Store) look(c *store.Charge, to *algorithms.Decision) {
	sh := s.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if d := sh.known[string(c.Key)]; d != nil {
		state := d.state
		*to = state.Take(c.Limit, s.instant(d), 0, false)
		to.Allowed, to.RetryAfter = true, 0
	}
}

// learn remembers the keys of a denied request, and forgets the keys of an admitted one.
func (s *Store) learn(q *question, admitted bool, decisions []algorithms.Decision) {
	if admitted && s.keys.Load() == 0 {
		return
	}
	heard := time.Since(s.started)
	for i := range q.charges {
		if q.states[i].Now == 0 {
			continue // another store answered
		}
		var d *denial
		if !admitted {
			d = q.denial(i, decisions[i], heard)
		}
		key := q.charges[i].Key
		sh := s.shard(key)
		sh.mu.Lock()
		if d != nil && sh.generation.Load() == q.generations[i] {
			s.putLocked(sh, key, d)
		} else {
			s.removeLocked(sh, key) // the memory is older than the answer
		}
		sh.mu.Unlock()
	}
}

// denial returns the denial of the key of charge i of a denied request; nil if memory could not
// answer with it. Without a state, a decision does not say how hits that count change a key, nor
// when more hits than ever fit would pass.
func (q *question) denial(i int, decision algorithms.Decision, heard time.Duration) *denial {
	c := &q.charges[i]
	if c.Hits < 0 || repeated(q.charges, i) {
		return nil
	}
	d := &denial{limit: c.Limit, hits: nothing, now: q.states[i].Now, heard: heard, state: q.states[i], log: decision}
	if !c.Limit.Algorithm.HasState() && c.Limit.Requests > 0 && (c.CountRejected || c.Hits > int64(c.Limit.Requests)) {
		return nil
	}
	if !decision.Allowed && c.Hits > 0 {
		d.hits, d.until = c.Hits, d.now.Add(decision.RetryAfter)
	}
	return d
}

// putLocked remembers a denial, unless there is no room. The shard's mu must be held.
func (s *Store) putLocked(sh *shard, key []byte, d *denial) {
	if sh.known[string(key)] == nil {
		if len(sh.known) >= keysPerShard && !s.sweepLocked(sh) {
			return
		}
		s.keys.Add(1)
	}
	sh.known[string(key)] = d
}

func (s *Store) removeLocked(sh *shard, key []byte) {
	if sh.known[string(key)] != nil {
		delete(sh.known, string(key))
		s.keys.Add(-1)
	}
}

// forget forgets a key, and answers about it that are under way.
func (s *Store) forget(key []byte) {
	sh := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.generation.Add(1)
	s.removeLocked(sh, key)
}

// sweep forgets old denials until ctx ends.
func (s *Store) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for n := 0; ; n = (n + 1) % shards {
		select {
		case <-tick.C:
			sh := &s.shards[n]
			sh.mu.Lock()
			s.sweepLocked(sh)
			sh.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// sweepLocked forgets the old denials of a shard, unless it has just done so, and reports whether
// there were any. The shard's mu must be held.
func (s *Store) sweepLocked(sh *shard) bool {
	at := time.Since(s.started)
	if at-sh.swept < min(sweepEvery, s.maxAge) {
		return false
	}
	sh.swept = at
	before := len(sh.known)
	for key, d := range sh.known {
		if s.instant(d).Sub(d.now) >= s.maxAge {
			delete(sh.known, key)
		}
	}
	s.keys.Add(int64(len(sh.known) - before))
	return len(sh.known) < before
}
