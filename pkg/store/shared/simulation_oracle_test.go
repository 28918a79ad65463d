package shared

import (
	"fmt"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// referee judges the hits that were admitted under a limit, each at its instant, by the promise of
// the algorithm. An referee knows nothing of leases. Instants must not go back.
type referee struct {
	limit    algorithms.Limit
	admitted int64

	// Of a bucket: the deficit of an ideal bucket that admits the same hits, in 1/Period hit, and
	// its instant. The deficit exceeds the burst if and only if an interval has more hits than the
	// burst and the gain in the interval.
	deficit int64
	last    algorithms.Instant

	// Of windows: the number of the window, its hits and the hits of the window before.
	window            int64
	current, previous int64
}

// admit counts hits, and returns an error if they break the promise.
func (o *referee) admit(at algorithms.Instant, hits int64) error {
	o.admitted += hits
	if err := o.would(at, hits); err != nil {
		return err
	}
	switch o.limit.Algorithm {
	case algorithms.TokenBucket, algorithms.TokenBucketInteger:
		o.deficit += hits * int64(o.limit.Period)
	default:
		o.current += hits
	}
	return nil
}

// would returns an error if hits broke the promise, and does not count them.
func (o *referee) would(at algorithms.Instant, hits int64) error {
	period, most := int64(o.limit.Period), int64(o.limit.Capacity())
	used := hits * period
	switch o.limit.Algorithm {
	case algorithms.TokenBucket, algorithms.TokenBucketInteger:
		o.gain(at)
		used += o.deficit
	case algorithms.FixedWindow:
		o.turn(int64(at) / period)
		used += o.current * period
	case algorithms.SlidingWindowCounter:
		o.turn(int64(at) / period)
		used += o.current*period + o.previous*(period-int64(at)%period)
	default: // has no leases
	}
	if used > most*period {
		return fmt.Errorf("%v: %.3f hits too many at %v", o.limit, float64(used-most*period)/float64(period), at)
	}
	return nil
}

// gain lets the ideal bucket gain until an instant.
func (o *referee) gain(at algorithms.Instant) {
	if at > o.last {
		since := int64(at - o.last)
		if most := o.deficit/int64(o.limit.Requests) + 1; since > most {
			since = most // no product beyond 64 bits
		}
		o.deficit = max(0, o.deficit-since*int64(o.limit.Requests))
		o.last = at
	}
}

// charged notes a charge in Redis. An integer bucket may gain a nanosecond more with each charge if
// Requests does not divide Period.
func (o *referee) charged() {
	if l := o.limit; l.Algorithm == algorithms.TokenBucketInteger && int64(l.Period)%int64(l.Requests) != 0 {
		o.deficit = max(0, o.deficit-int64(l.Requests))
	}
}

// turn begins a window, if it is not the window of the last hits.
func (o *referee) turn(window int64) {
	switch window - o.window {
	case 0:
		return
	case 1:
		o.previous = o.current
	default:
		o.previous = 0
	}
	o.window, o.current = window, 0
}
