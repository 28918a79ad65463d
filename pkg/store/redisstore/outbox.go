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
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// outbox sends calls for which no caller waits: tellings (see package owed), and corrections of
// reservations. The latter come from requests that are over.
//
// A tick sends a bounded number of keys. While a server is away or answers nothing, no tick sends
// to it: one question at a time finds out when it is back. After a failed call the outbox backs
// off.
//
// A correction that Redis has certainly not applied is sent again for outboxFor. A correction
// without an answer is lost. Lost hits are counted. At Close the outbox sends for outboxClose at
// most, and the rest is lost.
type outbox struct {
	*homes

	keys    atomic.Int64 // entries of hits in the books
	holders atomic.Int64 // the same of holders
	shards  [outboxShards]shard

	sending sync.Mutex // guards the fields below; locked before a shard's mu
	first   int        // shard of the next tick
	asked   time.Time  // when the last question was sent

	mu      sync.Mutex            // guards the fields below; locked after a shard's mu, before a queue's
	calls   int                   // under way, or in again
	again   []*correction         // to send again
	failed  bool                  // a call has failed since the last tick
	backoff time.Duration         // after failed calls
	next    time.Time             // of the next sending
	resets  map[string]*resetting // keys that are being reset

	resetCount atomic.Uint64 // resets that have begun

	closing atomic.Bool   // Close has begun: no correction is sent again
	settled chan struct{} // holds a value after the end of the last call under way
}

// shard has the owed hits and holders of some keys.
type shard struct {
	mu            sync.Mutex // guards the fields below
	book          owed.Book
	keys, holders int // of the book, as counted
}

const (
	outboxShards      = 64
	outboxTick        = 100 * time.Millisecond // a moment in which hits of one key add up
	outboxPerTick     = 2000                   // calls of a tick
	outboxMaxWait     = time.Second            // longest backoff
	outboxAsks        = longestLife            // between two questions to servers that answer nothing
	outboxFor         = 5 * time.Second        // from the failure of a request over several slots
	outboxClose       = 2 * time.Second
	outboxCalls       = 10_000
	outboxHoldsBefore = 512 // holders of a key that are told ahead of a request
)

// resetting is a key with resets under way.
type resetting struct {
	resets  int
	dropped uint64 // hits, each without its sign
}

func newOutbox(h *homes) *outbox {
	return &outbox{homes: h, resets: make(map[string]*resetting), settled: make(chan struct{}, 1)}
}

// Later implements [store.Remote]. The instant is one of Redis's
// clock, as in Charge.Left, or from Now. A bucket gets back negative hits less its gain since that
// instant.
func (o *outbox) Later(c *store.Charge, at algorithms.Instant) {
	counter := o.isCounter(c)
	if counter {
		at -= o.nowOf(false) - o.here() // counters have the clock of this process
	}
	o.in(c.Key, func(b *owed.Book) { b.Add(c, at-at%algorithms.Instant(Granularity), counter) })
}

// HoldLater implements [store.Remote]. A begin that waits goes with its end: Redis then charges the
// true cost of a holder that it does not know.
func (o *outbox) HoldLater(c *store.Charge, at algorithms.Instant) {
	if c.Hold == nil || c.Hold.Phase == algorithms.HoldBegin {
		return
	}
	o.in(c.Key, func(b *owed.Book) { o.addEvent(b, c, at) })
}

func (o *outbox) addEvent(b *owed.Book, c *store.Charge, at algorithms.Instant) {
	at -= at % algorithms.Instant(Granularity)
	here := algorithms.Instant(0)
	if o.isCounter(c) {
		here = at - (o.nowOf(false) - o.here())
	}
	b.AddEvent(c, at, here)
}

// in does something with the book of a key.
func (o *outbox) in(key []byte, do func(b *owed.Book)) {
	sh := o.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	do(&sh.book)
	o.countLocked(sh)
}

func (o *outbox) shard(key []byte) *shard {
	return &o.shards[maphash.Bytes(o.seed, key)%outboxShards]
}

// countLocked adds the counts of a book to the metrics, and returns the dropped hits. The mu of
// the shard must be held.
func (o *outbox) countLocked(sh *shard) (dropped uint64) {
	keys, holders := sh.book.Size()
	o.keys.Add(int64(keys - sh.keys))
	o.holders.Add(int64(holders - sh.holders))
	sh.keys, sh.holders = keys, holders
	c, m := sh.book.Drain(), &o.metrics
	if c == (owed.Counts{}) {
		return 0
	}
	m.lostHits.Add(c.Lost)
	m.unknownHits.Add(c.Unknown)
	m.expiredHits.Add(c.Expired)
	m.toldHolds.Add(c.ToldEvents)
	m.lostHolds.Add(c.LostEvents)
	m.expiredHolds.Add(c.ExpiredEvents)
	return c.Dropped
}

func (o *outbox) lose(hits int64) { o.metrics.lostHits.Add(uint64(max(hits, -hits))) }

func (o *outbox) clocks() owed.Clocks { return owed.Clocks{Redis: o.nowOf(false), Here: o.here()} }

// owedOf returns the hits of a key that matter at an instant by the key's clock. The answer of
// Redis at that instant does not have them.
func (o *outbox) owedOf(c *store.Charge, now algorithms.Instant) (hits int64) {
	if o.keys.Load() > 0 {
		o.in(c.Key, func(b *owed.Book) { hits = b.Owed(c, now) })
	}
	return hits
}

// sendBefore sends the owed hits and holders of the keys of charges, ahead of a request for the
// same keys. Hits to give back wait while Redis answers nothing, as they could be lost; without
// them the request finds less room.
func (o *outbox) sendBefore(charges []store.Charge) {
	if o.keys.Load() == 0 && o.holders.Load() == 0 {
		return
	}
	looks := reaches{homes: o.homes}
	for i := range charges {
		c := &charges[i]
		o.in(c.Key, func(b *owed.Book) {
			q, holders := o.queueBefore(charges, i), 0
			for _, e := range b.Of(c.Key) {
				if b.Expire(e, o.clocks()) || !e.Waits() {
					continue
				}
				if _, is := e.(*owed.Holder); is {
					if holders++; holders > outboxHoldsBefore {
						continue
					}
				}
				reach := looks.of(e.Charge(), e.At())
				if reach == nobody || reach == silent && e.Returns() || o.full() {
					continue
				}
				o.sendLocked(b, e, func(where location, c *call) { cmp.Or(q, where.queue(c)).putBefore(c) })
			}
			o.followLocked(b, c)
		})
	}
}

// followLocked puts the end that a request has behind the events of its holder that are on the
// way or wait. A begin without an answer is sent again. If the end of the request has come before,
// only a second end ends the holder.
func (o *outbox) followLocked(b *owed.Book, c *store.Charge) {
	ends := c.Hold != nil && c.Hold.Phase != algorithms.HoldBegin && c.Hold.Phase != algorithms.HoldBegun
	if ends && b.Knows(c) {
		o.addEvent(b, c, o.nowOf(false))
	}
}

// sendLocked sends the waiting part of an entry through put, which puts a call into a queue.
func (o *outbox) sendLocked(b *owed.Book, e owed.Entry, put func(location, *call)) {
	what := b.Tell(e)
	t := &telling{outbox: o, what: what}
	where := o.locate(what.Charge(), what.Of)
	t.set(correct, where.slot, what.Of, what.Charges)
	for i, at := range what.Instant {
		if what.Holder {
			t.holds[i].since = int64(at) / int64(Granularity)
			t.fixes = append(t.fixes, nil)
		} else {
			t.fixes = append(t.fixes, &fix{at: int64(at) / int64(Granularity), left: noValue})
		}
	}
	t.owner, t.fences = t, true
	o.mu.Lock()
	o.calls++
	o.mu.Unlock()
	put(where, &t.call)
}

// full reports whether too many calls are under way.
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

// endLocked notes the end of a call. The mu of the outbox must be held.
func (o *outbox) endLocked(err error) {
	if err == nil {
		o.backoff = 0
	} else {
		o.failed = true
	}
	if o.calls--; o.calls == 0 {
		select {
		case o.settled <- struct{}{}:
		default:
		}
	}
}

// telling is a call with owed hits or holders.
type telling struct {
	call

	outbox *outbox
	what   *owed.Telling
}

// landed implements owner.
func (t *telling) landed(int32) {
	o, outcome := t.outbox, owed.Applied
	switch {
	case t.err == nil:
		o.metrics.deferredHits.Add(uint64(t.size()))
	case t.refused:
		outcome = owed.Refused
	default:
		outcome = owed.Unknown
	}
	key := t.what.Charge().Key
	sh := o.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.resets[string(key)]
	sh.book.Told(t.what, outcome, r != nil)
	if dropped := o.countLocked(sh); r != nil {
		r.dropped += dropped
	}
	o.endLocked(t.err)
}

// correction is a call that changes a reservation, and for which no caller waits.
type correction struct {
	call

	outbox *outbox
	where  location
	again  time.Time // until which it is sent again
}

// correct sends a copy of a call that no caller waits for any more, and that may still lie in a
// queue.
func (o *outbox) correct(c *call, where location) {
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
	other := &correction{outbox: o, where: where, again: time.Now().Add(outboxFor)}
	other.set(c.action, c.slot, c.at, c.charges)
	other.fixes = append(other.fixes, c.fixes...)
	for i := range other.holds {
		other.holds[i].since = c.holds[i].since
	}
	other.owner, other.fences = other, true
	where.put(&other.call)
}

// landed implements owner.
func (c *correction) landed(int32) {
	o := c.outbox
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case c.err == nil:
		o.metrics.deferredHits.Add(uint64(c.size()))
	case c.refused && c.waitsLocked():
		o.failed = true
		o.again = append(o.again, c)
		return
	default:
		o.lose(c.size())
	}
	o.endLocked(c.err)
}

// waitsLocked reports whether a refused correction is to be sent again. The mu of the outbox must
// be held.
func (c *correction) waitsLocked() bool {
	c.dropLocked()
	return len(c.charges) > 0 && !c.outbox.closing.Load() && time.Now().Before(c.again)
}

// dropLocked removes the charges of keys that are being reset. The mu of the outbox must be held.
func (c *correction) dropLocked() {
	charges, fixes, holds := c.charges, c.fixes, c.holds
	c.charges, c.fixes, c.holds = c.charges[:0], c.fixes[:0], c.holds[:0]
	for i := range charges {
		if r := c.outbox.resets[string(charges[i].Key)]; r != nil {
			if len(holds) == 0 || holds[i].Phase != release {
				r.dropped += uint64(max(charges[i].Hits, -charges[i].Hits))
			}
			continue
		}
		c.charges, c.fixes = append(c.charges, charges[i]), append(c.fixes, fixes[i])
		if len(holds) > 0 {
			c.holds = append(c.holds, holds[i])
		}
	}
	c.pointHolds()
}

// sendAgain puts the refused corrections into their queues. The calls change place under mu, so
// that beginReset and the peeks of outboxAnswered do not miss a call in between. Close closes the
// queues after the end of run, so put does not call landed, which locks mu.
func (o *outbox) sendAgain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.again {
		c.renew()
		c.where.put(&c.call)
	}
	o.again = nil
}

// beginReset drops all about the key of a charge that waits here. Until endReset the outbox drops
// refused charges of the key: a resend could charge the key after the reset.
func (o *outbox) beginReset(key []byte) {
	o.resetCount.Add(1)
	o.mu.Lock()
	if o.resets[string(key)] == nil {
		o.resets[string(key)] = new(resetting)
	}
	o.resets[string(key)].resets++
	before := len(o.again)
	o.again = slices.DeleteFunc(o.again, func(c *correction) bool {
		c.dropLocked()
		return len(c.charges) == 0
	})
	o.calls -= before - len(o.again)
	o.mu.Unlock()
	o.forget(key)
}

// endReset ends a beginReset with the same key, and drops hits that came in between. If the reset
// failed, the dropped hits of the key are lost.
func (o *outbox) endReset(key []byte, failed bool) {
	o.forget(key)
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.resets[string(key)]
	if failed {
		o.metrics.lostHits.Add(r.dropped)
	}
	r.dropped = 0
	if r.resets--; r.resets == 0 {
		delete(o.resets, string(key))
	}
}

// forget drops the waiting hits of a key that is being reset.
func (o *outbox) forget(key []byte) {
	sh := o.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.book.Forget(key)
	dropped := o.countLocked(sh)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.resets[string(key)].dropped += dropped
}

// run sends at each tick until ctx ends, and then all that is left.
func (o *outbox) run(ctx context.Context) {
	tick := time.NewTicker(outboxTick)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			if o.due(now) {
				o.sendAgain()
				o.sendSome(now, outboxPerTick, false)
			}
		case <-ctx.Done():
			o.finish()
			return
		}
	}
}

// due reports whether a tick should send. After a failed call the outbox waits.
func (o *outbox) due(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed {
		o.failed = false
		o.backoff = min(max(2*o.backoff, outboxTick), outboxMaxWait)
		o.next = now.Add(o.backoff)
	}
	return !now.Before(o.next)
}

// sendSome looks at waiting entries, sends at most that many calls, and returns the numbers of
// looks and calls. The last time, hits also go to a server that answers nothing.
func (o *outbox) sendSome(now time.Time, most int, last bool) (seen, sent int) {
	if o.keys.Load() == 0 && o.holders.Load() == 0 {
		return 0, 0
	}
	o.sending.Lock()
	defer o.sending.Unlock()
	looks, clocks := reaches{homes: o.homes}, o.clocks()
	// Nothing can be sent: no server has a connection, or all are silent and one was asked.
	rests := !last && (o.noneConnected() || o.Health(nil).Silent > 0 && now.Sub(o.asked) < outboxAsks)
	for range outboxShards {
		sh := &o.shards[o.first]
		o.first = (o.first + 1) % outboxShards
		sh.mu.Lock()
		if !rests || !sh.book.Rests(now) {
			seen += sh.book.Look(now, clocks, func(e owed.Entry) {
				if sent < most && e.Waits() && o.sendOrAskLocked(sh, e, looks.of(e.Charge(), e.At()), now, last) {
					sent++
				}
			})
			o.countLocked(sh)
		}
		sh.mu.Unlock()
		if sent == most || seen >= 2*most && !last { // a look takes time, too
			break
		}
	}
	return seen, sent
}

// sendOrAskLocked sends an entry if its server can be reached, and reports whether it has.
func (o *outbox) sendOrAskLocked(sh *shard, e owed.Entry, reach reach, now time.Time, last bool) (sent bool) {
	switch {
	case reach == nobody:
	case reach == silent && !last:
		o.askLocked(e.Charge(), e.At(), now)
	case !o.full():
		o.sendLocked(&sh.book, e, location.put)
		return true
	}
	return false
}

// askLocked asks a server that answers nothing for the key of a charge that waits. The answer is of
// no use but as a sign of life.
func (o *outbox) askLocked(of *store.Charge, at algorithms.Instant, now time.Time) {
	if now.Sub(o.asked) < outboxAsks {
		return
	}
	o.asked = now
	charge, where, c := *of, o.locate(of, at), new(call)
	charge.Hits = 0
	c.set(peek, where.slot, at, []store.Charge{charge})
	where.put(c)
}

// finish sends all that waits, for a bounded time and until a call fails, and loses the rest.
func (o *outbox) finish() {
	o.closing.Store(true)
	o.sendAgain()
	timer := time.NewTimer(outboxClose)
	defer timer.Stop()
	o.mu.Lock()
	o.failed = false
	o.mu.Unlock()
	for over := false; !over; {
		_, sent := o.sendSome(time.Now(), outboxPerTick, true)
		for !over && !o.idle() {
			select {
			case <-o.settled:
			case <-timer.C:
				over = true
			}
		}
		o.mu.Lock()
		over = over || sent == 0 || o.failed
		o.mu.Unlock()
	}
	for i := range o.shards {
		sh := &o.shards[i]
		sh.mu.Lock()
		sh.book.Close()
		o.countLocked(sh)
		sh.mu.Unlock()
	}
}
