package algorithms

import (
	"math"
	"time"
)

// The reference is a second implementation of every algorithm, in exact rationals, without regard
// to cost. The source of the reference is the text of the semantics, not the code. A model keeps
// the terms of the text: a level, tokens, counts, a list of hits. A model searches for the waits
// that the code computes by a formula.
//
// The package's comments decide points that the text leaves open:
//   - "The last instant seen by the key" is the instant of the last charge. A probe and a denial
//     are no charges.
//   - A key that a refund leaves idle is a key never used, and remembers no instant.

// model is the reference of one algorithm for one key; its zero value is a key never used.
type model interface {
	take(l Limit, now, hits num, countRejected bool) Decision // counts waits from the last charge, if that is later than now
	charged() (last num, used bool)
	change(from, to Limit, now num) // same algorithm and period
}

func newModel(a Algorithm) model {
	switch a {
	case TokenBucket:
		return &bucketModel{}
	case TokenBucketInteger:
		return &integerModel{}
	case FixedWindow:
		return &windowModel{}
	case SlidingWindowCounter:
		return &counterModel{}
	case SlidingWindowLog:
		return &logModel{}
	default:
		return nil
	}
}

// reference is a key of the reference implementation.
type reference struct {
	limit Limit
	model model
}

func newReference(l Limit) *reference { return &reference{l, newModel(l.Algorithm)} }

// take adds the time until the last charge to the waits that count from then.
func (r *reference) take(now Instant, hits int64, countRejected bool) Decision {
	last, used := r.model.charged()
	d := r.model.take(r.limit, of(now), of(min(max(hits, -MaxCount), MaxCount)), countRejected)
	if used && of(now).less(last) {
		for _, wait := range []*time.Duration{&d.RetryAfter, &d.ResetAfter} {
			if *wait > 0 {
				*wait = last.minus(of(now)).plus(of(*wait)).duration()
			}
		}
	}
	return d
}

func (r *reference) change(to Limit, now Instant) {
	if to.Algorithm != r.limit.Algorithm || to.Period != r.limit.Period {
		r.model = newModel(to.Algorithm)
	} else {
		r.model.change(r.limit, to, of(now))
	}
	r.limit = to
}

// capacity is the most hits at once, rate the tokens that a bucket gains per nanosecond.
func capacity(l Limit) num { return of(l.Capacity()) }
func rate(l Limit) num     { return of(l.Requests).over(of(l.Period)) }

// banned is the answer to hits when none are ever allowed.
func banned(wait num) Decision {
	return Decision{RetryAfter: wait.duration(), ResetAfter: wait.duration()}
}

func (b *bucketModel) charged() (last num, used bool)  { return b.last, b.used }
func (w *windowModel) charged() (last num, used bool)  { return w.last, w.used }
func (c *counterModel) charged() (last num, used bool) { return c.last, c.used }
func (g *logModel) charged() (last num, used bool)     { return g.last, len(g.entries) > 0 }

func (b *integerModel) charged() (last num, used bool) { return b.lastCharge, b.used }

// bucketModel is semantics 2.1: a level.
type bucketModel struct {
	used        bool
	last, level num
}

// at returns the level at now, and now held at the last charge.
func (b *bucketModel) at(l Limit, now num) (held, level num) {
	if !b.used {
		return now, capacity(l)
	}
	held = larger(now, b.last)
	return held, smaller(capacity(l), b.level.plus(held.minus(b.last).times(rate(l))))
}

func (b *bucketModel) set(l Limit, now, level num) {
	*b = bucketModel{used: !level.is(capacity(l)), last: now, level: level}
}

func (b *bucketModel) take(l Limit, now, hits num, countRejected bool) Decision {
	now, level := b.at(l, now)
	zero := of(0)
	if zero.less(hits) && l.Requests == 0 {
		return banned(of(l.Period))
	}

	d := Decision{Allowed: hits.less(zero) || hits.atMost(level)}
	if hits.less(zero) || zero.less(hits) && (d.Allowed || countRejected) {
		level = smaller(level.minus(hits), capacity(l)) // A refund gives back no more than was used,
		level = larger(level, zero.minus(capacity(l)))  // and debt ends at -burst.
		b.set(l, now, level)
	}
	d.Remaining = level.whole()
	if missing := capacity(l).minus(level); !missing.is(zero) {
		d.ResetAfter = missing.over(rate(l)).duration()
	}
	if !d.Allowed {
		d.RetryAfter = hits.minus(level).over(rate(l)).duration()
	}
	return d
}

func (b *bucketModel) change(from, to Limit, now num) {
	now, level := b.at(from, now)
	if level.is(capacity(from)) {
		*b = bucketModel{}
		return
	}
	b.set(to, now, larger(smaller(level, capacity(to)), of(0).minus(capacity(to))))
}

// integerModel is semantics 2.5: whole tokens, and the instant up to which they were refilled.
type integerModel struct {
	used                     bool
	tokens, last, lastCharge num
}

// at returns the tokens and the mark after a refill at now, by the words of the text, and now held
// at the last charge.
func (b *integerModel) at(l Limit, now num) (held, tokens, last num) {
	if !b.used {
		return now, capacity(l), now
	}
	held = larger(now, b.lastCharge)
	refill := held.minus(b.last).times(capacity(l)).over(of(l.Period)).floor()
	switch {
	case capacity(l).atMost(b.tokens.plus(refill)):
		return held, capacity(l), held
	case of(0).less(refill):
		return held, b.tokens.plus(refill), b.last.plus(refill.times(of(l.Period)).over(capacity(l)).floor())
	default:
		return held, b.tokens, b.last
	}
}

// boundless returns how many tokens there would be at an instant from now on if a bucket had no
// capacity.
func (b *integerModel) boundless(l Limit, now, at num) num {
	if _, tokens, _ := b.at(l, now); tokens.is(capacity(l)) {
		return tokens.plus(at.minus(now).times(rate(l)).floor())
	}
	return b.tokens.plus(at.minus(b.last).times(rate(l)).floor())
}

func (b *integerModel) take(l Limit, now, hits num, countRejected bool) Decision {
	now, tokens, last := b.at(l, now)
	zero := of(0)
	if zero.less(hits) && l.Requests == 0 {
		return banned(of(l.Period))
	}

	d := Decision{Allowed: hits.less(zero) || hits.atMost(tokens)}
	if hits.less(zero) || zero.less(hits) && (d.Allowed || countRejected) {
		tokens = larger(smaller(tokens.minus(hits), capacity(l)), zero.minus(capacity(l)))
		*b = integerModel{used: !tokens.is(capacity(l)), tokens: tokens, last: last, lastCharge: now}
	}
	_, left, _ := b.at(l, now)
	d.Remaining = left.whole()
	if !left.is(capacity(l)) {
		d.ResetAfter = firstWait(now, 2*l.Period, func(at num) bool {
			_, tokens, _ := b.at(l, at)
			return tokens.is(capacity(l))
		})
	}
	if !d.Allowed {
		d.RetryAfter = firstWait(now, math.MaxInt64, func(at num) bool { return hits.atMost(b.boundless(l, now, at)) })
	}
	return d
}

func (b *integerModel) change(from, to Limit, now num) {
	now, tokens, last := b.at(from, now)
	if tokens.is(capacity(from)) {
		*b = integerModel{}
		return
	}
	if from.Requests != to.Requests {
		last = now // Time that has not made a token at the old rate makes none at the new one.
	}
	tokens = larger(smaller(tokens, capacity(to)), of(0).minus(capacity(to)))
	*b = integerModel{used: !tokens.is(capacity(to)), tokens: tokens, last: last, lastCharge: now}
}

// hopeless is the wait for more hits than a sliding window ever admits: until the key is idle, else
// a period.
func hopeless(l Limit, resetAfter time.Duration) time.Duration {
	if resetAfter == 0 {
		return l.Period
	}
	return resetAfter
}

// windowOf returns the number of the aligned window that an instant lies in, counted from the Unix
// epoch.
func windowOf(l Limit, at num) num { return at.over(of(l.Period)).floor() }

// windowEnd returns how long an instant lies before the end of its aligned window.
func windowEnd(l Limit, at num) num {
	return windowOf(l, at).plus(of(1)).times(of(l.Period)).minus(at)
}

// windowModel is semantics 2.2: the count of one window.
type windowModel struct {
	used        bool
	last, count num
}

func (w *windowModel) at(l Limit, now num) (held, count num) {
	if !w.used {
		return now, of(0)
	}
	held = larger(now, w.last)
	if !windowOf(l, held).is(windowOf(l, w.last)) {
		return held, of(0)
	}
	return held, w.count
}

func (w *windowModel) take(l Limit, now, hits num, countRejected bool) Decision {
	now, count := w.at(l, now)
	zero := of(0)

	d := Decision{Allowed: hits.less(zero) || count.plus(hits).atMost(capacity(l))}
	if hits.less(zero) || zero.less(hits) && (d.Allowed || countRejected) {
		count = larger(zero, count.plus(hits))
		*w = windowModel{used: !count.is(zero), last: now, count: count}
	}
	d.Remaining = capacity(l).minus(count).whole()
	d.ResetAfter = windowEnd(l, now).duration()
	if !d.Allowed {
		d.RetryAfter = d.ResetAfter
	}
	return d
}

func (w *windowModel) change(from, _ Limit, now num) {
	if _, count := w.at(from, now); count.is(of(0)) {
		*w = windowModel{}
	}
}

// counterModel is semantics 2.4: the counts of the window of the last charge and of the one before.
type counterModel struct {
	used                    bool
	last, current, previous num
}

func (c *counterModel) at(l Limit, now num) (held, current, previous num) {
	if !c.used {
		return now, of(0), of(0)
	}
	held = larger(now, c.last)
	switch passed := windowOf(l, held).minus(windowOf(l, c.last)); {
	case passed.is(of(0)):
		return held, c.current, c.previous
	case passed.is(of(1)):
		return held, of(0), c.current
	default:
		return held, of(0), of(0)
	}
}

// estimate returns previous * (period - elapsed) / period + current at an instant.
func (c *counterModel) estimate(l Limit, at num) num {
	at, current, previous := c.at(l, at)
	return previous.times(windowEnd(l, at)).over(of(l.Period)).plus(current)
}

func (c *counterModel) set(now, current, previous num) {
	*c = counterModel{used: !current.is(of(0)) || !previous.is(of(0)), last: now, current: current, previous: previous}
}

func (c *counterModel) take(l Limit, now, hits num, countRejected bool) Decision {
	now, current, previous := c.at(l, now)
	zero, limit := of(0), of(l.Requests)
	estimate := c.estimate(l, now)
	if zero.less(hits) && l.Requests == 0 {
		return banned(windowEnd(l, now))
	}

	d := Decision{Allowed: hits.less(zero) || estimate.plus(hits).atMost(limit)}
	switch {
	case hits.less(zero): // the newest hits first, from the current window
		back := smaller(zero.minus(hits), current)
		rest := smaller(zero.minus(hits).minus(back), previous)
		c.set(now, current.minus(back), previous.minus(rest))
	case zero.less(hits) && d.Allowed:
		c.set(now, current.plus(hits), previous)
	case zero.less(hits) && countRejected: // Whole hits, as long as the estimate stays within twice the limit.
		room := larger(zero, limit.plus(limit).minus(estimate).floor())
		if counted := smaller(hits, room); zero.less(counted) {
			c.set(now, current.plus(counted), previous)
		}
	}
	d.Remaining = limit.minus(c.estimate(l, now)).whole()
	if !c.gone(l, now) {
		d.ResetAfter = firstWait(now, 2*l.Period, func(at num) bool { return c.gone(l, at) })
	}
	switch {
	case d.Allowed:
	case limit.less(hits):
		d.RetryAfter = hopeless(l, d.ResetAfter)
	default:
		d.RetryAfter = firstWait(now, 2*l.Period, func(at num) bool { return c.estimate(l, at).plus(hits).atMost(limit) })
	}
	return d
}

// gone reports whether both windows have passed at an instant.
func (c *counterModel) gone(l Limit, at num) bool {
	_, current, previous := c.at(l, at)
	return current.is(of(0)) && previous.is(of(0))
}

func (c *counterModel) change(from, _ Limit, now num) {
	if c.gone(from, now) {
		*c = counterModel{}
	}
}

// logModel is semantics 2.3: every hit that counted, in order.
type logModel struct {
	last    num
	entries []logModelEntry
}

type logModelEntry struct{ at, hits num }

func (g *logModel) held(now num) num {
	if len(g.entries) == 0 {
		return now
	}
	return larger(now, g.last)
}

// count returns the hits in (at-period, at].
func (g *logModel) count(l Limit, at num) num {
	sum := of(0)
	for _, e := range g.entries {
		if at.minus(of(l.Period)).less(e.at) {
			sum = sum.plus(e.hits)
		}
	}
	return sum
}

func (g *logModel) take(l Limit, now, hits num, countRejected bool) Decision {
	now = g.held(now)
	zero, limit := of(0), of(l.Requests)
	used := g.count(l, now)
	if zero.less(hits) && l.Requests == 0 {
		return banned(of(l.Period))
	}

	d := Decision{Allowed: hits.less(zero) || used.plus(hits).atMost(limit)}
	switch {
	case hits.less(zero):
		g.refund(l, now, smaller(zero.minus(hits), used))
	case zero.less(hits) && d.Allowed:
		g.add(l, now, hits)
	case zero.less(hits) && countRejected:
		g.add(l, now, smaller(hits, larger(zero, limit.plus(limit).minus(used))))
	}
	d.Remaining = limit.minus(g.count(l, now)).whole()
	if zero.less(g.count(l, now)) {
		d.ResetAfter = firstWait(now, l.Period, func(at num) bool { return g.count(l, at).is(zero) })
	}
	switch {
	case d.Allowed:
	case limit.less(hits):
		d.RetryAfter = hopeless(l, d.ResetAfter)
	default:
		d.RetryAfter = firstWait(now, l.Period, func(at num) bool { return g.count(l, at).plus(hits).atMost(limit) })
	}
	return d
}

// add logs hits at now; none are not a charge.
func (g *logModel) add(l Limit, now, hits num) {
	if hits.is(of(0)) {
		return
	}
	g.prune(l, now)
	g.entries = append(g.entries, logModelEntry{now, hits})
	g.last = now
}

// refund takes that many of the newest hits out of the log; none are not a charge.
func (g *logModel) refund(l Limit, now, hits num) {
	if hits.is(of(0)) {
		return
	}
	g.prune(l, now)
	for of(0).less(hits) {
		newest := &g.entries[len(g.entries)-1]
		back := smaller(hits, newest.hits)
		newest.hits, hits = newest.hits.minus(back), hits.minus(back)
		if newest.hits.is(of(0)) {
			g.entries = g.entries[:len(g.entries)-1]
		}
	}
	g.last = now
}

// prune drops the hits that have expired by now.
func (g *logModel) prune(l Limit, now num) {
	for len(g.entries) > 0 && g.entries[0].at.atMost(now.minus(of(l.Period))) {
		g.entries = g.entries[1:]
	}
}

// change keeps the hits, to be judged by the new limit.
func (g *logModel) change(_, _ Limit, _ num) {}
