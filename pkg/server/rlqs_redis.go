package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/internal/loglimit"
	"github.com/weirproxy/weir/internal/metrics"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/limiter"
	"github.com/weirproxy/weir/pkg/quota"
)

// Scripts runs scripts in Redis. Safe for concurrent use.
type Scripts interface {
	// Run runs a script and returns the texts of its answer. All keys lie in one slot of a cluster.
	Run(ctx context.Context, script string, keys, args []string) ([]string, error)
}

// redisLimits divides each limit among the processes that share a Redis. Each limit has a
// record there, in one of quotaSlots slots of a cluster. From the first stream on, each slot has a
// goroutine that calls quota.PartsScript: twice a second, and at once for a new limit.
type redisLimits struct {
	of    *quotas
	redis Scripts
	name  string // of this process: 8 bytes
	slots [quotaSlots]*quotaSlot
	start func() // starts the goroutines, once
	ctx   context.Context
	stop  func() // ends them

	asked  chan request // of RLS, without a part
	taking atomic.Bool  // take is under way

	// Guarded by quotas.mu.
	worked time.Duration // when quotas last had time
	wall   time.Time     // the same by the wall clock, which goes on while the machine sleeps
	calls  [2]uint64     // with an answer, and without
	warned loglimit.Limiter
}

const (
	quotaSlots     = 8
	partsWarnEvery = time.Minute
	maxAsked       = 64 // requests without a part that wait for take
)

// request is a request of RLS.
type request struct {
	domain  string
	entries []limiter.Entry
}

// redisPart is the part of a limit that this process holds.
type redisPart struct {
	*quota.Holding // of the division

	slot  *quotaSlot
	asked time.Duration // of the last claim; 0: none
	known bool          // orders may go out
	idle  bool          // the last claim had no client
}

func newRedisLimits(of *quotas, redis Scripts) *redisLimits {
	p := &redisLimits{of: of, redis: redis, asked: make(chan request, maxAsked)}
	ctx, cancel := context.WithCancel(context.Background())
	p.ctx = ctx
	var name [8]byte
	_, _ = rand.Read(name[:]) // never fails
	p.name = string(name[:])
	for i := range p.slots {
		p.slots[i] = &quotaSlot{parts: p, clock: fmt.Sprintf("rlqs:{%d}", i), wake: make(chan struct{}, 1)}
	}
	var running sync.WaitGroup
	p.start = sync.OnceFunc(func() {
		for _, s := range p.slots {
			running.Go(func() { s.run(ctx) })
		}
	})
	p.stop = func() {
		cancel()
		running.Wait()
	}
	of.limiter.ShareParts(hex.EncodeToString(name[:]), of.now, p.want)
	return p
}

func (p *redisLimits) begin() { p.start() }

func (p *redisLimits) end() { p.stop() }

func (p *redisLimits) divide(_ *quotaStream, of *limiter.Dividend, limit quota.Limit, now time.Duration) *divided {
	h := fnv.New32a()
	_, _ = h.Write([]byte(of.Base))
	d := newDivided(of)
	d.part = &redisPart{Holding: quota.Hold(limit, now), slot: p.slots[h.Sum32()%quotaSlots]}
	d.Division = d.part.Division
	d.part.slot.limits = append(d.part.slot.limits, d)
	d.part.slot.signal()
	return d
}

// errNotDivided is the reason against RLQS for rules that RLS counts in Redis alone.
var errNotDivided = errors.New("with Redis, each limit of the rule must have sharing: divided")

func (*redisLimits) refuses(rule *descriptors.Rule) error {
	if rule.Divided {
		return nil
	}
	return errNotDivided
}

// want has take find a part for a request of RLS. Beyond maxAsked the next request of the key asks
// again.
func (p *redisLimits) want(domain string, entries []limiter.Entry) {
	if len(p.asked) == cap(p.asked) {
		return
	}
	kept := make([]limiter.Entry, len(entries))
	for i, e := range entries {
		kept[i] = limiter.Entry{Key: strings.Clone(e.Key), Value: strings.Clone(e.Value)}
	}
	select {
	case p.asked <- request{strings.Clone(domain), kept}:
	default:
		return
	}
	if p.taking.CompareAndSwap(false, true) {
		go p.take()
	}
}

// take lets the requests of RLS that wait be clients of their limits.
func (p *redisLimits) take() {
	q := p.of
	q.mu.Lock()
	defer q.mu.Unlock()
	p.taking.Store(false) // before the last look at asked
	for {
		select {
		case <-q.stopped:
			return
		case r := <-p.asked:
			p.join(r, q.now())
		default:
			return
		}
	}
}

// join has the requests of RLS under a limit be a client of its division.
func (p *redisLimits) join(r request, now time.Duration) {
	q := p.of
	of, limit, err := p.look(r.domain, r.entries)
	d := q.divisions[of.Base]
	if err == nil && d == nil && len(q.divisions) >= maxQuotaBuckets {
		err = errTooManyDivided
	}
	switch {
	case err != nil:
		q.refuse(err.Error(), r.domain, r.entries, "RLS")
		return
	case len(of.Limits) == 0 || d != nil && d.rls != nil:
		return
	case d == nil:
		d = p.divide(nil, &of, limit, now)
		q.divisions[of.Base] = d
	}
	d.about = of.Rule
	d.rls = &rlsClient{domain: r.domain, entries: r.entries, base: of.Base, last: now, looked: now}
	d.rls.publish(q, new(quota.Order))
	d.rls.client = d.JoinHere(now, d.rls)
	d.due = now
	p.begin()
	q.start()
	q.stepOne(d, now)
}

// look returns the limits of RLS for a descriptor, none without a division.
func (p *redisLimits) look(domain string, entries []limiter.Entry) (of limiter.Dividend, limit quota.Limit, err error) {
	of, err = p.of.limiter.DividendInOrder(domain, entries)
	if err == nil && len(of.Limits) > 0 {
		if limit, err = quota.LimitOfAll(of.Limits); err == nil {
			err = p.refuses(of.Rule)
		}
	}
	return of, limit, err
}

// leave ends the part of requests of RLS.
func (p *redisLimits) leave(d *divided, now time.Duration) {
	p.of.limiter.EndPart(d.rls.base)
	d.Deny(d.rls.client, now)
	d.Leave(d.rls.client)
	d.rls, d.due = nil, now
}

func (p *redisLimits) change(d *divided, limit quota.Limit, now time.Duration) {
	if limit != d.part.Whole() {
		d.part.SetWhole(limit, now)
		d.due = now
	}
}

func (p *redisLimits) ready(d *divided, now time.Duration) bool {
	p.work(now)
	return d.part.known
}

func (p *redisLimits) tend(d *divided, now time.Duration) {
	r := d.rls
	if r == nil {
		return
	}
	asked := r.part.Asked()
	if asked > r.asked {
		r.last = now
	}
	d.Asked(r.client, asked-r.asked, now)
	r.asked = asked
	if now-r.looked < time.Second {
		return
	}
	r.looked = now
	of, limit, err := p.look(r.domain, r.entries)
	if err == nil && of.Base == r.base {
		r.refused = 0
		p.change(d, limit, now)
	} else if r.refused == 0 {
		r.refused = now
	}
	if now-r.last >= quota.Idle || r.refused > 0 && now-r.refused >= quota.Dead { // Envoys may go on until then
		p.leave(d, now)
	}
}

// ends is false: answered ends divisions.
func (p *redisLimits) ends(*divided, time.Duration) bool { return false }

func (p *redisLimits) collect(to metrics.Scrape) {
	to.Counter("rlqs_redis_calls_total", p.calls[0], "answered")
	to.Counter("rlqs_redis_calls_total", p.calls[1], "failed")
}

// work notes that this process has time. After a stop others may have the parts of this process, so
// no order goes out before the next answers.
func (p *redisLimits) work(now time.Duration) {
	wall := time.Now().Round(0) // without the clock that stands still
	if now-p.worked > quota.Away || wall.Sub(p.wall) > quota.Away {
		for _, s := range p.slots {
			for _, d := range s.limits {
				if d.rls != nil { // requests use no bucket until the next answer
					d.rls.publish(p.of, new(quota.Order))
					d.Deny(d.rls.client, now)
				}
				d.part.Wake(now)
				d.part.known, d.part.asked = false, 0
			}
			s.signal()
		}
	}
	p.worked, p.wall = now, wall
	p.of.limiter.KeepParts(now + quota.Away)
}

// answered takes the answers to a call, and reports whether there are any.
func (p *redisLimits) answered(all []*divided, answers []string, begun time.Duration, err error) bool {
	q := p.of
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	if err == nil && now-begun > quota.Call { // this process was stopped
		err = context.DeadlineExceeded
	}
	if err != nil {
		p.calls[1]++
		if _, due := p.warned.Due(partsWarnEvery); due && p.ctx.Err() == nil {
			q.logger.LogAttrs(p.ctx, slog.LevelWarn,
				"redis does not divide the limits of RLQS: this process goes on with its parts, and limits that are new here have no assignment",
				slog.String("error", err.Error()))
		}
		return false
	}
	p.calls[0]++
	for i, d := range all {
		part := d.part
		switch {
		case !part.Answer(answers[i], begun, now):
		case part.idle && d.Empty():
			part.slot.limits = slices.DeleteFunc(part.slot.limits, func(other *divided) bool { return other == d })
			delete(q.divisions, d.key)
		case part.idle: // a client has come meanwhile
			part.asked = 0
			part.slot.signal()
		default:
			part.known = true
			q.stepOne(d, now)
		}
	}
	return true
}
