package redisstore

import (
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/pkg/store"
)

// pulse says whether a shard answers, however late. Instants are in nanoseconds since the start of
// the store.
type pulse struct {
	*base

	under  atomic.Int64 // flights and commands under way
	heard  atomic.Int64 // when the shard last answered; 0: never
	quiet  atomic.Int64 // since when flights are under way without an answer
	ended  atomic.Int64 // when a flight last ended without an answer; 0: the last one was answered
	silent atomic.Bool  // the watch has found the shard silent, and no answer has come since
	usual  atomic.Int64 // the longest of the last round trips, in nanoseconds, which later ones slowly forget

	// Of the round trips that end a silence, which tell its length and not the pace of the shard.
	broken      atomic.Int64 // when the last silence ended; 0: never
	trip, again atomic.Int64 // the longest of this silence, and of the one before; 0: there was a better one since
}

const (
	// silenceGap is the longest time between two flights without an answer that are one silence.
	silenceGap = 100 * time.Millisecond
	// tripMemory is the round trips after which a mean has forgotten two thirds of a long one.
	tripMemory = 16
	// promptPart is the part of the timeout for which an answer may be owed: a millisecond of the
	// default. On a busy machine scheduling alone can make a round trip that long.
	promptPart = 10
	// mostTaught is the longest round trip that one silence teaches. So a Redis that pauses again and
	// again is waited for, and one that has stopped once is noticed soon when it stops again.
	mostTaught = 100 * time.Millisecond
	// leastSilence is the shortest time without an answer that is a silence.
	leastSilence = 25 * time.Millisecond
	// mostSilence bounds the part of the timeout in that. A timeout of seconds says how long a caller
	// may wait for a slow Redis, and not how slow this Redis is.
	mostSilence = 250 * time.Millisecond
)

func (b *base) since(t time.Time) int64 { return max(1, int64(t.Sub(b.started))) }

func (p *pulse) begin() {
	if p.under.Load() == 0 { // first, so that nobody sees this flight with the silence of an idle time
		now := p.since(time.Now())
		if ended := p.ended.Load(); ended == 0 || now-ended > int64(silenceGap) {
			p.quiet.Store(now)
		}
	}
	p.under.Add(1)
}

// end notes that a flight has ended, with an answer or without.
func (p *pulse) end(answered bool) {
	at := int64(0)
	if !answered {
		at = p.since(time.Now())
	}
	p.ended.Store(at)
	p.under.Add(-1)
}

func (p *pulse) alive(now time.Time) {
	at := p.since(now)
	p.heard.Store(at)
	p.quiet.Store(at)
	if p.silent.Load() {
		p.silent.Store(false)
		p.broken.Store(at)
		p.again.Store(p.trip.Swap(0))
	}
}

// answered notes an answer to a flight that began then.
func (p *pulse) answered(now, begun time.Time) {
	p.alive(now)
	took := now.Sub(begun)
	if broken := p.broken.Load(); broken > 0 && broken > p.since(begun) {
		// One silence says little about the pace. After two without a better answer between, the shard is
		// slow.
		p.trip.Store(max(p.trip.Load(), int64(took)))
		took = min(took, max(mostTaught, time.Duration(p.again.Load())))
	} else if p.trip.Load() > 0 || p.again.Load() > 0 {
		p.trip.Store(0)
		p.again.Store(0)
	}
	usual := p.usual.Load()
	p.usual.Store(max(int64(took), usual-(usual-int64(took))/tripMemory))
}

func (p *pulse) usually() time.Duration { return time.Duration(p.usual.Load()) }

// tooLong returns the time without an answer from which on the shard may be silent.
func (p *pulse) tooLong() time.Duration {
	return max(leastSilence, min(p.timeout, mostSilence), 2*p.usually())
}

// flownLife is how long a call of a caller that flies may lie on its way. When the caller is
// released its outcome is known: Redis does not apply the call later.
func (p *pulse) flownLife() time.Duration { return p.tooLong() + silenceDoubt }

// owing returns how long the shard has owed answers without giving one. Up to silenceGap after a
// flight without an answer no flight needs to be under way.
func (p *pulse) owing(now int64) time.Duration {
	if ended := p.ended.Load(); p.under.Load() == 0 && (ended == 0 || now-ended > int64(silenceGap)) {
		return 0
	}
	return time.Duration(now - p.quiet.Load())
}

// prompt reports whether the shard gives the answers that it owes in the usual time.
func (p *pulse) prompt(now time.Time) bool {
	return p.owing(p.since(now)) <= max(p.timeout/promptPart, p.usually())
}

func (p *pulse) health() (h store.Health) {
	if at := p.heard.Load(); at > 0 {
		h.Answered = p.started.Add(time.Duration(at))
	}
	if p.silent.Load() {
		h.Silent = max(1, time.Duration(p.since(time.Now())-p.quiet.Load()))
	}
	return h
}

// missRemembered is for how long a missed answer counts. Meanwhile no caller flies itself: only a
// flight of a worker can wait for a late answer.
const missRemembered = 10 * time.Second

// miss notes that a caller has stopped to wait for an answer.
func (b *base) miss() { b.misses.Store(b.since(time.Now())) }

// missed reports whether a caller has stopped to wait within missRemembered.
func (b *base) missed(now time.Time) bool {
	at := b.misses.Load()
	return at > 0 && b.since(now)-at < int64(missRemembered)
}
