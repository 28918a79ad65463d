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
	take(l Limit, now, hits num, countRejected bool) Decision
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

func (r *reference) take(now Instant, hits int64, countRejected bool) Decision {
	return r.model.take(r.limit, of(now), of(min(max(hits, -MaxHits), MaxHits)), countRejected)
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
	used                  bool
	tokens, last, charged num
}

// at returns the tokens and the mark after a refill at now, by the words of the text, and now held
// at the last charge.
func (b *integerModel) at(l Limit, now num) (held, tokens, last num) {
	if !b.used {
		return now, capacity(l), now
	}
	held = larger(now, b.charged)
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
		*b = integerModel{used: !tokens.is(capacity(l)), tokens: tokens, last: last, charged: now}
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
	*b = integerModel{used: !tokens.is(capacity(to)), tokens: tokens, last: last, charged: now}
}

// hopeless is the wait for more hits than a sliding window ever admits: until the key is idle, else
// a period.
func hopeless(l Limit, resetAfter time.Duration) time.Duration {
	if resetAfter == 0 {
		return l.Period
	}
	return resetAfter
}
