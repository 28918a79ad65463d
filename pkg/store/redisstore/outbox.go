package redisstore

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// outbox sends calls for which no caller waits: hits that were decided elsewhere (see Later), and
// corrections of reservations. The latter come from requests that are over.
//
// Hits are added up (deferred), and wait as long as they matter to their limit. A tick sends a
// bounded number of keys. While a server is away or answers nothing, no tick sends to it: one
// question at a time finds out when it is back. Hits that Redis has certainly not applied are sent
// again, with backoff. If the outcome is unknown hits to charge are sent again, and may count once
// more each time. Hits to give back are lost then: a lost hit is better than one that is given back
// twice.
//
// A correction that Redis has certainly not applied is sent again for outboxFor. A correction
// without an answer is lost. Lost hits are counted. At Close the outbox sends for outboxClose at
// most, and the rest is lost.
type outbox struct {
	store  *Store
	count  atomic.Int64 // of deferred
	holds  atomic.Int64 // of owedHold
	shards [outboxShards]outboxShard

	sending sync.Mutex // guards the fields below; locked before a shard's mu
	first   int        // shard of the next tick
	asked   time.Time  // when the last question was sent

	mu     sync.Mutex            // guards the fields below; locked after a shard's mu, before a queue's
	calls  int                   // under way, or in again
	again  []*call               // corrections of reservations to send again
	failed bool                  // a call has failed since the last tick
	wait   time.Duration         // backoff after failed calls
	next   time.Time             // of the next sending
	resets map[string]*resetting // keys that are being reset

	resetCount atomic.Uint64 // resets that have begun

	closing atomic.Bool   // Close has begun: no correction is sent again
	closed  atomic.Bool   // hits that come are lost; set before the mu of each shard is locked once more
	settled chan struct{} // holds a value after the end of the last call under way
}

const (
	outboxTick    = 100 * time.Millisecond // a moment in which hits of one key add up
	outboxPerTick = 2000                   // calls of a tick
	outboxMaxWait = time.Second            // longest backoff
	outboxAsks    = longestLife            // between two questions to servers that answer nothing
	outboxFor     = 5 * time.Second        // from the failure of a request over several slots
	outboxClose   = 2 * time.Second
	outboxCalls   = 10_000
)

// resetting is a key with resets under way.
type resetting struct {
	resets  int
	dropped int64 // hits, each without its sign
}

func newOutbox(s *Store) *outbox {
	o := &outbox{store: s, resets: make(map[string]*resetting), settled: make(chan struct{}, 1)}
	for i := range o.shards {
		o.shards[i].keys = make(map[string][]*deferred)
		o.shards[i].holds = make(map[string]map[owedHolder]*owedHold)
	}
	return o
}

// Later implements [store.Remote]. The instant is one of Redis's clock, as in Charge.Left, or from
// [Store.Now]. A bucket gets back negative hits less its gain since that instant.
func (s *Store) Later(c *store.Charge, at algorithms.Instant) {
	if s.isCounter(c) {
		at -= s.Now(algorithms.Limit{}) - s.now() // counters know the clock of this process
	}
	s.outbox.add(c, at-at%algorithms.Instant(Granularity))
}

// sendBefore sends the deferred hits of the keys of charges, ahead of a request for the same keys.
// Hits to give back wait while Redis answers nothing, as they could be lost; without them the
// request finds less room.
func (o *outbox) sendBefore(charges []store.Charge) {
	o.sendHoldsBefore(charges)
	if o.count.Load() == 0 {
		return
	}
	looks := reaches{store: o.store}
	for i := range charges {
		sh := o.shard(charges[i].Key)
		sh.mu.Lock()
		for _, d := range slices.Clone(sh.keys[string(charges[i].Key)]) {
			o.expireLocked(sh, d, o.nowOf(d.counter))
			hits := d.waiting()
			reach := looks.of(&d.charge, d.at)
			if hits == 0 || reach == nobody || reach == silent && hits < 0 || o.full() {
				continue
			}
			q := o.store.queueBefore(charges, i)
			o.sendLocked(sh, d, func(c *call) { cmp.Or(q, c.queue()).putBefore(c) })
		}
		sh.mu.Unlock()
	}
}

// sendLocked sends waiting hits through put, which puts a call into a queue, and reports whether
// the deferred is gone. The shard's mu must be held.
func (o *outbox) sendLocked(sh *outboxShard, d *deferred, put func(*call)) (gone bool) {
	c := d.call(o.store)
	gone = o.tidyLocked(sh, d)
	if c != nil {
		o.send(c, put, time.Time{})
	}
	return gone
}

// send sends a call through put. A correction of a reservation is sent again until a time through
// its own queue. The call belongs to the outbox then.
func (o *outbox) send(c *call, put func(*call), until time.Time) {
	o.mu.Lock()
	full := o.calls >= outboxCalls && c.deferred == nil && c.owed == nil
	if !full {
		o.calls++
	}
	o.mu.Unlock()
	if full {
		o.lose(c.size())
		return
	}
	c.outbox, c.resendUntil = o, until
	put(c)
}

// putCall puts a call into its own queue.
func putCall(c *call) { c.queue().put(c) }

// full reports whether too many calls are under way for deferred hits.
func (o *outbox) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls >= outboxCalls
}

// idle reports whether no call of the outbox is under way.
func (o *outbox) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls == 0
}

// ended handles the end of a call.
func (o *outbox) ended(c *call) {
	waits := (c.deferred != nil || c.owed != nil) && !o.closed.Load() // after Close the shard's mu may be held
	switch {
	case waits && c.owed != nil:
		o.toldHold(c)
	case waits:
		o.landed(c)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.err == nil {
		o.wait = 0
		if c.owed == nil {
			o.store.metrics.deferredHits.Add(uint64(c.size()))
		}
	} else {
		o.failed = true
		if c.deferred == nil && c.owed == nil && c.refused {
			c.drop(o.resets)
			if len(c.charges) > 0 && !o.closing.Load() && time.Now().Before(c.resendUntil) {
				o.again = append(o.again, c)
				return
			}
		}
		switch {
		case waits:
		case c.owed != nil:
			o.store.metrics.lostHolds.Add(uint64(len(c.charges)))
		default:
			o.lose(c.size())
		}
	}
	if o.calls--; o.calls == 0 {
		select {
		case o.settled <- struct{}{}:
		default:
		}
	}
}

// landed has the hits of a call wait again, as far as the outcome of the call allows it.
func (o *outbox) landed(c *call) {
	d := c.deferred
	sh := o.shard(d.charge.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c.err != nil {
		unknown := uint64(0)
		for i := range c.charges {
			charge, fix := &c.charges[i], c.corrections[i]
			switch {
			case o.dropped(charge):
			case !c.refused && charge.Hits < 0:
				o.lose(charge.Hits)
			default:
				if !c.refused {
					unknown += uint64(charge.Hits)
				}
				o.addLocked(sh, charge, algorithms.Instant(fix.at)*algorithms.Instant(Granularity))
			}
		}
		o.store.metrics.unknownHits.Add(unknown)
	}
	d.under -= c.positive()
	o.tidyLocked(sh, d)
}

// dropped reports whether the key of a charge is being reset, and drops the hits then.
func (o *outbox) dropped(c *store.Charge) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.resets[string(c.Key)]
	if r != nil {
		r.drop(c.Hits)
	}
	return r != nil
}

func (o *outbox) lose(hits int64) { o.store.metrics.lostHits.Add(uint64(max(hits, -hits))) }
