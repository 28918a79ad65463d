package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// finish gives each call its decisions from the script's answer. finish returns the instant of the
// answer, and whether the deadline had passed. If so, the script did nothing and no call has
// decisions.
func (b *batch) finish(answer string) (us int64, tooLate bool, err error) {
	r := reader{rest: answer}
	tooLate = r.uint(1) == late
	us = int64(r.uint(8))
	if tooLate {
		return us, true, r.check()
	}
	for i := range b.states {
		b.states[i].raw = r.bytes(int(r.uint(1)))
	}
	now := instant(uint64(us))
	for i := range b.all {
		passed := int(r.uint(4))
		for c, n := b.all[i].first, 0; c != nil; c, n = c.next, n+1 {
			c.now = now
			if c.action == correct {
				c.read(&r)
			} else {
				c.err = b.play(c, &r, n < passed) // of equal transactions the first pass
			}
		}
	}
	return us, false, r.check()
}

// read reads the decisions of a correction, which are all about lists.
func (c *call) read(r *reader) {
	c.admitted = true
	for i := range c.charges {
		if c.corrections[i] == nil && !c.charges[i].Limit.Algorithm.HasState() && !c.ends(i) {
			c.decisions[i], _ = r.decision()
		}
	}
}

// play plays a transaction again on the states that the script found, and so makes the decisions.
// Decisions about lists are the script's, and so is the verdict.
func (b *batch) play(c *call, r *reader, admitted bool) error {
	lists := false
	c.admitted = admitted
	if c.holding {
		if err := b.playHolds(c, r); err != nil {
			return err
		}
	}
	c.before, c.after, c.added = c.before[:0], c.after[:0], c.added[:0]
	for i := range c.charges {
		var was kept
		var in added
		if c.charges[i].Limit.Algorithm.HasState() {
			k, err := b.state(c, i)
			if err != nil {
				return err
			}
			was = *k
			if !c.ends(i) {
				c.decisions[i] = c.take(i, k, c.charges[i].Hits)
			}
			c.free(i)
		} else {
			lists = true
			in = c.readList(i, r)
		}
		c.before, c.added = append(c.before, was), append(c.added, in)
	}
	several := len(c.charges) > 1
	agreed := lists && several && c.action == take || store.Admitted(c.charges, c.decisions) == admitted
	for i, place := range c.places {
		if c.action == peek || c.action == reserve && c.applied(i) < 0 {
			b.states[place].kept = c.before[c.first(i)]
		}
	}
	if several && c.action == take && !admitted {
		c.again(c.counts, c.keep)
		for i, place := range c.places {
			b.states[place].kept = c.after[i]
		}
	}
	c.after = c.after[:0]
	for _, place := range c.places {
		c.after = append(c.after, b.states[place].kept)
	}
	if !agreed {
		b.server.store.disagreed(c)
	}
	return nil
}

// disagreed counts and logs a verdict of the script that is not the verdict of package algorithms,
// which only a bug can cause. The log gets one line a second. The request gets decisions that fit
// the script's verdict.
func (s *Store) disagreed(c *call) {
	n := s.metrics.disagreements.Add(1)
	if _, due := s.metrics.disagreementLogged.Due(time.Second); due {
		charge := &c.charges[0]
		s.logger.LogAttrs(context.Background(), slog.LevelWarn, "the script in Redis and this program decided differently, the script's verdict counts",
			slog.Bool("admitted", c.admitted), slog.String("algorithm", charge.Limit.Algorithm.String()),
			slog.String("key", strconv.QuoteToASCII(string(charge.Key))), slog.Uint64("disagreements", n))
	}
	for i := range c.charges {
		d := &c.decisions[i]
		switch {
		case c.charges[i].Mode.Shadows() || d.Allowed == c.admitted:
		case c.admitted:
			d.Allowed, d.RetryAfter = true, 0
		default:
			d.Allowed, d.Remaining, d.RetryAfter = false, 0, max(d.ResetAfter, Granularity)
		}
	}
}

// state returns the state of the key of charge i.
func (b *batch) state(c *call, i int) (*kept, error) {
	p := &b.states[c.places[i]]
	if !p.parsed && p.raw != "" {
		var err error
		if c.counters[i] {
			p.kept, err = parseCounter(p.raw, c.charges[i].Limit)
		} else {
			p.kept, err = parse(p.raw, c.charges[i].Limit)
			p.kept.rewind(c.now)
		}
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", b.keys[c.places[i]], err)
		}
	}
	p.parsed = true
	return &p.kept, nil
}

// take takes hits of charge i from the state of its key.
func (c *call) take(i int, k *kept, hits int64) algorithms.Decision {
	l, now := c.charges[i].Limit, c.now
	if c.counters[i] {
		now = k.enter(l, c.at, now)
	}
	return k.take(l, now, hits, c.charges[i].CountRejected)
}
