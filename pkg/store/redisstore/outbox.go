package redisstore

import (
	"cmp"
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

var _ store.Outbox = (*Store)(nil)

// outbox sends calls for which no caller waits. Hits that were decided elsewhere (see Later) are added up for each key. Corrections of
// reservations come from requests that are over. Each tick sends everything.
//
// A call that Redis has certainly not applied is sent again, with backoff, until outboxFor has passed. A call without an answer is
// not sent again, because Redis may have applied it. A lost hit is better than one that is counted twice or given back twice. Lost
// hits are counted. At Close the outbox sends the rest once.
type outbox struct {
	store  *Store
	keys   atomic.Int64 // with hits to send
	shards [outboxShards]outboxShard

	mu     sync.Mutex            // guards the fields below; locked after a shard's mu, before a queue's
	calls  int                   // under way, or in again
	again  []*call               // to send again
	failed bool                  // a call was refused since the last tick
	wait   time.Duration         // backoff after failed calls
	next   time.Time             // of the next sending
	resets map[string]*resetting // keys that are being reset
	closed bool
}

const (
	outboxTick     = 100 * time.Millisecond // a moment in which hits of one key add up
	outboxMaxWait  = time.Second            // longest backoff
	outboxFor      = 5 * time.Second        // from the first hit, or from the failure of the request
	outboxCalls    = 10_000
	outboxShards   = 64
	outboxPerShard = 1024 // keys
)

type outboxShard struct {
	mu   sync.Mutex // guards keys
	keys map[string]*deferred
}

// deferred is hits of one key under one limit, in one window.
type deferred struct {
	charge store.Charge // owns its key
	at     algorithms.Instant
	until  time.Time
}

// resetting is a key with resets under way.
type resetting struct {
	resets  int
	dropped int64 // hits, each without its sign
}

func newOutbox(s *Store) *outbox {
	o := &outbox{store: s, resets: make(map[string]*resetting)}
	for i := range o.shards {
		o.shards[i].keys = make(map[string]*deferred)
	}
	return o
}

func (o *outbox) shard(key []byte) *outboxShard {
	return &o.shards[maphash.Bytes(o.store.seed, key)%outboxShards]
}

// Later implements [store.Outbox].
func (s *Store) Later(c *store.Charge, at algorithms.Instant) { s.outbox.add(c, at) }

// add adds the hits of a charge to the deferred hits of its key.
func (o *outbox) add(c *store.Charge, at algorithms.Instant) {
	if c.Hits == 0 || c.Limit.Requests == 0 && !c.Limit.Algorithm.HasState() {
		return
	}
	if c.Limit.Period%Granularity != 0 {
		o.lose(c.Hits)
		return
	}
	sh := o.shard(c.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	d := sh.keys[string(c.Key)]
	if d != nil && (d.charge.Limit != c.Limit || window(c.Limit.Period, d.at) != window(c.Limit.Period, at)) {
		o.sendKeyLocked(sh, d, putCall)
		d = nil
	}
	if d == nil {
		if len(sh.keys) >= outboxPerShard {
			o.lose(c.Hits)
			return
		}
		key := string(c.Key)
		d = &deferred{
			charge: store.Charge{Key: []byte(key), Limit: c.Limit, CountRejected: true, Mode: store.Shadow},
			until:  time.Now().Add(outboxFor),
		}
		sh.keys[key] = d
		o.keys.Add(1)
	}
	d.charge.Hits += c.Hits
	d.at = max(d.at, at)
}

// sendBefore sends the deferred hits of the keys of charges, ahead of a request for the same keys.
func (o *outbox) sendBefore(charges []store.Charge) {
	if o.keys.Load() == 0 {
		return
	}
	for i := range charges {
		sh := o.shard(charges[i].Key)
		sh.mu.Lock()
		if d := sh.keys[string(charges[i].Key)]; d != nil {
			q := o.store.queueBefore(charges, i)
			o.sendKeyLocked(sh, d, func(c *call) { cmp.Or(q, c.queue()).putBefore(c) })
		}
		sh.mu.Unlock()
	}
}

// sendKeyLocked sends the hits of a key through put, which puts a call into a queue. The shard's mu must be held.
func (o *outbox) sendKeyLocked(sh *outboxShard, d *deferred, put func(*call)) {
	o.removeLocked(sh, d)
	for left := d.charge.Hits; left != 0; {
		charge := d.charge
		charge.Hits = max(min(left, algorithms.MaxHits), -algorithms.MaxHits)
		left -= charge.Hits
		c := newCall()
		c.set(correct, o.store.locate(&charge, d.at), d.at, []store.Charge{charge})
		c.corrections = append(c.corrections, &correction{at: int64(d.at) / int64(Granularity), left: noValue})
		o.send(c, put, d.until)
	}
}

func (o *outbox) removeLocked(sh *outboxShard, d *deferred) {
	delete(sh.keys, string(d.charge.Key))
	o.keys.Add(-1)
}

// send sends a call through put, and again until a time through the call's own queue. The call belongs to the outbox then.
func (o *outbox) send(c *call, put func(*call), until time.Time) {
	o.mu.Lock()
	full := o.calls >= outboxCalls
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

// idle reports whether no call of the outbox is under way.
func (o *outbox) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls == 0
}

// ended handles the end of a call.
func (o *outbox) ended(c *call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.err != nil && c.refused {
		o.failed = true
		c.drop(o.resets)
		if len(c.charges) > 0 && !o.closed && time.Now().Before(c.resendUntil) {
			o.again = append(o.again, c)
			return
		}
	}
	o.calls--
	if c.err != nil {
		o.lose(c.size())
		return
	}
	o.wait = 0
	o.store.metrics.deferredHits.Add(uint64(c.size()))
}

func (o *outbox) lose(hits int64) { o.store.metrics.lostHits.Add(uint64(max(hits, -hits))) }

// run sends at each tick until ctx ends, then once more.
func (o *outbox) run(ctx context.Context) {
	tick := time.NewTicker(outboxTick)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			if o.due(now) {
				o.sendAll()
			}
		case <-ctx.Done():
			o.mu.Lock()
			o.closed = true
			o.mu.Unlock()
			o.sendAll()
			return
		}
	}
}

// due reports whether a tick should send. After a refused call the outbox waits.
func (o *outbox) due(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed {
		o.failed = false
		o.wait = min(max(2*o.wait, outboxTick), outboxMaxWait)
		o.next = now.Add(o.wait)
	}
	return !now.Before(o.next)
}

func (o *outbox) sendAll() {
	o.sendAgain()
	for i := range o.shards {
		sh := &o.shards[i]
		sh.mu.Lock()
		for _, d := range sh.keys {
			o.sendKeyLocked(sh, d, putCall)
		}
		sh.mu.Unlock()
	}
}

// sendAgain puts the refused calls into their queues. The calls change place under mu, so that beginReset and the peeks of
// outboxAnswered do not miss a call in between. Close closes the queues after the end of run, so put does not call ended, which locks mu.
func (o *outbox) sendAgain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.again {
		c.renew()
		putCall(c)
	}
	o.again = nil
}

// beginReset drops all about the keys of charges that waits here. Until endReset, ended drops refused charges of these
// keys: a resend could charge a key after the reset.
func (o *outbox) beginReset(charges []store.Charge) {
	o.mu.Lock()
	for i := range charges {
		key := string(charges[i].Key)
		if o.resets[key] == nil {
			o.resets[key] = new(resetting)
		}
		o.resets[key].resets++
	}
	before := len(o.again)
	o.again = slices.DeleteFunc(o.again, func(c *call) bool {
		c.drop(o.resets)
		return len(c.charges) == 0
	})
	o.calls -= before - len(o.again)
	o.mu.Unlock()
	o.forget(charges)
}

// endReset ends a beginReset with the same charges, and drops hits that came in between. If the reset failed, the dropped hits of its
// keys are lost.
func (o *outbox) endReset(charges []store.Charge, failed bool) {
	o.forget(charges)
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range charges {
		key := string(charges[i].Key)
		r := o.resets[key]
		if failed {
			o.lose(r.dropped)
		}
		r.dropped = 0
		if r.resets--; r.resets == 0 {
			delete(o.resets, key)
		}
	}
}

// forget drops the deferred hits of the keys of charges, which are being reset.
func (o *outbox) forget(charges []store.Charge) {
	for i := range charges {
		sh := o.shard(charges[i].Key)
		sh.mu.Lock()
		if d := sh.keys[string(charges[i].Key)]; d != nil {
			o.removeLocked(sh, d)
			o.mu.Lock()
			o.resets[string(charges[i].Key)].drop(d.charge.Hits)
			o.mu.Unlock()
		}
		sh.mu.Unlock()
	}
}

func (r *resetting) drop(hits int64) { r.dropped += max(hits, -hits) }
