package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirproxy/weir/bench/drive"
	"github.com/weirproxy/weir/test/promise"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// The keys of an outage, for each algorithm: how much of the limit is asked for.
const (
	partly = 0.9 // every hit must pass, and be counted
	beyond = 1.5 // no more than the limit must pass
)

// settle is how long the sidecars have to carry hits back after the load.
const settle = 3 * time.Second

// outage measures limits around an outage of Redis. Each algorithm has two keys: the load asks for
// a part of the limit of one, and for more than the limit of the other. Redis is away in the middle
// third.
func outage(ctx context.Context, o options, redis, dir string, stdout io.Writer) (err error) {
	o.limits.keys = 2
	all := &plan{}
	var plans []*plan
	var order []int
	for _, a := range o.algorithms {
		p, err := newPlan(o, a)
		if err != nil {
			return err
		}
		plans = append(plans, p)
		for i, demand := range []float64{partly, beyond} {
			for range int(demand * float64(p.limits[i].Capacity())) {
				order = append(order, len(all.choices))
			}
			all.choices = append(all.choices, choice{p.choices[i].encoded, []int{len(all.limits)}})
			all.limits = append(all.limits, p.limits[i])
		}
	}
	rand.New(rand.NewPCG(1, 4712)).Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	f, err := startFleet(ctx, o, single, redis, dir, ruleFile(plans))
	defer f.end()
	if err != nil {
		return err
	}
	how := "unreachable"
	if o.hung {
		how = "stopped"
	}
	fmt.Fprintf(stdout, "Redis %s from %v to %v of %v; %d sidecars, %d clients; %d per %v\n\n",
		how, o.away, 2*o.away, 3*o.away, o.sidecars, o.clients, o.limits.requests, o.limits.period)
	before, err := f.figures(ctx)
	if err != nil {
		return err
	}
	o.decisions = len(order)
	ending := make(chan error, 1)
	go func() { ending <- f.goAway(ctx, o) }()
	r, err := load(ctx, o, f, all, schedule{order, 3 * o.away / time.Duration(len(order))})
	if err = errors.Join(err, <-ending); err != nil {
		return err
	}
	pause(ctx, settle)
	after, err := f.figures(ctx)
	if err != nil {
		return err
	}
	n := len(r.took)
	fmt.Fprintf(stdout, "%d requests: %.1f %% without Redis, %.1f %% from a lease, %.0f hits carried back; ", n,
		percent(int(after.without-before.without), n), percent(int(after.leased-before.leased), n), after.carried-before.carried)
	fmt.Fprintf(stdout, "p99.9 %s ms, longest %s ms, %d errors\n\n", r.within(0.999), r.within(1), r.failed.count)
	return errors.Join(f.compare(ctx, o, plans, promise.Judge(all.limits, r.history, 0), stdout), r.failed.first)
}

// goAway takes Redis away for a while.
func (f *fleet) goAway(ctx context.Context, o options) error {
	if !pause(ctx, o.away) {
		return ctx.Err()
	}
	if o.hung {
		err := f.redis.Pause(ctx)
		pause(ctx, o.away)
		return errors.Join(err, f.redis.Continue())
	}
	f.proxy.Down()
	pause(ctx, o.away)
	return f.proxy.Up()
}

// compare writes the admitted hits beside the counts in Redis, and returns the mistakes.
func (f *fleet) compare(ctx context.Context, o options, plans []*plan, counts []promise.Count, stdout io.Writer) error {
	s, err := f.start(ctx, "127.0.0.1:0") // knows only the counts in Redis
	if err != nil {
		return err
	}
	defer s.Kill()
	if err := drive.AwaitRedis(ctx, s.HTTP); err != nil {
		return err
	}
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "algorithm\tasked\tadmitted\tby one process\tover\tin Redis at the end\t")
	var errs []error
	for i, p := range plans {
		for j, demand := range []float64{partly, beyond} {
			c, limit := counts[2*i+j], p.limits[j]
			inRedis, err := counted(ctx, ratelimitv3.NewRateLimitServiceClient(conn), p.kinds[0].name, j, int(limit.Capacity()))
			if err != nil {
				return err
			}
			name := fmt.Sprintf("%v, %g of the limit", p.algorithm, demand)
			fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t\n", name, int(demand*float64(limit.Capacity())), c.Admitted, c.Expected, c.Over, inRedis)
			// A bucket refills meanwhile: a few hits in a run of a minute, where a period is a day.
			missing := min(c.Admitted, int(limit.Capacity())) - inRedis
			if refilled := int(limit.Capacity()) / 200; missing > refilled {
				errs = append(errs, fmt.Errorf("%s: %d hits are missing in Redis", name, missing))
			}
			// A sidecar does not know the hits that others took since its last answer.
			if most := int(o.mostOver / 100 * float64(limit.Capacity())); c.Over > most {
				errs = append(errs, fmt.Errorf("%s: %d hits more were admitted than the limit allows, must be at most %d", name, c.Over, most))
			}
		}
	}
	return errors.Join(table.Flush(), errors.Join(errs...))
}

// counted returns how many hits of a key Redis knows, at most the capacity.
func counted(ctx context.Context, service ratelimitv3.RateLimitServiceClient, key string, value, capacity int) (int, error) {
	answer, err := service.ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{Domain: domain, Descriptors: []*commonv3.RateLimitDescriptor{{
		Entries:    []*commonv3.RateLimitDescriptor_Entry{{Key: key, Value: fmt.Sprint(value)}},
		HitsAddend: wrapperspb.UInt64(0), // a question without a hit
	}}})
	if err != nil {
		return 0, err
	}
	return capacity - int(answer.GetStatuses()[0].GetLimitRemaining()), nil
}
