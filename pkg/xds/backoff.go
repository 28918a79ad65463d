package xds

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff is how long to wait when an attempt failed after so many others: MinBackoff, twice that, and so on to MaxBackoff; each up
// to half of that shorter, so that a fleet does not come as one.
func (o *Options) backoff(failures int) time.Duration {
	wait := doubled(o.MinBackoff, o.MaxBackoff, failures)
	if o.Steady {
		return wait
	}
	return wait - rand.N(wait/2+1)
}

// doubled returns least, doubled so many times, most at most.
func doubled(least, most time.Duration, times int) time.Duration {
	for ; times > 0 && least < most; times-- {
		least *= 2
	}
	return min(least, most)
}

// pause waits, and reports whether it did: not when ctx ended first.
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
