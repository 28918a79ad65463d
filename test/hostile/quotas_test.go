package hostile

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"golang.org/x/net/http2"
)

// ownLane is the reason why grpc-go cannot be attacked here.
const ownLane = "RateLimitQuotaService needs Weir's own server"

// quotaAttacks are Envoys of RLQS that lie, flood or read nothing.
func quotaAttacks() []attack {
	return []attack{
		{
			name:  "quotas_of_many_buckets",
			grpc:  ownLane,
			how:   "100 streams report 1000 bucket ids of 1000 bytes each, of many limits and of one, and then others",
			bound: "1000 buckets of a stream, 10 000 in all, 2000 of one limit",
			run: func(a *assault) {
				bodies := append(a.usages("divided", 1000, 20, strings.Repeat("x", 950)), a.usages("together", 1000, 20, strings.Repeat("x", 950))...)
				a.report(100, true, func(p *peer) error { return p.data(bodies[rand.IntN(len(bodies))]) })
			},
		},
		{
			name:  "quota_reports",
			grpc:  ownLane,
			how:   "8 streams report 100 buckets as fast as they can",
			bound: "4000 usages of a stream in a second",
			run: func(a *assault) {
				body := a.usages("divided", 100, 1, "")[0]
				a.report(8, true, func(p *peer) error { return p.data(body) })
			},
		},
		{
			name:  "quotas_unread",
			grpc:  ownLane,
			how:   "500 streams report 20 buckets, and read no assignment",
			bound: "5 seconds for an assignment",
			run: func(a *assault) {
				body := a.usages("divided", 20, 1, "")[0]
				a.report(500, false, func(p *peer) error {
					a.pause(100 * time.Millisecond)
					return p.data(body)
				})
			},
		},
		{
			name:  "quota_streams_that_end",
			grpc:  ownLane,
			how:   "8 connections open a stream, report one bucket of one limit, and reset the stream, as fast as they can",
			bound: "an Envoy without tokens is forgotten at once; 2000 buckets share one limit",
			run: func(a *assault) {
				body := a.usages("divided", 1, 1, "")[0]
				a.repeat(8, func(ctx context.Context) error {
					p, err := a.raw(ctx)
					if err != nil {
						return err
					}
					p.path = quotaMethod
					p.discard()
					for ctx.Err() == nil {
						a.attempts.Add(1)
						if err := p.open(true); err != nil {
							return err
						}
						if err := p.data(body); err != nil {
							return err
						}
						if p.stream%100 == 99 { // the streams before have their answers
							if err := p.reset(p.stream - 98); err != nil {
								return err
							}
						}
					}
					return nil
				})
			},
		},
		{
			name:  "quota_buckets_that_are_left",
			grpc:  ownLane,
			how:   "8 connections open a stream, report 1000 bucket ids of 1000 bytes each, and reset the stream, as fast as they can",
			bound: "20 000 buckets, also of Envoys that have gone",
			run: func(a *assault) {
				bodies := a.usages("divided", 1000, 8, strings.Repeat("x", 950))
				a.repeat(8, func(ctx context.Context) error {
					p, err := a.raw(ctx)
					if err != nil {
						return err
					}
					p.path = quotaMethod
					p.discard()
					for ctx.Err() == nil {
						a.attempts.Add(1)
						if err := p.open(true); err != nil {
							return err
						}
						if err := p.data(bodies[rand.IntN(len(bodies))]); err != nil {
							return err
						}
						a.pause(50 * time.Millisecond) // the report counts before the reset
						if err := p.reset(p.stream); err != nil {
							return err
						}
					}
					return nil
				})
			},
		},
	}
}

const quotaMethod = rlqsv3.RateLimitQuotaService_StreamRateLimitQuotas_FullMethodName

// usages returns so many messages, each with usages of other buckets of a key.
func (a *assault) usages(key string, buckets, messages int, tail string) (bodies [][]byte) {
	for m := range messages {
		r := &rlqsv3.RateLimitQuotaUsageReports{Domain: "hostile"}
		for b := range buckets {
			r.BucketQuotaUsages = append(r.BucketQuotaUsages, &rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{
				BucketId:           &rlqsv3.BucketId{Bucket: map[string]string{key: fmt.Sprintf("q-%d-%d-%s", m, b, tail)}},
				NumRequestsAllowed: 1 << 62, NumRequestsDenied: 1 << 62,
			})
		}
		bodies = append(bodies, a.encode(r))
	}
	return bodies
}

// report opens n streams, and reports without end. Without reads the window for answers is shut.
func (a *assault) report(n int, reads bool, next func(p *peer) error) {
	a.repeat(n, func(ctx context.Context) error {
		var settings []http2.Setting
		if !reads {
			settings = append(settings, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		}
		p, err := a.raw(ctx, settings...)
		if err != nil {
			return err
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, p.Conn)
		}()
		p.path = quotaMethod
		if err := p.open(true); err != nil {
			return err
		}
		for ctx.Err() == nil {
			a.attempts.Add(1)
			if err := next(p); err != nil {
				return err
			}
		}
		<-ended
		return nil
	})
}

// data sends a part of the last stream, and does not end the stream.
func (p *peer) data(body []byte) error {
	for len(body) > 0 {
		n := min(len(body), 16<<10)
		if err := p.WriteData(p.stream, false, body[:n]); err != nil {
			return err
		}
		body = body[n:]
	}
	return p.out.Flush()
}
