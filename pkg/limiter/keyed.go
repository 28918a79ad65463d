package limiter

import (
	"context"
	"fmt"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/pkg/descriptors"
	"github.com/weirproxy/weir/pkg/store/memstore"
)

// Rate is a number of requests in a time.
type Rate struct {
	Requests uint32        // at least 1
	Per      time.Duration // from algorithms.MinPeriod to algorithms.MaxPeriod
}

// PerSecond returns a rate of so many requests per second.
func PerSecond(requests uint32) Rate { return Rate{requests, time.Second} }

// PerMinute returns a rate of so many requests per minute.
func PerMinute(requests uint32) Rate { return Rate{requests, time.Minute} }

// PerHour returns a rate of so many requests per hour.
func PerHour(requests uint32) Rate { return Rate{requests, time.Hour} }

// The domain of a limiter of [PerKey], and the key of its one entry.
const (
	KeyedDomain = "keyed"
	KeyedKey    = "key"
)

// Keyed limits every key alike, in memory. All methods are safe for concurrent use.
type Keyed struct {
	limits *Limiter
	states *memstore.Store
}

// PerKey returns a token bucket for each key: burst requests at once, and the rate in the long run.
// At most memstore.DefaultMaxKeys keys are remembered; one that is forgotten begins with a full
// bucket. The error names the bound that the rate or the burst breaks.
func PerKey(rate Rate, burst uint32) (*Keyed, error) {
	l := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: rate.Requests, Period: rate.Per, Extra: algorithms.Extra{Burst: burst}}
	switch err := l.Validate(); {
	case err != nil:
		return nil, fmt.Errorf("rate: %w", err)
	case rate.Requests == 0 || burst == 0:
		return nil, fmt.Errorf("rate and burst: %d and %d: must be at least 1", rate.Requests, burst)
	}
	states, err := memstore.New(memstore.Options{})
	if err != nil {
		return nil, err
	}
	limits, err := New(states, Options{})
	if err == nil {
		const rules = `{"domain":%q,"descriptors":[{"key":%q,"rate_limit":{"algorithm":"token_bucket","requests_per_unit":%d,"period":%q,"burst":%d}}]}`
		_, err = limits.Load(descriptors.Source{
			Name: "PerKey", Generated: true, Data: fmt.Appendf(nil, rules, KeyedDomain, KeyedKey, rate.Requests, rate.Per, burst),
		})
	}
	if err != nil {
		states.Close()
		return nil, err
	}
	return &Keyed{limits, states}, nil
}

// Allow charges one hit to a key and returns the decision.
func (k *Keyed) Allow(key string) Result {
	result, err := k.limits.Allow(context.Background(), KeyedDomain, Entry{Key: KeyedKey, Value: key})
	if err != nil { // memory does not fail
		return Result{Allowed: true}
	}
	return result
}

// Limiter returns the limiter below. A request for it has the domain KeyedDomain, and one entry
// with the key KeyedKey.
func (k *Keyed) Limiter() *Limiter { return k.limits }

// Close ends the sweep of forgotten keys. No method may be called later.
func (k *Keyed) Close() { k.states.Close() }
