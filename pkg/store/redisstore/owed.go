package redisstore

import (
	"context"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// What requests that were denied from memory have to count is added up here for each key, and sent to Redis every payInterval
// and before the next question about the key.
const payInterval = 100 * time.Millisecond

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
		d.payLocked(&denial{key: string(c.Key), limit: c.Limit, owed: c.Hits, owedFor: at}, nil)
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

// pay tells Redis of the hits counted here for the keys of charges, before it is asked about them.
func (d *denials) pay(charges []store.Charge) {
	if d.keys.Load() == 0 {
		return
	}
	for i := range charges {
		sh := d.shard(charges[i].Key)
		sh.mu.Lock()
		if e := sh.known[string(charges[i].Key)]; e != nil && e.owed > 0 {
			d.payLocked(e, d.store.laneBefore(charges, i))
		}
		sh.mu.Unlock()
	}
}

// payLocked has what is owed for a key sent, in a lane where it comes before the calls that follow; nil means any.
func (d *denials) payLocked(e *denial, l *lane) {
	for e.owed > 0 {
		hits := min(e.owed, algorithms.MaxHits)
		e.owed -= hits
		charge := store.Charge{Key: []byte(e.key), Limit: e.limit, Hits: hits, CountRejected: true, Mode: store.Shadow}
		c := newCall()
		c.set(correct, d.store.locate(&charge, e.owedFor), e.owedFor, []store.Charge{charge})
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
			l = c.lane()
		}
		if !l.put(c) {
			c.then(ErrUnavailable)
		}
	}
}

// run pays what is owed, and sweeps, until ctx ends; then it pays once more.
func (d *denials) run(ctx context.Context) {
	if d.maxAge == 0 {
		return
	}
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
