package algorithms_test

import (
	"fmt"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
)

// A token bucket for each key: bursts of 5, and 2 requests per second in the long run. The states
// are a plain map, and the caller has the clock; here the example sets the time by hand.
func Example_tokenBucket() {
	limit := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 2, Period: time.Second, Extra: algorithms.Extra{Burst: 5}}
	if err := limit.Validate(); err != nil {
		fmt.Println(err)
		return
	}
	states := make(map[string]algorithms.State)
	now := algorithms.Instant(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).UnixNano())

	allow := func(key string) bool {
		state, decision := algorithms.Take(limit, states[key], now, 1, false)
		states[key] = state
		if !decision.Allowed {
			fmt.Printf("%s: denied, retry after %v\n", key, decision.RetryAfter)
			return false
		}
		fmt.Printf("%s: allowed, %d remaining\n", key, decision.Remaining)
		return true
	}

	for range 6 {
		allow("alice")
	}
	allow("bob") // has a bucket of his own

	now = now.Add(500 * time.Millisecond) // as long as the answer said
	allow("alice")

	// Output:
	// alice: allowed, 4 remaining
	// alice: allowed, 3 remaining
	// alice: allowed, 2 remaining
	// alice: allowed, 1 remaining
	// alice: allowed, 0 remaining
	// alice: denied, retry after 500ms
	// bob: allowed, 4 remaining
	// alice: allowed, 0 remaining
}

// A fixed window for each key: 2 requests in every minute of the clock. The caller forgets the
// states of idle keys.
func Example_fixedWindow() {
	limit := algorithms.Limit{Algorithm: algorithms.FixedWindow, Requests: 2, Period: time.Minute}
	states := make(map[string]algorithms.State)
	now := algorithms.Instant(time.Date(2026, 1, 1, 12, 0, 45, 0, time.UTC).UnixNano())

	allow := func(key string) (ok bool, retryAfter time.Duration) {
		state, decision := algorithms.Take(limit, states[key], now, 1, false)
		states[key] = state
		return decision.Allowed, decision.RetryAfter
	}

	for range 3 {
		ok, retryAfter := allow("alice")
		fmt.Println(ok, retryAfter)
	}
	now = now.Add(15 * time.Second) // the next minute starts
	ok, retryAfter := allow("alice")
	fmt.Println(ok, retryAfter)

	now = now.Add(time.Hour)
	for key, state := range states {
		if algorithms.IdleAt(limit, state) <= now {
			delete(states, key)
		}
	}
	fmt.Println(len(states), "states kept")

	// Output:
	// true 0s
	// true 0s
	// false 15s
	// true 0s
	// 0 states kept
}

// The sliding window log remembers every hit, in a Log per key. At most 3 in any ten seconds.
func ExampleLog() {
	limit := algorithms.Limit{Algorithm: algorithms.SlidingWindowLog, Requests: 3, Period: 10 * time.Second}
	logs := make(map[string]*algorithms.Log)

	allow := func(key string, now algorithms.Instant) algorithms.Decision {
		if logs[key] == nil {
			logs[key] = new(algorithms.Log)
		}
		return logs[key].Take(limit, now, 1, false)
	}

	for _, second := range []int64{0, 4, 8, 9, 10} {
		decision := allow("alice", algorithms.Instant(second)*algorithms.Instant(time.Second))
		fmt.Printf("%2d s: allowed %v, remaining %d, retry after %v\n", second, decision.Allowed, decision.Remaining, decision.RetryAfter)
	}

	// Output:
	//  0 s: allowed true, remaining 2, retry after 0s
	//  4 s: allowed true, remaining 1, retry after 0s
	//  8 s: allowed true, remaining 0, retry after 0s
	//  9 s: allowed false, remaining 0, retry after 1s
	// 10 s: allowed true, remaining 0, retry after 0s
}

// A cost that is only known afterwards: charge an estimate, then give back the rest. A probe asks
// without charging.
func ExampleTake_refund() {
	limit := algorithms.Limit{Algorithm: algorithms.TokenBucket, Requests: 100, Period: time.Minute}
	var state algorithms.State // a key never used
	var decision algorithms.Decision

	state, decision = algorithms.Take(limit, state, 0, 80, false)
	fmt.Println("estimated 80:", decision.Allowed, decision.Remaining)
	state, decision = algorithms.Take(limit, state, 0, -50, false)
	fmt.Println("it was 30:   ", decision.Allowed, decision.Remaining)
	_, decision = algorithms.Take(limit, state, 0, 0, false)
	fmt.Println("a probe:     ", decision.Allowed, decision.Remaining)

	// Output:
	// estimated 80: true 20
	// it was 30:    true 70
	// a probe:      true 70
}
