package redisstore

import (
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// denials remembers what Redis said of the keys of requests that it denied, so that more of the same costs Redis nothing. A
// request is denied from here when every key of it is known and those that were denied deny it still, by package algorithms on
// the states that Redis had: until the instant from which it would pass, if nothing else came. A request for fewer hits than
// were denied asks Redis, and so does one whose limit is not the one that denied. What count_rejected limits have to count is
// owed to Redis and paid later.
//
// It is bounded in keys and in age, and forgets a key at once that is refunded or reset here, and all when rules change.
type denials struct {
	store   *Store
	maxAge  time.Duration // 0: nothing is remembered
	started time.Time
	keys    atomic.Int64
	shards  [denialShards]denialShard
}

const (
	denialShards     = 64
	denialsPerShard  = 1024
	nothingWasDenied = math.MaxInt64
)

type denialShard struct {
	generation atomic.Uint64 // a call that was begun in an earlier one says nothing any more: something was given back since

	mu    sync.Mutex // guards what follows
	known map[string]*denial
	owing []*denial     // that have owed something since the last payment of all, known or not
	swept time.Duration // when, since denials.started
}

// denial is what is known of a key.
type denial struct {
	key     string
	limit   algorithms.Limit
	hits    int64              // least that were denied; nothingWasDenied for another key of a denied request
	now     algorithms.Instant // of the answer, by Redis's clock
	heard   time.Duration      // and when it came, since denials.started
	until   algorithms.Instant // from which the hits that were denied would pass, if nothing else came
	state   kept               // as the request left it, and with what was counted here since; not of sliding_window_log
	log     algorithms.Decision
	owed    int64              // hits counted here that Redis does not know of
	owedFor algorithms.Instant // when the latest of them came
}

func newDenials(s *Store, maxAge time.Duration) *denials {
	d := &denials{store: s, maxAge: maxAge, started: time.Now()}
	for i := range d.shards {
		d.shards[i].known = make(map[string]*denial)
	}
	return d
}

func (d *denials) shard(key []byte) *denialShard {
	return &d.shards[maphash.Bytes(d.store.seed, key)%denialShards]
}

// instant returns Redis's time as far as it is known from a denial.
func (d *denials) instant(e *denial) algorithms.Instant {
	if d.store.given != nil {
		return d.store.given()
	}
	return e.now.Add(time.Since(d.started) - e.heard)
}

// deny decides a request that is known to be denied. It reports whether it did.
func (d *denials) deny(charges []store.Charge, decisions []algorithms.Decision) bool {
	if d.keys.Load() == 0 {
		return false
	}
	known := len(charges) <= maxKnownCharges
	var at [maxKnownCharges]algorithms.Instant
	for i := range charges {
		c := &charges[i]
		if known = known && c.Hits >= 0 && !again(charges, i); known {
			at[i], known = d.decide(c, &decisions[i])
		}
	}
	if !known || store.Admitted(charges, decisions) {
		d.pay(charges) // before the request, which goes in the lane of its first key
		return false
	}
	denied := uint64(0)
	for i := range charges {
		c := &charges[i]
		if !decisions[i].Allowed {
			denied += uint64(c.Hits)
		}
		switch {
		case c.CountRejected:
			d.count(c, at[i])
		case decisions[i].Allowed && c.Limit.Algorithm != algorithms.SlidingWindowLog:
			d.left(c, &decisions[i])
		}
	}
	d.store.counts.deniedHere.Add(1)
	d.store.counts.deniedHits.Add(denied)
	return true
}

// maxKnownCharges is the most charges of a request that is denied from memory: each looks at those before it.
const maxKnownCharges = 16

// again reports whether the key of charge i is that of an earlier one: then it would have to be decided on top of that.
func again(charges []store.Charge, i int) bool {
	for n := range i {
		if string(charges[n].Key) == string(charges[i].Key) {
			return true
		}
	}
	return false
}

// decide gives a charge the decision of what is known of its key, at an instant. It reports whether that is enough to know it.
func (d *denials) decide(c *store.Charge, to *algorithms.Decision) (now algorithms.Instant, known bool) {
	sh := d.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.known[string(c.Key)]
	if e == nil || e.limit != c.Limit {
		return 0, false
	}
	now = d.instant(e)
	age := now.Sub(e.now)
	if age >= d.maxAge || now < e.now {
		return 0, false
	}
	if c.Limit.Algorithm == algorithms.SlidingWindowLog {
		return now, e.decideLog(c, age, to)
	}
	k := e.state
	*to = k.take(c.Limit, now, c.Hits, c.CountRejected)
	return now, to.Allowed || c.Hits >= e.hits && now < e.until
}

// decideLog is decide for sliding_window_log, whose state is not known: that long after the answer.
func (e *denial) decideLog(c *store.Charge, age time.Duration, to *algorithms.Decision) bool {
	*to = e.log
	switch {
	case c.Limit.Requests == 0:
		return c.Hits >= e.hits // for ever, with the same waits
	case c.CountRejected:
		return false
	}
	to.ResetAfter = max(to.ResetAfter-age, 0)
	if to.Allowed {
		return c.Hits <= int64(to.Remaining)
	}
	to.RetryAfter -= age
	return c.Hits == e.hits && to.RetryAfter > 0
}

// left gives a charge that would have been allowed the decision of its key as it is left.
func (d *denials) left(c *store.Charge, to *algorithms.Decision) {
	sh := d.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.known[string(c.Key)]; e != nil {
		k := e.state
		*to = k.take(c.Limit, d.instant(e), 0, false)
		to.Allowed, to.RetryAfter = true, 0
	}
}

// begin notes, before a call is made, what its end may be learned into.
func (d *denials) begin(c *call) {
	c.generations = c.generations[:0]
	if d.maxAge == 0 {
		return
	}
	for i := range c.charges {
		c.generations = append(c.generations, d.shard(c.charges[i].Key).generation.Load())
	}
}

// learn takes from the end of a call what it says of its keys.
func (d *denials) learn(c *call) {
	if d.maxAge == 0 || c.admitted && d.keys.Load() == 0 {
		return
	}
	heard := time.Since(d.started)
	for i := range c.charges {
		sh := d.shard(c.charges[i].Key)
		var e *denial
		if !c.admitted {
			e = c.denial(i)
		}
		sh.mu.Lock()
		if e != nil && sh.generation.Load() == c.generations[i] {
			e.heard = heard
			d.putLocked(sh, e)
		} else {
			d.removeLocked(sh, c.charges[i].Key, true) // what is known of it is older
		}
		sh.mu.Unlock()
	}
}

// denial returns what a denied call says of the key of charge i, nil when that is nothing that can be answered from. Those of
// sliding_window_log do not say what becomes of hits that count though denied, nor of more hits than ever fit.
func (c *call) denial(i int) *denial {
	charge, decision := &c.charges[i], c.decisions[i]
	e := &denial{key: string(charge.Key), limit: charge.Limit, hits: nothingWasDenied, now: c.now}
	if charge.Hits < 0 || again(c.charges, i) {
		return nil
	}
	if charge.Limit.Algorithm == algorithms.SlidingWindowLog {
		if ban := charge.Limit.Requests == 0; !ban && (charge.CountRejected || charge.Hits > int64(charge.Limit.Requests)) {
			return nil
		}
		e.log = decision
	} else {
		if e.state = c.after[i]; c.counters[i] {
			e.state.enter(charge.Limit, c.at, c.now) // the last that was charged may have been another limit
		}
	}
	if !decision.Allowed && charge.Hits > 0 {
		e.hits, e.until = charge.Hits, c.now.Add(decision.RetryAfter)
	}
	return e
}

// putLocked remembers a denial, unless there is no room.
func (d *denials) putLocked(sh *denialShard, e *denial) {
	old := sh.known[e.key]
	if old == nil {
		if len(sh.known) >= denialsPerShard && !d.sweepLocked(sh) {
			return
		}
		d.keys.Add(1)
	} else {
		d.payLocked(old, nil)
	}
	sh.known[e.key] = e
}

// refunded forgets the keys of a request that charges to give back, at its end. What was asked before that is not learned.
func (d *denials) refunded(charges []store.Charge) {
	for i := range charges {
		if charges[i].Hits < 0 {
			d.drop(charges[i].Key, true)
		}
	}
}

// reset forgets keys that are to be as if never used, and what is owed for them. What was asked before is not learned.
func (d *denials) reset(charges []store.Charge) {
	for i := range charges {
		d.drop(charges[i].Key, false)
	}
}

// drop forgets a key and what was asked about it, with or without telling Redis what is owed for it.
func (d *denials) drop(key []byte, pay bool) {
	if d.maxAge == 0 {
		return
	}
	sh := d.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.generation.Add(1)
	d.removeLocked(sh, key, pay)
}

// removeLocked forgets a key, with or without telling Redis what is owed for it.
func (d *denials) removeLocked(sh *denialShard, key []byte, pay bool) {
	e := sh.known[string(key)]
	if e == nil {
		return
	}
	if pay {
		d.payLocked(e, nil)
	}
	e.owed = 0
	delete(sh.known, e.key)
	d.keys.Add(-1)
}

// forget forgets all keys, and what was asked about them.
func (d *denials) forget() {
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		sh.generation.Add(1)
		for _, e := range sh.known {
			d.payLocked(e, nil)
		}
		d.keys.Add(-int64(len(sh.known)))
		clear(sh.known)
		sh.mu.Unlock()
	}
}

// sweepLocked forgets what is too old in a shard, unless it has just done so, and reports whether there was any.
func (d *denials) sweepLocked(sh *denialShard) bool {
	at := time.Since(d.started)
	if at-sh.swept < min(payInterval, d.maxAge) {
		return false
	}
	sh.swept = at
	swept := false
	for key, e := range sh.known {
		if age := d.instant(e).Sub(e.now); age >= d.maxAge {
			d.payLocked(e, nil)
			delete(sh.known, key)
			d.keys.Add(-1)
			swept = true
		}
	}
	return swept
}
