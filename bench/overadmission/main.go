// Overadmission counts how much more than its limits a fleet of sidecars with one Redis admits. Overadmission starts Redis (one,
// behind Sentinels, or a cluster of six) and sidecars built from this tree. Clients ask the sidecars for a few keys as fast as
// possible. The program judges each algorithm by its own promise, from the times of each request and its answer (see oracle.go).
// Overadmission exits 1 when more hits were admitted than the promise allows, or noticeably fewer than one process would have admitted.
// Errors are exit code 1 too, and so is a load too small to reach the limits.
//
//	go -C bench run ./overadmission -topology single -n 1000000
//
// Overadmission needs redis-server or valkey-server, as scripts/redis.sh finds it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weirproxy/weir/bench/program"
	"github.com/weirproxy/weir/pkg/algorithms"
)

func main() { os.Exit(program.Main("overadmission", run)) }

// Where Redis is.
const (
	single   = "single"
	sentinel = "sentinel"
	cluster  = "cluster"
)

// options are the settings of a run.
type options struct {
	topologies []string
	algorithms []algorithms.Algorithm
	decisions  int
	clients    int
	sidecars   int
	keys       int
	requests   int
	period     time.Duration
	several    bool
	denyCache  time.Duration
	sidecar    string
	timeout    time.Duration
	more       []string // arguments of serve
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var topologies, names string
	var err error
	o.more, err = program.Parse("overadmission", args, stderr, func(flags *flag.FlagSet) {
		flags.StringVar(&topologies, "topology", single, "where Redis is: single, sentinel, cluster, or several of them with commas")
		flags.StringVar(&names, "algorithm", "", "one algorithm, or several with commas; empty for all")
		flags.IntVar(&o.decisions, "n", 1_000_000, "decisions of each algorithm")
		flags.IntVar(&o.clients, "clients", 64, "clients, each with one request at a time on a connection of its own")
		flags.IntVar(&o.sidecars, "sidecars", 4, "sidecars, over which the clients are spread")
		flags.IntVar(&o.keys, "keys", 10, "keys, of which the clients ask at random")
		flags.IntVar(&o.requests, "requests", 150, "hits per period of each key")
		flags.DurationVar(&o.period, "period", 500*time.Millisecond, "period of the limits")
		flags.BoolVar(&o.several, "several", false, "two limits per request, with keys that a cluster puts in different slots")
		flags.DurationVar(&o.denyCache, "redis-deny-cache", time.Second, "how long the sidecars remember a denial at most; 0: not at all")
		flags.StringVar(&o.sidecar, "sidecar", "", "a binary to measure instead of building ./cmd/sidecar")
		flags.DurationVar(&o.timeout, "timeout", time.Hour, "longest time of the run")
	})
	if err != nil {
		return o, err
	}
	if o.decisions < 1 || o.clients < 1 || o.sidecars < 1 || o.keys < 1 || o.requests < 1 || o.period < algorithms.MinPeriod {
		return o, errors.New("n, clients, sidecars, keys and requests must be at least 1, the period at least 1ms")
	}
	for name := range strings.SplitSeq(topologies, ",") {
		if !slices.Contains([]string{single, sentinel, cluster}, name) {
			return o, fmt.Errorf("topology %q: must be single, sentinel or cluster", name)
		}
		o.topologies = append(o.topologies, name)
	}
	if names == "" {
		o.algorithms = algorithms.Algorithms()
		return o, nil
	}
	for name := range strings.SplitSeq(names, ",") {
		a, err := algorithms.ParseAlgorithm(name)
		if err != nil {
			return o, fmt.Errorf("algorithm %w", err)
		}
		o.algorithms = append(o.algorithms, a)
	}
	return o, nil
}

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
	fmt.Fprintf(stdout, "%d decisions of each algorithm on %d keys by %d sidecars for %d clients; %d per %v, deny cache %v\n\n",
		o.decisions, o.keys, o.sidecars, o.clients, o.requests, o.period, o.denyCache)
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "topology\talgorithm\tdecisions\tadmitted\tby one process\tover\terrors\twithout Redis\tfrom memory\tseconds\t")
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
		history, failed, err := load(ctx, o, f, plan)
		took := time.Since(began)
		if err != nil {
			return fmt.Errorf("%s, %v: %w", topology, plan.algorithm, err)
		}
		after, err := f.figures(ctx)
		if err != nil {
			return err
		}
		v := judge(plan, history)
		v.errors, v.without = failed, int(after.without-before.without)
		fmt.Fprintf(table, "%s\t%v\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f\t\n", topology, plan.algorithm,
			len(history)+failed.count, v.admitted, v.expected, v.over, v.errors.count, v.without, int(after.memory-before.memory), took.Seconds())
		if err := v.err(); err != nil {
			failures = append(failures, fmt.Errorf("%s, %v: %w", topology, plan.algorithm, err))
		}
	}
	return errors.Join(failures...)
}
