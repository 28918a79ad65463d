// Overadmission counts how much more than its limits a fleet of sidecars with one Redis admits.
// Overadmission starts Redis (one, behind Sentinels, or a cluster of six) and sidecars built from
// this tree. Clients ask the sidecars for a few keys as fast as possible. The program judges each
// algorithm by its own promise, from the times of each request and its answer (see test/promise).
// Overadmission exits 1 when more hits were admitted than the promise allows, or noticeably fewer
// than one process would have admitted. Errors are exit code 1 too, and so is a load too small to
// reach the limits.
//
//	go -C bench run ./overadmission -topology single -n 1000000
//
// Further measurements have names. With most of them the sidecars have the timeouts that users
// have, on cores without room. Redis or a sidecar may fail meanwhile, and the load may move from
// sidecar to sidecar. Arguments after -- go to the sidecars:
//
//	go -C bench run ./overadmission -row=32 -- --sharing=leased --fleet-size=4
//
// The row away has limits of 10 000 per day, and Redis away in the middle third of the run.
// Overadmission then compares the admitted hits with the counts in Redis at the end.
//
// Overadmission needs redis-server or valkey-server, as scripts/redis.sh finds it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/weirproxy/weir/bench/program"
)

func main() { os.Exit(program.Main("overadmission", run)) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	redis, err := program.Redis(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "overadmission")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.sidecar, err = program.Sidecar(ctx, o.sidecar); err != nil {
		return err
	}
	if o.away > 0 {
		return outage(ctx, o, redis, dir, stdout)
	}
	fmt.Fprintf(stdout, "%d keys, %d sidecars, %d clients; %d per %v; load %s, fault %q\n\n",
		o.limits.keys, o.sidecars, o.clients, o.limits.requests, o.limits.period, o.load, o.fault)
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "topology\talgorithm\tdecisions\tadmitted\tby one process\tover\tof all\tworst key\tused\t"+
		"p99.9\tlongest\terrors\twithout Redis\tfrom a lease\tfrom memory\tseconds\t")
	var failures []error
	for _, topology := range o.topologies {
		failures = append(failures, measure(ctx, o, topology, redis, dir, table))
	}
	return errors.Join(table.Flush(), errors.Join(failures...))
}

// measure has all algorithms judged with Redis in one topology.
func measure(ctx context.Context, o options, topology, redis, dir string, table io.Writer) error {
	plans := make([]*plan, len(o.algorithms))
	for i, a := range o.algorithms {
		plan, err := newPlan(o, a)
		if err != nil {
			return err
		}
		plans[i] = plan
	}
	f, err := startFleet(ctx, o, topology, redis, dir, ruleFile(plans))
	defer f.end()
	if err != nil {
		return fmt.Errorf("%s: %w", topology, err)
	}
	var failures []error
	for _, plan := range plans {
		before, err := f.figures(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		r, err := load(ctx, o, f, plan, schedule{interval: o.interval()})
		took := time.Since(began)
		if err != nil {
			return fmt.Errorf("%s, %v: %w", topology, plan.algorithm, err)
		}
		after, err := f.figures(ctx)
		if err != nil {
			return err
		}
		v, all := judge(plan, r), len(r.took)
		share := func(before, after float64) string { return fmt.Sprintf("%.1f %%", percent(int(after-before), all)) }
		fmt.Fprintf(table, "%s\t%v\t%d\t%d\t%d\t%d\t%.2f %%\t%.2f %%\t%.1f %%\t", topology, plan.algorithm,
			all, v.admitted, v.expected, v.over, v.share, v.worst, v.used)
		fmt.Fprintf(table, "%s ms\t%s ms\t%d\t%s\t%s\t%s\t%.1f\t\n", r.within(0.999), r.within(1), v.errors.count,
			share(before.without, after.without), share(before.leased, after.leased), share(before.memory, after.memory), took.Seconds())
		if err := v.err(&o); err != nil {
			failures = append(failures, fmt.Errorf("%s, %v: %w", topology, plan.algorithm, err))
		}
	}
	return errors.Join(failures...)
}

// interval returns the time between two requests of all clients, 0 for no rate.
func (o *options) interval() time.Duration {
	if o.rate == 0 {
		return 0
	}
	return time.Second / time.Duration(o.rate)
}
