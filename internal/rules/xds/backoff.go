package xds

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff returns the wait after so many earlier failures: MinBackoff, doubled by each, MaxBackoff
// at most. Unless Steady, the wait is random, down to half of that, so that a fleet does not retry
// at once.
func (o *Options) backoff(failures int) time.Duration {
	wait := doubled(o.MinBackoff, o.MaxBackoff, failures)
	if o.Steady {
		return wait
	}
	return wait - rand.N(wait/2+1)
}

// doubled returns first, doubled so many times, longest at most.
func doubled(first, longest time.Duration, times int) time.Duration {
	for ; times > 0 && first < longest; times-- {
		first *= 2
	}
	return min(first, longest)
}

// pause waits; false when ctx ended first.
func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
