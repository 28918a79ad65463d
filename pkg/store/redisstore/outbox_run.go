package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

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
		o.wait = min(max(2*o.wait, outboxTick), outboxMaxWait)
		o.next = now.Add(o.wait)
	}
	return !now.Before(o.next)
}

// round is one look at waiting hits, which sends some of them.
type round struct {
	outbox *outbox
	now    time.Time
	last   bool // hits also go to a server that answers nothing
	reach  reaches
	rests  bool                  // nothing can be sent: no server has a connection, or all are silent and one was asked
	clocks [2]algorithms.Instant // of Redis, and of counters
	seen   int                   // deferred
	sent   int                   // calls
}

// sendSome sends at most that many calls of waiting hits, and reports how many. The last time, hits
// also go to a server that answers nothing.
func (o *outbox) sendSome(now time.Time, most int, last bool) (sent int) {
	return o.round(now, most, last).sent
}

// round is sendSome, and returns the round.
func (o *outbox) round(now time.Time, most int, last bool) round {
	if o.count.Load() == 0 && o.holds.Load() == 0 {
		return round{}
	}
	o.sending.Lock()
	defer o.sending.Unlock()
	r := round{
		outbox: o, now: now, last: last, reach: reaches{store: o.store}, clocks: [...]algorithms.Instant{o.nowOf(false), o.nowOf(true)},
		rests: !last && (o.store.noneConnected() || o.store.Health(nil).Silent > 0 && now.Sub(o.asked) < outboxAsks),
	}
	for range outboxShards {
		sh := &o.shards[o.first]
		o.first = (o.first + 1) % outboxShards
		sh.mu.Lock()
		if r.restsLocked(sh) {
			sh.mu.Unlock()
			continue
		}
		sh.ends = now.Add(longestRest)
		for _, all := range sh.keys {
			for i := 0; i < len(all); {
				d, n := all[i], sh.count
				if r.lookLocked(sh, d, r.sent < most); sh.count < n { // all has moved up by one
					all = all[:len(all)-1]
					continue
				}
				sh.endsBy(now.Add(ends(d.charge.Limit, d.at).Add(deferredOverdue).Sub(r.clock(d))))
				i++
			}
		}
		for _, holders := range sh.holds {
			for _, h := range holders {
				r.lookHoldLocked(sh, h, r.sent < most)
			}
		}
		sh.mu.Unlock()
		if r.sent == most || r.seen >= 2*most && !last { // a look takes time, too
			break
		}
	}
	return r
}

// longestRest is how long a shard rests at most: clocks step.
const longestRest = 10 * time.Second

// restsLocked reports whether a look at a shard would change nothing: nothing can be sent, and all
// hits of the shard still matter. The shard's mu must be held.
func (r *round) restsLocked(sh *outboxShard) bool {
	return r.rests && len(sh.holds) == 0 && r.now.Before(sh.ends)
}

// clock returns the instant by the clock of a deferred.
func (r *round) clock(d *deferred) algorithms.Instant {
	if d.counter {
		return r.clocks[1]
	}
	return r.clocks[0]
}

// lookLocked drops waiting hits that do not matter any more. With send it sends the others if their
// server can be reached. lookLocked reports whether the deferred is gone. The shard's mu must be
// held.
func (r *round) lookLocked(sh *outboxShard, d *deferred, send bool) (gone bool) {
	o := r.outbox
	r.seen++
	if o.expireLocked(sh, d, r.clock(d)) {
		return true
	}
	if d.waiting() == 0 || !send {
		return false
	}
	switch reach := r.reach.of(&d.charge, d.at); {
	case reach == nobody:
	case reach == silent && !r.last:
		o.askLocked(&d.charge, d.at, r.now)
	case !o.full():
		r.sent++
		return o.sendLocked(sh, d, putCall)
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
	charge := *of
	charge.Hits = 0
	c := newCall()
	c.set(peek, o.store.locate(&charge, at), at, []store.Charge{charge})
	putCall(c)
}

// finish sends all waiting hits, for a bounded time and until a call fails, and loses the rest.
func (o *outbox) finish() {
	o.closing.Store(true)
	o.sendAgain()
	timer := time.NewTimer(outboxClose)
	defer timer.Stop()
	o.mu.Lock()
	o.failed = false
	o.mu.Unlock()
	for over := false; !over; {
		sent := o.sendSome(time.Now(), outboxPerTick, true)
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
	o.closed.Store(true)
	for i := range o.shards {
		sh := &o.shards[i]
		sh.mu.Lock()
		for _, all := range sh.keys {
			for _, d := range slices.Clone(all) {
				o.lose(d.waiting())
				o.removeLocked(sh, d)
			}
		}
		for key := range sh.holds {
			o.forgetHoldsLocked(sh, key, true)
		}
		sh.mu.Unlock()
	}
}

// sendAgain puts the refused corrections into their queues. The calls change place under mu, so
// that beginReset and the peeks of outboxAnswered do not miss a call in between. Close closes the
// queues after the end of run, so put does not call ended, which locks mu.
func (o *outbox) sendAgain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.again {
		c.renew()
		putCall(c)
	}
	o.again = nil
}
