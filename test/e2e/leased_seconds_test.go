package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/pkg/algorithms"
	"github.com/weirproxy/weir/test/parts"
)

// Limits of a second lie in a Redis of their own. Leases come from both.
func TestTwoPodsWithLeasesOverTwoServersAdmitNothingTooMany(t *testing.T) {
	t.Parallel()
	main, seconds := startRedis(t, parts.RedisOptions{}), startRedis(t, parts.RedisOptions{})
	const limit = 100
	l := &ledger{errors: map[string]int{}, limits: []algorithms.Limit{
		{Algorithm: algorithms.FixedWindow, Requests: limit, Period: time.Second},
		{Algorithm: algorithms.TokenBucket, Requests: limit, Burst: limit, Period: time.Second},
		{Algorithm: algorithms.SlidingWindowCounter, Requests: 10 * limit, Period: 24 * time.Hour},
		{Algorithm: algorithms.TokenBucketInteger, Requests: 10 * limit, Period: 24 * time.Hour},
	}}
	root := runtimeRoot(t, l.rules())
	var clients []client
	var pods []*ratelimit
	for range 2 {
		p := startRatelimit(t, append(withRedis(main), root, "WEIR_SHARING=leased", "WEIR_FLEET_SIZE=2",
			perSecond, "REDIS_PERSECOND_SOCKET_TYPE=tcp", "REDIS_PERSECOND_URL="+seconds.Address())...)
		p.awaitHealthy(t)
		pods, clients = append(pods, p), append(clients, dial(t, p.GRPC))
	}
	var first atomic.Int32 // of the two keys that are asked for
	const workers = 10
	begun := time.Now()
	asking := newTraffic(t, workers, 5*time.Millisecond, func(ctx context.Context, worker int) string {
		if first.Load() == 0 && time.Since(begun)/burst%2 == 1 {
			return "pause"
		}
		return l.ask(ctx, clients[worker%2], int(first.Load())+worker/2%2, "hot")
	})
	leasedDecisions := func() (n int) {
		for _, p := range pods {
			n += p.metric(t, "weir_store_leased_decisions_total")
		}
		return n
	}
	for key := 0; key < len(l.limits); key += 2 {
		before := leasedDecisions()
		first.Store(int32(key))
		seen := asking.outcomes()["OVER_LIMIT"]
		eventually(t, func() string {
			switch {
			case leasedDecisions() <= before:
				return "no request was decided from a lease of limits of " + l.limits[key].Period.String()
			case asking.outcomes()["OVER_LIMIT"] < seen+4*limit:
				return "the limits are not reached"
			}
			return ""
		})
		here, elsewhere := seconds, main
		if key > 0 {
			here, elsewhere = main, seconds
		}
		for _, limit := range l.limits[key : key+2] {
			if !hasKey(t, here, limit.Algorithm) || hasKey(t, elsewhere, limit.Algorithm) {
				t.Errorf("%v per %v: want a key in the Redis of that period, and none in the other", limit.Algorithm, limit.Period)
			}
		}
	}
	asking.stop()
	l.errorless(t)
	l.atMost(t, limit, 0)
}

// hasKey reports whether a Redis has a key of the limit with the name of an algorithm.
func hasKey(t *testing.T, r *parts.Redis, a algorithms.Algorithm) bool {
	t.Helper()
	message, err := r.Do(deadline(t), "KEYS", "*")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := message.AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(keys, func(key string) bool {
		return strings.Contains(key, fmt.Sprintf("%v=", a)) || strings.Contains(key, fmt.Sprintf("%v_hot", a)) // ours, or a counter of the original
	})
}
