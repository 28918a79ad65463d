package redisstore

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/store"
)

// Counters makes the store keep fixed windows as envoyproxy/ratelimit keeps them, so that both
// count together: as a decimal number for each window. The name of the key ends with the start of
// the window, in Unix seconds by this process's clock. The key lives for a period and a jitter from
// its last hit on. Two promises of package store do not hold for counters. If this process's clock
// goes back, hits count in the window of that clock. Limits of two periods share a count if their
// names are the same. The zero value makes no counters.
type Counters struct {
	// Name appends the name of the counter for a Charge.Key, with a prefix, without the start of the
	// window. With false the store keeps the window as any other, and so it does if the period is not
	// a whole number of seconds. Name must depend on key only, and must be safe for concurrent use.
	Name func(dst, key []byte) (name []byte, counted bool)

	Jitter time.Duration // 0 to MaxJitter; a key lives longer than a period by a random whole number of seconds below
}

// MaxJitter is the largest Counters.Jitter.
const MaxJitter = math.MaxInt32 * time.Second

// counterNumber stands for counters where the script has the number of an algorithm.
const counterNumber = 0

// appendCounter appends the name of the counter of a charge at an instant, and reports whether the
// charge has one.
func (s *Store) appendCounter(dst []byte, c *store.Charge, at algorithms.Instant) (name []byte, counted bool) {
	if s.counters.Name == nil || c.Limit.Algorithm != algorithms.FixedWindow || c.Limit.Period%time.Second != 0 {
		return dst, false
	}
	before := len(dst)
	if dst, counted = s.counters.Name(dst, c.Key); !counted {
		return dst[:before], false
	}
	return strconv.AppendInt(dst, int64(window(c.Limit.Period, at))/int64(time.Second), 10), true
}

// isCounter reports whether the state of a charge is a counter.
func (s *Store) isCounter(c *store.Charge) bool {
	if s.counters.Name == nil || c.Hold != nil && s.serverOf(c).cluster {
		return false
	}
	_, counter := s.appendCounter(nil, c, 0)
	return counter
}

// window returns the start of the window of an instant.
func window(period time.Duration, at algorithms.Instant) algorithms.Instant {
	return at - at%algorithms.Instant(period)
}

// jitter returns the seconds that a counter lives after its period.
func (s *Store) jitter() uint32 {
	if seconds := uint32(s.counters.Jitter / time.Second); seconds > 0 {
		return rand.Uint32N(seconds)
	}
	return 0
}

// now returns the instant by this process's clock, or 0 without counters, which alone need the
// instant.
func (s *Store) now() algorithms.Instant {
	switch {
	case s.counters.Name == nil:
		return 0
	case s.given != nil:
		return s.given()
	}
	return algorithms.Instant(time.Now().UnixNano())
}

// parseCounter reads the value of a counter, which holds no instant.
func parseCounter(raw string, l algorithms.Limit) (kept, error) {
	n, err := strconv.ParseUint(raw, 10, 63)
	if err != nil {
		return kept{}, fmt.Errorf("%w: a counter that is %q", errReply, raw)
	}
	return kept{limit: l, state: algorithms.StateOf(0, n, 0), counter: true}, nil
}

// enter makes the state a counter's: of limit l, whichever limit was charged last, in the window of
// the instant at by this process's clock. enter returns the instant now of Redis's clock, held
// within the window.
func (k *kept) enter(l algorithms.Limit, at, now algorithms.Instant) algorithms.Instant {
	start := window(l.Period, at)
	now = min(max(now, start), start.Add(l.Period-Granularity))
	_, count, _ := k.state.Parts()
	k.limit, k.state, k.counter = l, algorithms.StateOf(now, count, 0), true
	return now
}
