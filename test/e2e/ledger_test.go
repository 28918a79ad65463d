package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/test/parts"
	"github.com/weirproxy/weir/test/promise"
)

// A ledger holds requests for a few keys with the times of their answers. Every key has a limit of
// its own, and the promise of that limit must hold for all sidecars together.
type ledger struct {
	limits []algorithms.Limit // by key

	mu      sync.Mutex // guards the fields below
	history []promise.Request
	errors  map[string]int
}

// newLedger returns a ledger for a limit of each algorithm.
func newLedger(requests uint32, period time.Duration) *ledger {
	l := &ledger{errors: map[string]int{}}
	for _, a := range algorithms.RateAlgorithms() {
		limit := algorithms.Limit{Algorithm: a, Requests: requests, Period: period}
		if a == algorithms.TokenBucket {
			limit.Burst = requests
		}
		l.limits = append(l.limits, limit)
	}
	return l
}

// rules returns the rules of the limits. The descriptor key of a limit is the name of its
// algorithm.
func (l *ledger) rules() string {
	var b strings.Builder
	b.WriteString("domain: e2e\ndescriptors:\n")
	for _, limit := range l.limits {
		fmt.Fprintf(&b, "  - {key: %v, rate_limit: {algorithm: %v, requests_per_unit: %d, period: %v}}\n",
			limit.Algorithm, limit.Algorithm, limit.Requests, limit.Period)
	}
	return b.String()
}

// ask asks for one hit of a key, and notes an answer. A request that ends with ctx counts for
// nothing.
func (l *ledger) ask(ctx context.Context, c client, key int, value string) string {
	sent := time.Now()
	outcome := c.outcome(ctx, questions(l.limits[key].Algorithm.String(), value))
	received := time.Now()
	if ctx.Err() == nil {
		l.note(key, sent, received, outcome)
	}
	return outcome
}

// note keeps the outcome of a request.
func (l *ledger) note(key int, sent, received time.Time, outcome string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch outcome {
	case "OK", "OVER_LIMIT":
		l.history = append(l.history, promise.Request{Sent: sent.UnixNano(), Received: received.UnixNano(), Keys: []int{key}, Admitted: outcome == "OK"})
	default:
		l.errors[outcome]++
	}
}

// errorless checks that every request got an answer.
func (l *ledger) errorless(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.errors) > 0 {
		t.Errorf("requests without an answer: %v", l.errors)
	}
}

// await waits until that many hits of each key were admitted: a slow machine asks less in the same
// time.
func (l *ledger) await(t *testing.T, least int) {
	t.Helper()
	parts.Eventually(t, func() string {
		admitted := make([]int, len(l.limits))
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, r := range l.history {
			if r.Admitted {
				admitted[r.Keys[0]]++
			}
		}
		if slices.Min(admitted) >= least {
			return ""
		}
		return fmt.Sprintf("%v hits were admitted, want at least %d of each key", admitted, least)
	})
}

// atMost checks the admitted hits of each key: at most over are beyond the promise, and all
// together are at least least.
func (l *ledger) atMost(t *testing.T, least, over int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, c := range promise.Judge(l.limits, l.history, 0) {
		t.Logf("%v: %d admitted, %d by one process, %d over", l.limits[key].Algorithm, c.Admitted, c.Expected, c.Over)
		if c.Over > over {
			t.Errorf("%v: %d of %d admitted hits are beyond the promise, want at most %d", l.limits[key].Algorithm, c.Over, c.Admitted, over)
		}
		if c.Admitted < least {
			t.Errorf("%v: only %d hits were admitted, want at least %d", l.limits[key].Algorithm, c.Admitted, least)
		}
	}
}
