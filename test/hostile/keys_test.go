package hostile

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// keyAttacks are valid requests that fill the store. The honest client's denied keys must stay
// denied.
func keyAttacks() []attack {
	return []attack{
		{
			name:  "unique_keys",
			how:   "4 clients invent keys without end, 1000 in each request",
			bound: "`--max-keys`; a denied key is never forgotten",
			fresh: true,
			run:   uniqueKeys,
		},
		{
			name:  "unique_limits",
			how:   "4 clients invent keys without end, each with a limit of its own",
			bound: "`--max-keys`",
			fresh: true,
			run: func(a *assault) {
				chargeNew(a, 1000, func(n int64) *commonv3.RateLimitDescriptor {
					d := descriptor("flood", fmt.Sprintf("limit-%d", n))
					d.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(n + 1), Unit: typev3.RateLimitUnit_DAY}
					return d
				})
			},
		},
		{
			name:  "unique_logs",
			how:   "4 clients invent keys of `sliding_window_log` without end, 1000 in each request; a log takes three places",
			bound: "`--max-keys` counts places",
			fresh: true,
			run: func(a *assault) {
				chargeNew(a, 1000, func(n int64) *commonv3.RateLimitDescriptor { return descriptor("log", fmt.Sprintf("new-%d", n)) })
			},
		},
		{
			name:  "longest_keys",
			how:   "4 clients invent keys of 60 KB",
			bound: "`--max-request-bytes`; a key is kept as a digest",
			fresh: true,
			run: func(a *assault) {
				long := strings.Repeat("v", 60_000)
				chargeNew(a, 1, func(n int64) *commonv3.RateLimitDescriptor { return descriptor("flood", fmt.Sprintf("%d-%s", n, long)) })
			},
		},
		{
			name:  "many_instants",
			how:   "4 clients hit the same 1000 keys of `sliding_window_log` again and again, up to 1000 instants each",
			bound: "the rule's limit, at most 10000",
			fresh: true,
			run: func(a *assault) {
				chargeNew(a, 1000, func(n int64) *commonv3.RateLimitDescriptor { return descriptor("log", fmt.Sprintf("log-%d", n%1000)) })
			},
		},
	}
}

func uniqueKeys(a *assault) {
	chargeNew(a, 1000, func(n int64) *commonv3.RateLimitDescriptor { return descriptor("flood", fmt.Sprintf("new-%d", n)) })
}

func descriptor(key, value string) *commonv3.RateLimitDescriptor {
	return &commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}}
}

// chargeNew sends requests of so many descriptors on 4 connections. Make gets another number for
// each descriptor.
func chargeNew(a *assault, descriptors int, of func(n int64) *commonv3.RateLimitDescriptor) {
	var next atomic.Int64
	a.repeat(4, func(ctx context.Context) error {
		c := connect(a.address)
		defer c.close()
		for ctx.Err() == nil {
			a.attempts.Add(1)
			r := &ratelimitv3.RateLimitRequest{Domain: "hostile"}
			last := next.Add(int64(descriptors))
			for n := last - int64(descriptors); n < last; n++ {
				r.Descriptors = append(r.Descriptors, of(n))
			}
			asking, cancel := context.WithTimeout(ctx, answerTimeout)
			_, err := c.ask(asking, r)
			cancel()
			if err != nil {
				a.refusals.Add(1)
				a.pause(10 * time.Millisecond)
			}
		}
		return nil
	})
}
