package redisstore

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

// denials remembers what Redis said of the keys of requests that it denied, so that more of the same costs Redis nothing. A
// request is denied from here when every key of it is known and those that were denied deny it still, by package algorithms on
// the states that Redis had: until the instant from which it would pass, if nothing else came. A request for fewer hits than
// were denied asks Redis, and so does one whose limit is not the one that denied. What count_rejected limits have to count is
// added up and sent every payInterval, and before the next question about the same key.
//
// It is bounded in keys and in age, and forgets a key at once that is refunded or reset here, and all when rules change.
type denials struct {
	store      *Store
	maxAge     time.Duration
	started    time.Time
	seed       maphash.Seed
	generation atomic.Uint64 // of what may be learned: a call that was begun before a refund says nothing any more
	keys       atomic.Int64
	shards     [denialShards]denialShard
}

const (
	denialShards     = 64
	denialsPerShard  = 1024
	payInterval      = 100 * time.Millisecond
	nothingWasDenied = math.MaxInt64
)

type denialShard struct {
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
	slot    uint16
	owed    int64              // hits counted here that Redis does not know of
	owedFor algorithms.Instant // when the latest of them came
}

func newDenials(s *Store, maxAge time.Duration) *denials {
	d := &denials{store: s, maxAge: maxAge, started: time.Now(), seed: maphash.MakeSeed()}
	for i := range d.shards {
		d.shards[i].known = make(map[string]*denial)
	}
	return d
}

// len returns the number of keys.
func (d *denials) len() int { return int(d.keys.Load()) }

func (d *denials) shard(key []byte) *denialShard {
	return &d.shards[maphash.Bytes(d.seed, key)%denialShards]
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
		for i := range charges {
			if charges[i].Hits < 0 {
				d.generation.Add(1)
				break
			}
		}
		return false
	}
	known := len(charges) <= maxKnownCharges
	var at [maxKnownCharges]algorithms.Instant
	for i := range charges {
		c := &charges[i]
		switch {
		case c.Hits < 0:
			d.pay(charges) // before the request, which goes in the lane of its first key
			d.drop(charges[i : i+1])
			known = false
		case known:
			at[i], known = d.decide(c, &decisions[i])
			known = known && !again(charges, i)
		}
	}
	if !known || store.Admitted(charges, decisions) {
		d.pay(charges)
		return false
	}
	for i := range charges {
		c := &charges[i]
		switch {
		case c.CountRejected:
			d.count(c, at[i])
		case decisions[i].Allowed && c.Limit.Algorithm != algorithms.SlidingWindowLog:
			d.left(c, &decisions[i])
		}
	}
	d.store.counts.deniedHere.Add(1)
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

// count counts the hits of a charge that counts though the request was denied, at an instant.
func (d *denials) count(c *store.Charge, at algorithms.Instant) {
	if c.Hits == 0 || c.Limit.Requests == 0 && c.Limit.Algorithm == algorithms.SlidingWindowLog {
		return
	}
	sh := d.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.known[string(c.Key)]
	if e == nil || e.limit != c.Limit { // forgotten just now
		slot, _ := d.store.slot([]store.Charge{*c})
		d.payLocked(&denial{key: string(c.Key), limit: c.Limit, slot: slot, owed: c.Hits, owedFor: at}, nil)
		return
	}
	e.state.take(c.Limit, at, c.Hits, true)
	if period := algorithms.Instant(e.limit.Period); e.owed > 0 && e.owedFor/period != at/period {
		d.payLocked(e, nil) // they belong to another window
	}
	if e.owed == 0 {
		sh.owing = append(sh.owing, e)
	}
	e.owed, e.owedFor = e.owed+c.Hits, at
}

// learn takes from the end of a call what it says of its keys.
func (d *denials) learn(c *call) {
	for i := range c.charges {
		if c.charges[i].Hits < 0 { // what was asked before it was given back is no answer any more
			d.drop(c.charges[i : i+1])
		}
	}
	if c.admitted {
		if d.keys.Load() > 0 {
			d.drop(c.charges)
		}
		return
	}
	heard := time.Since(d.started)
	for i := range c.charges {
		if e := c.denial(i); e != nil && c.generation == d.generation.Load() {
			e.heard = heard
			d.put(e)
		} else {
			d.remove(c.charges[i].Key, true) // what is known of it is older
		}
	}
}

// denial returns what a denied call says of the key of charge i, nil when that is nothing that can be answered from. Those of
// sliding_window_log do not say what becomes of hits that count though denied, nor of more hits than ever fit.
func (c *call) denial(i int) *denial {
	charge, decision := &c.charges[i], c.decisions[i]
	e := &denial{key: string(charge.Key), limit: charge.Limit, hits: nothingWasDenied, now: c.now, slot: c.slot}
	if charge.Hits < 0 || again(c.charges, i) {
		return nil
	}
	if charge.Limit.Algorithm == algorithms.SlidingWindowLog {
		if ban := charge.Limit.Requests == 0; !ban && (charge.CountRejected || charge.Hits > int64(charge.Limit.Requests)) {
			return nil
		}
		e.log = decision
	} else {
		e.state = c.after[i]
	}
	if !decision.Allowed && charge.Hits > 0 {
		e.hits, e.until = charge.Hits, c.now.Add(decision.RetryAfter)
	}
	return e
}

// put remembers a denial, unless there is no room.
func (d *denials) put(e *denial) {
	sh := d.shard([]byte(e.key))
	sh.mu.Lock()
	defer sh.mu.Unlock()
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

// drop forgets the keys of charges, and what was begun before is not learned.
func (d *denials) drop(charges []store.Charge) { d.discard(charges, true) }

// discard is drop, which tells Redis what is owed for the keys or, where they are to be as if never used, does not.
func (d *denials) discard(charges []store.Charge, pay bool) {
	d.generation.Add(1)
	for i := range charges {
		d.remove(charges[i].Key, pay)
	}
}

// remove forgets a key, with or without telling Redis what is owed for it.
func (d *denials) remove(key []byte, pay bool) {
	sh := d.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.known[string(key)]
	if e == nil {
		return
	}
	if pay {
		d.payLocked(e, nil)
	}
	e.owed = 0
	delete(sh.known, string(key))
	d.keys.Add(-1)
}

// forget forgets all keys.
func (d *denials) forget() {
	d.generation.Add(1)
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		for _, e := range sh.known {
			d.payLocked(e, nil)
		}
		d.keys.Add(-int64(len(sh.known)))
		clear(sh.known)
		sh.mu.Unlock()
	}
}

// pay tells Redis of the hits counted here for the keys of charges, before it is asked about them.
func (d *denials) pay(charges []store.Charge) {
	if d.keys.Load() == 0 {
		return
	}
	for i := range charges {
		sh := d.shard(charges[i].Key)
		sh.mu.Lock()
		if e := sh.known[string(charges[i].Key)]; e != nil {
			d.payLocked(e, d.store.laneFor(e.slot, charges[0].Key))
		}
		sh.mu.Unlock()
	}
}

// payLocked has what is owed for a key sent, in a lane where it comes before the calls that follow; nil means any.
func (d *denials) payLocked(e *denial, l *lane) {
	for e.owed > 0 {
		hits := min(e.owed, algorithms.MaxHits)
		e.owed -= hits
		c := newCall()
		c.set(correct, e.slot, []store.Charge{{
			Key: []byte(e.key), Limit: e.limit, Hits: hits, CountRejected: true, Mode: store.Shadow,
		}})
		c.corrections = append(c.corrections, &correction{
			at: int64(e.owedFor) / int64(Granularity), difference: hits, after: notAState,
		})
		c.then = func(err error) {
			if err == nil {
				d.store.counts.deferredHits.Add(uint64(hits))
			} else {
				d.store.counts.lostHits.Add(uint64(hits))
			}
		}
		if l == nil {
			l = d.store.laneOf(c)
		}
		if !l.put(c) {
			c.then(ErrUnavailable)
		}
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

// run pays what is owed, and sweeps, until ctx ends; then it pays once more.
func (d *denials) run(ctx context.Context) {
	tick := time.NewTicker(payInterval)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
			for i := range d.shards {
				sh := &d.shards[i]
				sh.mu.Lock()
				if n%denialShards == i {
					d.sweepLocked(sh)
				}
				for _, e := range sh.owing {
					d.payLocked(e, nil)
				}
				clear(sh.owing)
				sh.owing = sh.owing[:0]
				sh.mu.Unlock()
			}
		case <-ctx.Done():
			d.forget()
			return
		}
	}
}
