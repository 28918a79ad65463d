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

// Counters says which fixed windows are kept as envoyproxy/ratelimit keeps them, so that both count together: as a decimal
// number for each window. The start of the window, in Unix seconds by this process's clock, ends the name of its key, and the
// key lives for a period, and a little longer, from its last hit on. Two things are then other than package store has them: when
// this process's clock goes back, hits are counted in the window that it shows; and limits of two periods share a count where
// their names are the same. The zero value keeps none so.
type Counters struct {
	// Name appends the name under which the fixed window of a Charge.Key is counted, with a prefix of its own in place of that of
	// the store, and without the start of the window; false says that it is counted as all others, as it is where the period is
	// no whole number of seconds. It must not depend on anything but key; it is called concurrently.
	Name func(dst, key []byte) (name []byte, counted bool)

	Jitter time.Duration // how much longer than a period a key lives at most: 0 to MaxJitter, of which a random whole number of seconds is taken
}

// MaxJitter is the largest Counters.Jitter.
const MaxJitter = math.MaxInt32 * time.Second

// asCounter is how the script numbers what it does with counters, after the algorithms.
const asCounter = 6

// appendCounter appends the name of the counter of a charge at an instant, and reports whether the charge has one.
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

// window returns the start of the window of an instant.
func window(period time.Duration, at algorithms.Instant) algorithms.Instant {
	return at - at%algorithms.Instant(period)
}

// jitter returns how many seconds a counter is to live longer than its period.
func (s *Store) jitter() uint32 {
	if seconds := uint32(s.counters.Jitter / time.Second); seconds > 0 {
		return rand.Uint32N(seconds)
	}
	return 0
}

// now returns the instant by this process's clock; 0 where there are no counters, as nothing else goes by it.
func (s *Store) now() algorithms.Instant {
	switch {
	case s.counters.Name == nil:
		return 0
	case s.given != nil:
		return s.given()
	}
	return algorithms.Instant(time.Now().UnixNano())
}

// parseCounter reads the state of a counter as it stands in Redis. Its instant is not known.
func parseCounter(raw string, l algorithms.Limit) (kept, error) {
	n, err := strconv.ParseUint(raw, 10, 63)
	if err != nil {
		return kept{}, fmt.Errorf("%w: a counter that is %q", errAnswer, raw)
	}
	return kept{limit: l, state: algorithms.StateOf(0, n, 0), counter: true}, nil
}

// enter makes the state that of a counter of a limit in the window of an instant at by this process's clock, whatever limit was
// charged last. It returns the instant now of Redis's clock, held within the window.
func (k *kept) enter(l algorithms.Limit, at, now algorithms.Instant) algorithms.Instant {
	start := window(l.Period, at)
	now = min(max(now, start), start.Add(l.Period-Granularity))
	_, count, _ := k.state.Parts()
	k.limit, k.state, k.counter = l, algorithms.StateOf(now, count, 0), true
	return now
}
