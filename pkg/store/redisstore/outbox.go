package redisstore

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
	"github.com/weirproxy/weir/pkg/store/redisstore/owed"
)

// outbox sends calls for which no caller waits: tellings (see package owed).
//
// A tick sends a bounded number of keys. While a server is away or answers nothing, no tick sends
// to it: one question at a time finds out when it is back. After a failed call the outbox backs
// off. Lost hits are counted. At Close the outbox sends for outboxClose at most, and the rest is
// lost, or kept: see CloseKeeping.
type outbox struct {
	*servers

	keys    atomic.Int64 // entries of hits in the books
	holders atomic.Int64 // the same of holders
	shards  [outboxShards]shard

	sending sync.Mutex // guards the fields below; locked before a shard's mu
	first   int        // shard of the next tick
	asked   time.Time  // when the last question was sent
	waiting [][]byte   // keys of the shard that was looked at last

	mu      sync.Mutex    // guards the fields below; locked after a shard's mu, before a queue's
	calls   int           // under way
	failed  bool          // a call has failed since the last tick
	backoff time.Duration // after failed calls
	next    time.Time     // of the next sending
	left    [][]byte      // records of CloseKeeping
	keeps   int           // bytes of room; 0: the rest at the end is lost

	keepsEach int // bytes of one record at most

	resetCount atomic.Uint64 // resets that have begun
	settled    chan struct{} // holds a value after the end of the last call under way
	back       chan struct{} // holds a value after Redis was found back
}

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
	outboxClose       = 2 * time.Second
	outboxCalls       = 10_000
	outboxHoldsOfAKey = 512 // sent at once
)

// Later implements [store.Remote]. The instant is one of Redis's
// clock, as in Charge.Left, or from Now. A bucket gets back negative hits less its gain since that
// instant.
func (o *outbox) Later(c *store.Charge, at algorithms.Instant, part store.Part) {
	counter := o.isCounter(c)
	if counter {
		at -= o.nowOf(false) - o.here() // counters have the clock of this process
	}
	o.in(c.Key, func(b *owed.Book) { b.Add(c, owed.Late{At: whole(at), Here: counter, Part: part}) })
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
	at = whole(at)
	here := algorithms.Instant(0)
	if o.isCounter(c) {
		here = at - (o.nowOf(false) - o.here())
	}
	b.AddEvent(c, at, here)
}

func (o *outbox) in(key []byte, do func(b *owed.Book)) {
	sh := o.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	do(&sh.book)
	o.countLocked(sh)
}

func (o *outbox) shard(key []byte) *shard {
	return &o.shards[store.HashOf(key)%outboxShards]
}

// countLocked adds the counts of a book to the metrics. The mu of the shard must be held.
func (o *outbox) countLocked(sh *shard) {
	keys, holders := sh.book.Size()
	o.keys.Add(int64(keys - sh.keys))
	o.holders.Add(int64(holders - sh.holders))
	sh.keys, sh.holders = keys, holders
	c, m := sh.book.Drain(), &o.metrics
	if c == (owed.Counts{}) {
		return
	}
	m.lostHits.Add(c.Lost)
	m.unknownHits.Add(c.Unknown)
	m.expiredHits.Add(c.Expired)
	m.toldHolds.Add(c.ToldEvents)
	m.lostHolds.Add(c.LostEvents)
	m.expiredHolds.Add(c.ExpiredEvents)
}

// lose counts hits of which Redis may not have been told. Hits to charge are lost, and hits to give
// back may stay charged.
func (o *outbox) lose(hits int64) {
	if hits < 0 {
		o.metrics.unknownHits.Add(uint64(-hits))
	} else {
		o.metrics.lostHits.Add(uint64(hits))
	}
}

// owesOfOutage reports whether hits or holders of before the return of Redis wait. While the others
// tell theirs, this process goes on to decide without Redis, so later hits wait nearly always.
func (o *outbox) owesOfOutage() bool {
	if o.keys.Load()+o.holders.Load() == 0 {
		return false
	}
	back := o.regained.Load()
	if back == nil {
		return true
	}
	for i := range o.shards {
		sh := &o.shards[i]
		sh.mu.Lock()
		owes := sh.book.OwesBefore(*back)
		sh.mu.Unlock()
		if owes {
			return true
		}
	}
	return false
}

func (o *outbox) clocks() owed.Clocks { return owed.Clocks{Redis: o.nowOf(false), Here: o.here()} }

// owedOf returns the hits of a key that matter at an instant by the key's clock. The answer of
// Redis at that instant does not have them.
func (o *outbox) owedOf(c *store.Charge, now algorithms.Instant) (hits int64) {
	if o.keys.Load()+o.holders.Load() > 0 {
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
	for i := range charges {
		c := &charges[i]
		o.in(c.Key, func(b *owed.Book) {
			o.sendKeyLocked(b, c.Key, true, func(e owed.Entry) bool {
				reach := o.reach(e.Charge(), e.At())
				return reach == answering || reach == silent && !e.Returns()
			})
			o.followLocked(b, c)
		})
	}
}

// sendKeyLocked sends the entries of a key for which a condition holds, at most outboxHoldsOfAKey
// holders, and returns the number of calls.
func (o *outbox) sendKeyLocked(b *owed.Book, key []byte, followed bool, holds func(owed.Entry) bool) (sent int) {
	holders := 0
	for _, e := range b.Of(key, o.clocks()) {
		if !holds(e) || o.full() {
			continue
		}
		if _, is := e.(*owed.Holder); is {
			if holders++; holders > outboxHoldsOfAKey {
				continue
			}
		}
		o.sendLocked(b, e, followed)
		sent++
	}
	return sent
}

// followLocked puts the end that a request has behind the events of its holder that are on the
// way or wait. A begin without an answer is sent again. If the end of the request has come before,
// only a second end ends the holder.
func (o *outbox) followLocked(b *owed.Book, c *store.Charge) {
	ends := c.IsEnd() && c.Hold.Phase != algorithms.HoldBegun
	if ends && b.Knows(c) {
		o.addEvent(b, c, o.nowOf(false))
	}
}

// sendLocked sends the waiting part of an entry. followed says that a request follows at once.
func (o *outbox) sendLocked(b *owed.Book, e owed.Entry, followed bool) {
	what := b.Tell(e, o.clocks())
	if what == nil {
		return
	}
	t := o.telling(what)
	t.where.server.queue.put(&t.call, followed)
}

func (o *outbox) telling(what *owed.Telling) *telling {
	t := &telling{outbox: o, what: what}
	t.where = o.locate(what.Charge(), what.Of)
	t.set(correct, t.where.slot, what.Of, what.Charges)
	for i, at := range what.Instant {
		if what.Holder {
			t.holds[i].since = int64(at) / int64(Granularity)
			t.fixes = append(t.fixes, nil)
		} else {
			t.fixes = append(t.fixes, &fix{what.Fix, int64(at) / int64(Granularity)})
		}
	}
	t.owner, t.fences = t, true
	o.mu.Lock()
	o.calls++
	o.mu.Unlock()
	return t
}

func (o *outbox) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls >= outboxCalls
}

func (o *outbox) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls == 0
}

func (o *outbox) end(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
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

type telling struct {
	call

	outbox *outbox
	what   *owed.Telling
	where  location
}

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
	o.in(t.what.Charge().Key, func(b *owed.Book) { b.Told(t.what, outcome, o.clocks()) })
	o.end(t.err)
}

// beginReset drops all about a key that waits here. Until endReset the outbox drops refused charges
// of the key: a resend could charge the key after the reset.
func (o *outbox) beginReset(key []byte) {
	o.resetCount.Add(1)
	o.in(key, func(b *owed.Book) { b.BeginReset(key) })
}

// endReset ends a beginReset with the same key.
func (o *outbox) endReset(key []byte, failed bool) {
	o.in(key, func(b *owed.Book) { b.EndReset(key, failed) })
}

// returned has all that waits be sent at once, as Redis is back. The sooner all processes have told
// their hits, the less a bucket gains in Redis and in hits that are owed.
func (o *outbox) returned() {
	o.mu.Lock()
	o.failed, o.backoff, o.next = false, 0, time.Time{}
	o.mu.Unlock()
	select {
	case o.back <- struct{}{}:
	default:
	}
}

// run sends at each tick until ctx ends, and then all that is left.
func (o *outbox) run(ctx context.Context) {
	tick := time.NewTicker(outboxTick)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			if o.due(now) {
				o.sendSome(now, outboxPerTick, false)
			}
		case <-o.back:
			o.sendSome(time.Now(), outboxPerTick, false)
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

// sendSome looks at waiting entries, sends about that many calls, and returns the numbers of looks
// and calls. The last time, hits also go to a server that answers nothing. A shard is locked for a
// look, and then for one key at a time.
func (o *outbox) sendSome(now time.Time, most int, last bool) (seen, sent int) {
	if o.keys.Load() == 0 && o.holders.Load() == 0 {
		return 0, 0
	}
	o.sending.Lock()
	defer o.sending.Unlock()
	clocks := o.clocks()
	// Nothing can be sent: no server has a connection, or all are silent and one was asked.
	rests := !last && (!o.connected() || o.answerNothing() && now.Sub(o.asked) < outboxAsks)
	for range outboxShards {
		sh := &o.shards[o.first]
		o.first = (o.first + 1) % outboxShards
		seen += o.look(sh, now, clocks, rests)
		for _, key := range o.waiting {
			if sent >= most {
				break
			}
			o.in(key, func(b *owed.Book) {
				sent += o.sendKeyLocked(b, key, false, func(e owed.Entry) bool { return o.mayGoLocked(e, now, last) })
			})
		}
		if sent >= most || seen >= 2*most && !last { // a look takes time, too
			break
		}
	}
	return seen, sent
}

// look finds the keys of a shard that wait, unless the outbox rests, and returns the number of
// entries that it has seen.
func (o *outbox) look(sh *shard, now time.Time, clocks owed.Clocks, rests bool) (seen int) {
	o.waiting = o.waiting[:0]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if rests && sh.book.Rests(now) {
		return 0
	}
	seen = sh.book.Look(now, clocks, func(e owed.Entry) {
		key, n := e.Charge().Key, len(o.waiting)
		if !rests && (n == 0 || !bytes.Equal(o.waiting[n-1], key)) { // the entries of a key stand together
			o.waiting = append(o.waiting, key)
		}
	})
	o.countLocked(sh)
	return seen
}

// mayGoLocked reports whether the server of an entry can be reached. A server that answers nothing
// is asked.
func (o *outbox) mayGoLocked(e owed.Entry, now time.Time, last bool) bool {
	reach := o.reach(e.Charge(), e.At())
	if reach == silent && !last {
		o.askLocked(e.Charge(), e.At(), now)
		return false
	}
	return reach != nobody
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
	where.server.queue.put(c, false)
}

// finish sends all that waits, for a bounded time and until a call fails, and loses or keeps the
// rest. A silent server may apply a call after the end of this process. So finish sends nothing
// there if it can keep the rest.
func (o *outbox) finish() {
	timer := time.NewTimer(outboxClose)
	defer timer.Stop()
	o.mu.Lock()
	o.failed = false
	keeps := o.keeps > 0
	o.mu.Unlock()
	for over := false; !over; {
		_, sent := o.sendSome(time.Now(), outboxPerTick, !keeps)
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
		if keeps {
			o.leaveLocked(sh)
		}
		sh.book.Close()
		o.countLocked(sh)
		sh.mu.Unlock()
	}
}
